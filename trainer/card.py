"""The model card: README.md of a model's folder, as model hubs show it.

What the model is, how good each prefix is, how to load it, how it was trained, and its limits, from
the model and its recipe alone. Files are named without their folders: a card is published.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from huggingface_hub import ModelCardData, metadata_load

from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.reading import HUB
from searchengine.trainer.sources.names import NAMES, STARTER
from searchengine.trainer.sources.source import Starter, may_be_hub_name

# What the packaged encoder is called where models are published.
QUESTION = "how do whales sleep"
DOCUMENTS = ["A whale rests one half of its brain at a time.", "Bread rises overnight."]
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
USE = """## How to use it

`.` is this folder: put its path, or its name on a model hub. With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{cut})
documents = model.encode_document({documents}{scaled})
question = model.encode_query(["{question}"]{scaled})
print(model.similarity(question, documents))
```

With searchengine:

```python
from searchengine.trainer.encoder import Encoder

encoder = Encoder.load(".")
documents = encoder.encode({documents}, role="document")
question = encoder.encode(["{question}"], role="query")
print(question @ documents.T){classify}
```

```sh
searchengine index notes/ notes.index --encoder .
searchengine search notes.index "{question}"
```"""
CLASSIFY = """

from searchengine.trainer.evaluation.labels import classify

print(classify(encoder, {documents}))"""
LIMITS = """## Limits

- A text is cut after {max_tokens} tokens: split longer ones into passages.
- It knows the languages and subjects of its base model and its training data: elsewhere measure.
- A cosine says how similar two texts are to this model, not whether either is true.
- It repeats the biases of the texts it learnt from.
- The licences of the base model and of the data hold for it too."""


def card(model: Model) -> str:
    """The card in Markdown with YAML front matter; short where no recipe of ours was recorded."""
    config = model.recipe.get("config")
    # JSON and not a TrainConfig: a model that is saved again need not know how to train.
    settings = config if isinstance(config, Mapping) and "base" in config else {}
    title = _file_name(str(settings.get("out") or f"Sentence encoder, {model.module.dim} wide"))
    parts = [_front_matter(model, settings), f"# {title}", _what_it_is(model)]
    if settings:
        parts += [_scores(model.recipe), _training(settings, model.recipe)]
    nested, documents = len(model.matryoshka_dims) > 1, json.dumps(DOCUMENTS)
    use = USE.format(
        cut=f", truncate_dim={model.matryoshka_dims[-1]}" if nested else "",
        scaled=", normalize_embeddings=True" if nested else "",
        documents=documents,
        question=QUESTION,
        classify="" if model.classifier is None else CLASSIFY.format(documents=documents),
    )
    parts += [use, LIMITS.format(max_tokens=model.max_tokens)]
    return "\n\n".join(filter(None, parts)) + "\n"


def hub_name(base: str) -> str | None:
    """The name of a base model on the model hub; None for a folder."""
    if base in NAMES or base in list(Starter):
        return NAMES.get(base, NAMES[STARTER]).hub
    name = base.partition("@")[0]  # without the revision
    return name if may_be_hub_name(base) and not Path(base).is_dir() else None


def read_base_card(folder: Path) -> dict[str, Any]:
    """The licence, languages and base model that a model's own card states; {} where it has none.

    A model trained from it has the same, unless its author says otherwise; the base model only if
    this one is not on the hub itself.
    """
    try:
        stated = metadata_load(folder / "README.md") or {}
    except Exception:  # no card, or front matter that is not a YAML object
        return {}
    values = {name: stated.get(name) for name in ("license", "language", "base_model")}
    return {name: value for name, value in values.items() if value and _is_text(value)}


def _is_text(value: Any) -> bool:
    return all(isinstance(item, str) for item in (value if isinstance(value, list) else [value]))


def _file_name(path: str) -> str:
    """The last part of a path of any system; a dataset of the hub has no folder."""
    if path.startswith(HUB):
        return path
    return PureWindowsPath(path).name  # which takes both kinds of slash


def _files(paths: Iterable[str] | None) -> str:
    return ", ".join(f"`{_file_name(path)}`" for path in paths or ())


def _front_matter(model: Model, settings: Mapping[str, Any]) -> str:
    named = [path.removeprefix(HUB) for path in settings.get("train", ()) if path.startswith(HUB)]
    described = dict(model.recipe.get("base_card") or {}) if settings else {}
    if base := hub_name(str(settings.get("base") or ".")):
        described["base_model"] = base
    nested = ["matryoshka"] if len(model.matryoshka_dims) > 1 else []
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS, *nested],
        datasets=list(dict.fromkeys(name.partition(":")[0] for name in named)) or None,
        **described,
    )
    return f"---\n{data.to_yaml()}\n---"


def _what_it_is(model: Model) -> str:
    text = (
        f"It turns a text into a unit vector of {model.module.dim} dimensions; texts that mean the "
        f"same are close by cosine. It reads up to {model.max_tokens} tokens of a text."
    )
    if lengths := ", ".join(map(str, model.matryoshka_dims[1:])):
        text += (
            "\n\nThe first dimensions of a vector carry the most meaning "
            f"([Matryoshka](https://arxiv.org/abs/2205.13147)): cut it to {lengths} dimensions, no "
            "others, scale it back to length one, compare as before."
        )
    if model.classifier is not None:
        labels = ", ".join(f"`{label}`" for label in model.classifier.labels)
        text += f"\n\nIt also tells texts apart by label: {labels}."
    if model.prompts:
        prompts = "\n".join(f"- {name}: {json.dumps(p)}" for name, p in model.prompts.items())
        text += f"\n\nIt wants these prompts in front of a text:\n\n{prompts}"
    return text


def _scores(recipe: Mapping[str, Any]) -> str:
    """The table of prefixes before and after training; "" where nothing was judged."""
    before, best = recipe.get("untrained") or {}, recipe.get("best") or {}
    rows = [
        f"| {dim} | {f'{100 * before[dim]:.2f}' if dim in before else '–'} | {100 * score:.2f} |"
        for dim, score in best.items()
    ]
    head = "| prefix | untrained | trained |\n|---:|---:|---:|"
    judged = f"{recipe.get('judged_by')}, × 100; measure on a test set of your own"
    return "\n".join([f"## Scores\n\n{judged}.\n\n{head}", *rows]) if rows else ""


def _training(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    base = str(settings["base"])
    steps, epochs = settings.get("max_steps"), settings.get("epochs")
    length = f"{steps} updates" if steps else f"{epochs} epochs"
    versions = (recipe.get("versions") or {}).items()
    lines = [
        f"Base model: `{base if hub_name(base) else _file_name(base)}`.",
        f"Data: {_files(settings.get('train'))}; {recipe.get('examples')} examples, "
        f"{recipe.get('excluded')} left out for a sentence of an excluded file.",
        *(f"{line}." for line in recipe.get("summary") or ()),
        f"Training: {length}, "
        f"{settings.get('batch_size')} examples a batch, AdamW with a peak learning rate of "
        f"{settings.get('learning_rate')}, seed {settings.get('seed')}.",
        f"The weights kept are those of step {recipe.get('best_step')}; judged by "
        f"{recipe.get('judged_by')}.",
    ]
    if figures := recipe.get("against_base"):
        lines.append(
            f"Accuracy {figures['where']} ({figures['n']} texts): {figures['trained']:.4f} "
            f"trained, {figures['base']:.4f} for a logistic regression on the base model's "
            f"vectors; difference {figures['difference']:+.4f}, 95 % interval "
            f"{figures['low']:+.4f} to {figures['high']:+.4f}."
        )
    lines.append(f"Versions: {', '.join(f'{name} {version}' for name, version in versions)}.")
    lines.append("All settings are in `config_sentence_transformers.json`, under `recipe`.")
    return "## How it was trained\n\n" + "\n".join(f"- {line}" for line in lines)
