"""Published settings by name: settings of `TrainConfig` with the papers' values.

What a preset does not name has the default; whatever is given beside it wins. Mean pooling is not
named: networks without a pooling have it, and another base keeps the layers behind its own. The
base models are the papers' and come from the model hub; give another `base`, such as "starter",
where there is no network.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from searchengine.trainer.errors import ConfigError

_SIMCSE = {
    "base": "bert-base-uncased",
    "temperature": 0.05,
    "max_tokens": 32,
    "warmup_ratio": 0.0,
    "eval_every": 125,
}
_NLI = {
    "base": "microsoft/mpnet-base",
    "temperature": 0.05,  # a scale of 20
    "batch_size": 128,
    "epochs": 1,
    "learning_rate": 5e-5,
    "warmup_ratio": 0.1,
}
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Gao et al., arXiv 2104.08821, table A.1 and the training script beside it: one million
        # sentences of Wikipedia, CLS with an MLP in training only.
        "simcse-unsup": {
            **_SIMCSE,
            "pooling": "cls-before-pooler",
            "batch_size": 64,
            "epochs": 1,
            "learning_rate": 3e-5,
        },
        # The same on SNLI and MNLI, contradictions as hard negatives, the MLP kept.
        "simcse-sup": {
            **_SIMCSE,
            "pooling": "cls",
            "batch_size": 512,
            "epochs": 3,
            "learning_rate": 5e-5,
            "hard_negative_weight": 1.0,
        },
        # Gunel et al., arXiv 2011.01403, section 4: the λ and τ that their few-shot runs chose.
        "supervised-contrastive": {
            "base": "FacebookAI/roberta-large",
            "objective": "classification",
            "pooling": "cls",
            "label_weight": 0.9,
            "label_temperature": 0.3,
            "dropout": 0.1,
            "batch_size": 16,
            "epochs": 10,
            "learning_rate": 1e-5,
            "warmup_ratio": 0.06,
        },
        # Few labels: each batch has many classes and other texts of each, as SetFit (Tunstall et
        # al., arXiv 2209.11055) draws its pairs. Chosen on questions of TREC's training set.
        "labels": {
            "objective": "classification",
            "label_weight": 0.9,
            "label_temperature": 0.1,
            "batch_size": 64,
        },
        # Kusupati et al., arXiv 2205.13147, on sentences as sentence-transformers' documentation
        # trains the model whose figures it publishes (98.37 % of the full width kept at 64). The
        # prefixes are those of a base 768 wide by default: 768, 512, 256, 128, 64.
        "matryoshka": _NLI,
        # Li et al., arXiv 2402.14776, with the same data and sizes: one layer and one prefix
        # drawn for an update.
        "matryoshka-2d": {
            **_NLI,
            "layers_per_step": 1,
        },
        # CoSENT (doi 10.1109/TASLP.2024.3402087) as sentence-transformers' example trains it on
        # STS-B: a scale of 20, batches of 16, four epochs; the rate of Reimers & Gurevych, arXiv
        # 1908.10084, section 3.1.
        "cosent": {
            "base": "bert-base-uncased",
            "objective": "similarity",
            "temperature": 0.05,
            "batch_size": 16,
            "epochs": 4,
            "learning_rate": 2e-5,
            "warmup_ratio": 0.1,
        },
        # Chen et al., arXiv 2309.12307, section 4.1: four times the window, groups of a quarter,
        # adapters of rank 8 with α 16, embeddings and norms trained. Their rate is
        # for networks of 7 billion weights and their batch for 8 GPUs; these are for the starter.
        # Dropout would keep torch from its fast attention.
        "longlora": {
            "base": "sentence-transformers/all-MiniLM-L6-v2",
            "prefixes": [384],
            "window": 2048,
            "max_tokens": 2048,
            "attention_group": 512,
            "adapter_rank": 8,
            "dropout": 0.0,
            "batch_size": 16,
            "epochs": 1,
            "learning_rate": 2e-4,
            "temperature": 0.05,
        },
    }
)


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset. Raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}: expected one of {', '.join(PRESETS)}")
    return dict(PRESETS[name])
