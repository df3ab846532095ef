"""The model card: README.md of a model's folder, as model hubs show it.

What the model is, how good each prefix is, how it was made, how to load it, and its limits, from
the model and its recipe alone. Files are named without their folders: a card is published.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.names import NAMES, STARTER
from searchengine.trainer.model.source import Starter, may_be_hub_name
from searchengine.trainer.reading import HUB

# What the packaged encoder is called where models are published.
QUESTION = "how do whales sleep"
DOCUMENTS = ["A whale rests one half of its brain at a time.", "Bread rises overnight."]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a model trained here. settings: of the run, as JSON; results: of the run.

    JSON and not a TrainConfig: a model that is loaded and saved again need not know how to train.
    """

    settings: Mapping[str, Any]
    results: Mapping[str, Any]

    def scores(self, name: str) -> dict[int, float]:
        """Scores by prefix length; empty where nothing was judged."""
        return {int(dim): float(score) for dim, score in (self.results.get(name) or {}).items()}

    def number(self, name: str) -> float:
        """A setting; 0 where it is not set, which switches it off."""
        value = self.settings.get(name)
        return value if isinstance(value, int | float) else 0

    def text(self, name: str) -> str:
        """A setting that is a name."""
        return str(self.settings.get(name) or "")

    def files(self, name: str) -> list[str]:
        """The names of a setting's files, without their folders."""
        return _file_names(self.settings.get(name))

    def data(self) -> list[str]:
        """The files and datasets that were trained on, as the settings have them."""
        return [str(path) for path in self.settings.get("train") or ()]


def card(model: Model) -> str:
    """The card in Markdown with YAML front matter; short where no recipe of ours was recorded."""
    recipe = read_recipe(model.recipe)
    dim = model.module.dim
    title = _file_name(recipe.text("out")) if recipe else ""
    parts = [
        _front_matter(model, recipe),
        f"# {title or f'Sentence encoder, {dim} wide'}",
        _what_it_is(model),
    ]
    if recipe:
        if scores := recipe.scores("best"):
            parts.append(_scores(recipe, scores))
        parts += [_use(model), _training(recipe), _again(recipe)]
    else:
        parts.append(_use(model))
        if model.recipe:
            parts.append(f"## How it was made\n\n{_json(names_only(model.recipe))}")
    return "\n\n".join([*parts, _limits(model, recipe)]) + "\n"


def read_recipe(recipe: Mapping[str, Any]) -> Recipe | None:
    """A recipe that `searchengine.trainer.training.loop` wrote; None for a model made otherwise."""
    settings = recipe.get("config")
    if not isinstance(settings, Mapping) or not {"train", "out", "base"} <= set(settings):
        return None
    return Recipe(settings, recipe)


def names_only(value: Any) -> Any:
    """JSON with every absolute path in it cut to its last part: folders are nobody's business."""
    match value:
        case str() if PureWindowsPath(value).is_absolute() or value.startswith(("/", "~")):
            return _file_name(value)
        case Mapping():
            return {key: names_only(inner) for key, inner in value.items()}
        case list() | tuple():
            return [names_only(inner) for inner in value]
    return value


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
    import yaml  # a search needs no card

    path = folder / "README.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    match = re.match(r"---\n(.*?)\n---(\n|$)", text, re.DOTALL)
    try:
        stated = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError:
        return {}
    if not isinstance(stated, dict):
        return {}
    values = {name: stated.get(name) for name in ("license", "language", "base_model")}
    return {
        name: value
        for name, value in values.items()
        if (value and isinstance(value, str))
        or (value and isinstance(value, list) and all(isinstance(item, str) for item in value))
    }


def hub_datasets(recipe: Recipe) -> list[str]:
    """The Hugging Face datasets among the training data, by their names on the hub."""
    named = (path.removeprefix(HUB) for path in recipe.data() if path.startswith(HUB))
    return list(dict.fromkeys(name.partition(":")[0] for name in named))


def _base(base: str) -> str:
    """A base model as the card names it: a folder without where it lay."""
    return base if hub_name(base) else _file_name(base)


def _file_name(path: str) -> str:
    """The last part of a path of any system; a dataset of the hub has no folder."""
    if path.startswith(HUB):
        return path
    return PureWindowsPath(path).name  # which takes both kinds of slash


def _file_names(paths: Iterable[str] | None) -> list[str]:
    return [_file_name(path) for path in paths or ()]


def _front_matter(model: Model, recipe: Recipe | None) -> str:
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
    if len(model.matryoshka_dims) > 1:
        tags.append("matryoshka")
    lines = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    if recipe:
        described = dict(recipe.results.get("base_card") or {})
        if base := hub_name(recipe.text("base")):
            described["base_model"] = base
        if data := hub_datasets(recipe):
            described["datasets"] = data
        lines += [f"{name}: {json.dumps(described[name])}" for name in sorted(described)]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _what_it_is(model: Model) -> str:
    dims = model.matryoshka_dims
    text = (
        f"It turns a text into a unit vector of {model.module.dim} dimensions; texts that mean the "
        f"same are close by cosine. It reads up to {model.max_tokens} tokens of a text."
    )
    if len(dims) > 1:
        *others, last = map(str, dims[1:])
        lengths = f"{', '.join(others)} or {last}" if others else last
        text += (
            "\n\nThe first dimensions of a vector carry the most meaning "
            f"([Matryoshka](https://arxiv.org/abs/2205.13147)): cut it to {lengths} dimensions, "
            "scale it back to length one, compare as before."
        )
    if model.classifier is not None:
        labels = ", ".join(f"`{label}`" for label in model.classifier.labels)
        text += f"\n\nIt also tells texts apart by label: {labels}."
    if model.prompts:
        prompts = "\n".join(f"- {name}: {json.dumps(p)}" for name, p in model.prompts.items())
        text += f"\n\nIt wants these prompts in front of a text:\n\n{prompts}"
    return text


def _scores(recipe: Recipe, best: Mapping[int, float]) -> str:
    before, full = recipe.scores("untrained"), best[max(best)]
    rows = []
    for dim in sorted(best, reverse=True):
        untrained = f"{100 * before[dim]:.2f}" if dim in before else "–"
        share = f"{100 * best[dim] / full:.1f} %" if full > 0 else "–"
        rows.append(f"| {dim} | {untrained} | {100 * best[dim]:.2f} | {share} |")
    dev = recipe.files("dev")
    on = f" ({_quoted(dev)})" if dev else ""
    chosen = (
        f"\n\nThese scores also chose the step that was kept ({recipe.results.get('best_step')}), "
        "so they are a little optimistic: measure on a test set of your own."
    )
    return (
        f"## Scores\n\n{recipe.results.get('judged_by', 'score')}{on}, × 100:\n\n"
        "| prefix | untrained | trained | share of full width |\n|---:|---:|---:|---:|\n"
        + "\n".join(rows)
        + ("" if recipe.settings.get("keep_last") else chosen)
    )


def _use(model: Model) -> str:
    documents, question = json.dumps(DOCUMENTS), json.dumps(QUESTION)
    cut = scaled = why = imports = classified = ""
    compared = "question @ documents.T"
    if len(model.matryoshka_dims) > 1:
        short = model.matryoshka_dims[-1]
        cut, scaled = f", truncate_dim={short}", ", normalize_embeddings=True"
        why = " A cut vector is scaled back by `normalize_embeddings`."
        imports = "from searchengine.indexer.arrays import prefix\n"
        compared = f"prefix(question, {short}) @ prefix(documents, {short}).T"
    if model.classifier is not None:
        classified = (
            "\n\nfrom searchengine.trainer.evaluation.labels import classify\n\n"
            f"print(classify(encoder, {documents}))"
        )
    return f"""## How to use it

`.` is this folder: put its path, or its name on a model hub.

With sentence-transformers, 5 or newer.{why}

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{cut})
documents = model.encode_document({documents}{scaled})
question = model.encode_query({question}{scaled})
print(model.similarity(question, documents))
```

With searchengine:

```python
{imports}from searchengine.trainer.encoder import Encoder

encoder = Encoder.load(".")
documents = encoder.encode({documents}, role="document")
question = encoder.encode([{question}], role="query")
print({compared}){classified}
```

On the command line:

```sh
searchengine index notes/ notes.index --encoder .
searchengine search notes.index "{QUESTION}"
```"""


def _training(recipe: Recipe) -> str:
    results, number = recipe.results, recipe.number
    steps = number("max_steps")
    length = f"{steps:g} updates" if steps else f"{number('epochs'):g} epochs"
    batch = f"{number('batch_size'):g} examples"
    if number("accumulation") > 1:
        batch = f"{number('accumulation'):g} × {batch}"
    left_out = ""
    if exclude := recipe.files("exclude"):
        left_out = (
            f", {results.get('excluded')} left out because they hold a sentence of "
            f"{_quoted(exclude)}"
        )
    versions = results.get("versions") or {}
    lines = [
        f"Base model: `{_base(recipe.text('base'))}`.",
        f"Data: {_quoted(_file_names(recipe.data()))}; {results.get('examples')} examples"
        f"{left_out}.",
        *(f"{line}." for line in results.get("summary") or ()),
        f"Training: {length}, {batch} an update, AdamW with a peak learning rate of "
        f"{number('learning_rate'):g}, seed {number('seed'):g}.",
        f"The weights kept are those of step {results.get('best_step')}; judged by "
        f"{results.get('judged_by')}.",
        *_against_base(results.get("against_base") or {}),
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.",
    ]
    return "## How it was made\n\n" + "\n".join(f"- {line}" for line in lines)


def _against_base(figures: Mapping[str, Any]) -> Iterable[str]:
    """What training on labels gained over a regression on the base's vectors."""
    if figures:
        yield (
            f"Accuracy {figures['where']} ({figures['n']} texts): {figures['trained']:.4f} "
            f"trained, {figures['base']:.4f} for a logistic regression on the base model's "
            f"vectors; difference {figures['difference']:+.4f}, 95 % interval "
            f"{figures['low']:+.4f} to {figures['high']:+.4f}."
        )


def _again(recipe: Recipe) -> str:
    config = dict(names_only(recipe.settings))
    config |= {name: recipe.files(name) for name in ("train", "exclude", "dev")}
    config |= {"out": _file_name(recipe.text("out")), "base": _base(recipe.text("base"))}
    words = ["searchengine", "train", *config["train"], "--out", config["out"]]
    command = shlex.join([*words, "--config", "train.json"])
    return f"""## How to make it again

Save this as `train.json` beside the files it names:

{_json(config)}

```sh
{command}
```

`--resume` goes on with a run that was interrupted. In float32 on a CPU, with the same \
versions, the weights come out the same."""


def _limits(model: Model, recipe: Recipe | None) -> str:
    lines = [
        f"A text is cut after {model.max_tokens} tokens: split longer ones into passages.",
        "It knows the languages and subjects of its base model and its training data; elsewhere "
        "measure first.",
        "A cosine says how similar two texts are to this model, not whether either is true; its "
        "scale differs from model to model.",
        "It repeats the biases of the texts it learnt from.",
        "The licences of the base model and of the data hold for it too.",
    ]
    if len(model.matryoshka_dims) > 1:
        lines.insert(1, "Use only the prefix lengths named above.")
    if recipe and not recipe.scores("best"):
        lines.insert(0, "Nothing was measured in training: there was no data to judge it by.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _json(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"
