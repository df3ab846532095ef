"""The model card: README.md of a model's folder, as model hubs show it.

What the model is, how it compares with its base, how it was trained, how to load it, and its
limits, from the model and its recipe alone. Files are named without their folders: a card is
published.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml
from jinja2 import Template

from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.sources.source import NAMES, STARTER, Starter, may_be_hub_name

QUESTION = "how do whales sleep"
DOCUMENTS = ["A whale rests one half of its brain at a time.", "Bread rises overnight."]
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
LOSSES = {
    "contrastive": "InfoNCE ([SimCSE](https://arxiv.org/abs/2104.08821))",
    "classification": "supervised contrastive and cross-entropy "
    "([Gunel et al.](https://arxiv.org/abs/2011.01403))",
    "similarity": "[CoSENT](https://doi.org/10.1109/TASLP.2024.3402087)",
}
TEMPLATE = """---
{{ front_matter }}---

# {{ title }}

It turns a text into a unit vector of {{ dims[0] }} dimensions; texts that mean the same are close \
by cosine. It reads up to {{ model.max_tokens }} tokens of a text: split longer ones into passages.
{% if lengths %}

The first dimensions of a vector carry the most meaning \
([Matryoshka](https://arxiv.org/abs/2205.13147)): cut it to {{ lengths | join(", ") }} dimensions, \
no others, scale it back to length one, compare as before.
{% endif %}
{% if model.classifier %}

It also tells texts apart by label: `{{ model.classifier.labels | join("`, `") }}`.
{% endif %}
{% if prompts %}

It wants these prompts in front of a text:

{{ prompts }}
{% endif %}
{% if settings %}
{% if recipe.verdict %}

## Compared with its base

{{ recipe.verdict }}.
{% for measure in recipe.measures %}

{{ measure.measure }}, × 100, n {{ measure.n }}:

| prefix | base as shipped | after training |
|---:|---:|---:|
{% for dim, score in measure.result.items() %}
| {{ dim }} | {{ "%.2f" % (100 * measure.base[dim]) }} | {{ "%.2f" % (100 * score) }} |
{% endfor %}
{% endfor %}
{% endif %}

## How it was trained

- Base model: `{{ base }}`.
- Data: {{ files }}{% if recipe.examples %}; {{ recipe.examples }} examples, \
{{ recipe.excluded }} left out for a sentence of an excluded file{% endif %}.
{% if settings.objective in losses %}
- Loss: {{ losses[settings.objective] }}.
{% endif %}
{% for name in recipe.changed if name not in ("base", "dev", "exclude") %}
- `{{ name }}`: {{ settings[name] }}
{% endfor %}
- The other settings have their defaults; all, and the versions, are in \
`config_sentence_transformers.json` under `recipe`.
{% endif %}

## How to use it

`.` is this folder: put its path, or its name on a model hub. With sentence-transformers:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{% if lengths %}, truncate_dim={{ lengths[-1] }}{% endif %})
documents = model.encode_document({{ documents }}, normalize_embeddings=True)
question = model.encode_query(["{{ question }}"], normalize_embeddings=True)
print(model.similarity(question, documents))
```

With searchengine:

```sh
searchengine index notes/ notes.index --encoder .
searchengine search notes.index "{{ question }}"
```

## Limits

It knows the languages and subjects of its base model and its training data, and repeats their
biases: elsewhere measure. The licences of the base model and of the data hold for it too.
"""


def model_card(model: Model) -> str:
    """The card in Markdown with YAML front matter; short where no recipe of ours was recorded."""
    config = model.recipe.get("config")
    # JSON and not a TrainConfig: a model that is saved again need not know how to train.
    settings = config if isinstance(config, Mapping) and "base" in config else {}
    base, data = settings.get("base"), settings.get("train") or ()
    dims = model.matryoshka_dims
    front: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*TAGS, "matryoshka"] if dims[1:] else TAGS,
    }
    if base and hub_model(base):
        front["base_model"] = hub_model(base)
    template = Template(TEMPLATE, trim_blocks=True, keep_trailing_newline=True)
    text = template.render(
        model=model,
        dims=dims,
        lengths=dims[1:],
        front_matter=yaml.safe_dump({k: v for k, v in front.items() if v}, sort_keys=False),
        title=_file_name(settings.get("out") or f"Sentence encoder, {dims[0]} wide"),
        prompts="\n".join(f"- {name}: {json.dumps(p)}" for name, p in model.prompts.items()),
        settings=settings,
        recipe=model.recipe,
        base=base if base and hub_model(base) else _file_name(base or ""),
        files=", ".join(f"`{_file_name(file)}`" for file in data),
        losses=LOSSES,
        documents=json.dumps(DOCUMENTS),
        question=QUESTION,
    )
    return str(text)


def hub_model(base: str) -> str | None:
    """The name of a base model on the model hub, without a revision; None for a folder."""
    base = NAMES.get(STARTER if base in list(Starter) else base, base)
    return base.partition("@")[0] if may_be_hub_name(base) and not Path(base).is_dir() else None


def _file_name(path: str) -> str:
    """The last part of a path of any system."""
    return PureWindowsPath(path).name  # which takes both slashes
