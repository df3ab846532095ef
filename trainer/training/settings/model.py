# ruff: noqa: RUF009  (the calls return dataclass fields)
"""The settings of a training run that concern the network: base, pooling, length, adapters."""

from dataclasses import dataclass
from enum import StrEnum

from searchengine.trainer.training.settings.fields import (
    BELOW_ONE,
    NO_LINE,
    POSITIVE,
    Objective,
    Range,
    at_least,
    choice,
    number,
    switch,
    text,
)


class Pooler(StrEnum):
    """How the vectors of tokens are pooled, by SimCSE's names; BASE keeps the model's pooling.

    CLS adds a layer with tanh, which is trained and kept; CLS_BEFORE_POOLER uses it in training
    only. FIRST_LAST and LAST_TWO average two layers, then all tokens.
    """

    BASE = "base"
    CLS = "cls"
    CLS_BEFORE_POOLER = "cls-before-pooler"
    MEAN = "mean"
    FIRST_LAST = "first-last"
    LAST_TWO = "last-two"


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model to start from, and what is changed in it."""

    base: str = text(
        "starter-768",
        help="Base model: a folder, a hub name, `starter` or `starter-768`",
        card=NO_LINE,
    )
    trust_remote_code: bool = switch(
        False,
        help="Run Python code that comes with the base model "
        "([models with code](encoding.md#models-that-come-with-code))",
        card=NO_LINE,
    )
    pooling: Pooler = choice(
        Pooler.BASE,
        tuple(Pooler),
        help="Pooling, instead of the base model's: `cls` with a tanh layer that is kept, "
        "`cls-before-pooler` with one in training only, `mean`, `first-last`, `last-two`",
        card="Pooling: {}",
    )
    kept_layers: int | None = number(
        None,
        at_least(0),
        optional=True,
        help="Number of the base's layers to keep, evenly spread; 0, of a question encoder: a "
        "table with a vector for each token ([static](encoding.md#static-models))",
        default_in_words="all",
        card="Layers kept of the base model: {}",
    )
    dropout: float | None = number(
        None,
        BELOW_ONE,
        optional=True,
        help="Dropout rate of the whole network; 0 for none",
        default_in_words="the base's",
        card="Dropout {}",
    )
    fixed_dropout: bool = switch(
        False,
        help="One dropout mask for both views of a sentence",
        card="One dropout mask for a sentence and its positive",
        objective=Objective.CONTRASTIVE,
    )
    encoders: int = number(
        1,
        Range(1, 2, "1 or 2", "1, 2", whole=True),
        help="Number of encoders; of 2, the first encodes anchors and is kept, the other all else",
        card="Two encoders were trained, the first was kept",
        objective=Objective.CONTRASTIVE,
    )
    frozen_embeddings: bool = switch(
        False,
        help="Do not train the embeddings of tokens and positions, so that tokens missing from the "
        "training texts still fit the others",
        card="Embeddings were not trained",
    )
    head_only: bool = switch(
        False,
        help="Train only the Dense layers, on fixed vectors: a linear adapter. Each text is "
        "encoded once; training then takes seconds",
        card="Only the Dense layers were trained",
    )


@dataclass(frozen=True, kw_only=True)
class LengtheningSettings:
    """A longer window, and what makes training with it cheaper (LongLoRA, arXiv 2309.12307)."""

    window: int | None = number(
        None,
        at_least(3),
        optional=True,
        help="Tokens that the trained model reads; above the base's positions these are "
        "[interpolated](special-encoders.md#longer-texts)",
        default_in_words="the base's",
        card="Window lengthened to {} tokens by position interpolation",
    )
    kept_positions: int | None = number(
        None,
        at_least(0),
        optional=True,
        help="Learned positions that stay as they are in a longer window, so that short texts do; "
        "those behind are stretched over the rest. 0: all are stretched, as rotary ones always are",
        default_in_words="half of the base's",
        card="Positions not stretched: {}",
    )
    attention_group: int = number(
        0,
        at_least(0),
        help="Tokens in a group of shifted sparse attention, for texts longer than that in "
        "training; 0: full attention",
        card="Shifted sparse attention in training, groups of {} tokens",
    )
    adapter_rank: int = number(
        0,
        at_least(0),
        help="Rank of low-rank adapters ([LoRA](https://arxiv.org/abs/2106.09685)) of the "
        "attention, trained in place of the network and merged in the end; 0: train all weights",
        card="Low-rank adapters of the attention, rank {}, merged",
    )
    adapter_alpha: float = number(
        16.0, POSITIVE, help="α of the adapters, which are scaled by α / rank", card=NO_LINE
    )
    adapter_extras: bool = switch(
        True,
        help="Train embeddings and norms beside the adapters (LoRA⁺)",
        card="Embeddings and norms were not trained",
    )
