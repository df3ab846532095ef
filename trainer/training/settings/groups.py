# ruff: noqa: RUF009  (the calls return dataclass fields)
"""The settings of a training run by group; `TrainConfig` is all of them.

A field states its default, its check, its help and its line in the model card (see
`trainer.training.settings.fields`). A new setting needs a field here and the code that reads it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchengine.trainer.runtimes.config import TRAINING, Precision
from searchengine.trainer.training.data.positives import Augment, Kind
from searchengine.trainer.training.settings.fields import (
    BELOW_ONE,
    NO_LINE,
    NOT_NEGATIVE,
    POSITIVE,
    REQUIRED,
    Objective,
    Range,
    at_least,
    choice,
    choices,
    number,
    numbers,
    objects,
    path,
    paths,
    switch,
    texts,
)
from searchengine.trainer.training.settings.model import LengtheningSettings, ModelSettings
from searchengine.trainer.training.settings.model import Pooler as Pooler
from searchengine.trainer.training.settings.objective import (
    ContrastiveSettings,
    LabelSettings,
    ObjectiveSettings,
    TeacherSettings,
)

SEED = f"a whole number of 0 or more and less than {2**32}"


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Files, and how an example becomes a training pair."""

    train: tuple[Path, ...] = paths(
        (),
        help="Files of examples: TSV, JSONL, Parquet; or Hugging Face datasets",
        default_in_words="required",
        card=NO_LINE,
    )
    data_sets: tuple[dict[str, Any], ...] = objects(
        (),
        help="[Several data sets](training.md#several-data-sets) in place of `train`, each with an "
        "objective of its own",
        card=NO_LINE,
    )
    columns: tuple[str, ...] = texts(
        (),
        help="Columns to read: anchor, positive, negatives; then scores where they are learnt; or "
        "text, label",
        default_in_words="by name",
        card=NO_LINE,
    )
    expects: tuple[Kind, ...] = choices(
        (),
        tuple(Kind),
        help="Kinds of examples that the files may hold",
        default_in_words="any",
        card=NO_LINE,
    )
    exclude: tuple[Path, ...] = paths(
        (), help="Files of sentences to leave out of training", card=NO_LINE
    )
    augment: Augment = choice(
        Augment.NONE,
        tuple(Augment),
        help="Positive of a single sentence: `none` the sentence itself, `delete-word` without one "
        "of its words, `delete` or `crop` without a share of them, `next-sentence` the next "
        "sentence of the file",
        card="Positive of a single sentence: {}",
        objective=Objective.CONTRASTIVE,
    )
    augment_share: float = number(
        0.1,
        BELOW_ONE,
        help="Share of a sentence's words that `delete` and `crop` leave out",
        card="Share of the words left out of a positive: {}",
    )


@dataclass(frozen=True, kw_only=True)
class NestingSettings:
    """Prefixes of the vectors and first layers of the network that are trained too."""

    nested: bool = switch(
        True, help="Train prefixes as well; false: only the full width", card=NO_LINE
    )
    prefixes: tuple[int, ...] = numbers(
        (),
        at_least(1),
        "different lengths, descending, such as 768,256,64",
        help="Trained prefix lengths, descending, the full width first",
        default_in_words="the base model's; else its width and 512, 256, 128, 64 below it",
        card=NO_LINE,
    )
    prefix_weights: tuple[float, ...] = numbers(
        (),
        NOT_NEGATIVE,
        "one number of 0 or more for each prefix",
        help="Weight of each prefix in the loss and in choosing the best step",
        default_in_words="1 each",
        card="Weights of the prefixes: {}",
    )
    prefixes_per_step: int = number(
        0,
        at_least(0),
        help="Number of prefixes in every update, chosen at random; 0 for all",
        card="Prefixes drawn for each update: {}",
    )
    prefix_distillation: float = number(
        0.0,
        NOT_NEGATIVE,
        help="Weight of KL(full width's ranking of the candidates ‖ the prefix's)",
        card="Prefix distillation, weight {}",
        objective=Objective.CONTRASTIVE,
    )
    rotate: bool = switch(
        True,
        help="With several prefixes, begin by rotating the vectors "
        "([why](training.md#the-rotation-at-the-start))",
        card=NO_LINE,
    )
    layers_per_step: int = number(
        0,
        at_least(0),
        help="Number of random truncated encoders (first layers only) for every update; then "
        "`Encoder.truncate(layers=n)` still works",
        card="Encoders of fewer layers drawn for each update: {}",
        objective=Objective.CONTRASTIVE,
    )
    layer_weight: float = number(
        1.0,
        NOT_NEGATIVE,
        help="Weight of the loss of truncated encoders",
        card="Weight of the loss of encoders of fewer layers: {}",
    )
    layer_distillation: float = number(
        1.0,
        NOT_NEGATIVE,
        help="Weight of the KL divergence of a truncated encoder's vectors from the full encoder's",
        card="Layer distillation, weight {}",
    )


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings:
    """Batches, optimizer and schedule."""

    batch_size: int = number(
        32,
        at_least(2),
        help="Examples that are each other's negatives, over all processes",
        card=NO_LINE,
    )
    accumulation: int = number(1, at_least(1), help="Batches per update", card=NO_LINE)
    gradient_cache: bool = switch(
        False,
        help="[Gradient caching](https://arxiv.org/abs/2101.06983): memory that does not grow "
        "with the batch, for a second forward pass",
        card=NO_LINE,
    )
    gradient_checkpointing: bool = switch(
        False,
        help="Keep the inputs of layers only, and compute the layers again for the gradient: less "
        "memory, a third more time",
        card=NO_LINE,
    )
    chunk_tokens: int = number(
        0,
        at_least(0),
        help="Tokens in one pass through the network, padding included; 0: chosen for the device",
        card=NO_LINE,
    )
    max_tokens: int = number(
        128,
        at_least(3),
        help="Maximum tokens of a text in training; the model's own limit applies as well",
        card=NO_LINE,
    )
    epochs: int = number(3, at_least(1), help="Passes over the examples", card=NO_LINE)
    max_steps: int | None = number(
        None,
        at_least(1),
        optional=True,
        help="Number of updates, instead of `epochs`",
        card=NO_LINE,
    )
    learning_rate: float = number(5e-5, POSITIVE, help="Peak learning rate", card=NO_LINE)
    classifier_learning_rate: float = number(
        1e-3,
        POSITIVE,
        help="Peak learning rate of the classifier, which starts untrained",
        card=NO_LINE,
    )
    warmup_ratio: float = number(
        0.1,
        BELOW_ONE,
        help="Share of the updates in which the rate rises; then it falls to 0",
        card=NO_LINE,
    )
    weight_decay: float = number(
        0.01,
        NOT_NEGATIVE,
        help="Weight decay of AdamW, except for biases and norms",
        card=NO_LINE,
    )
    max_grad_norm: float = number(
        1.0, POSITIVE, help="Maximum norm of an update's gradient", card=NO_LINE
    )
    seed: int = number(
        0,
        Range(0, 2**32 - 1, SEED, "whole, ≥ 0, < 2³²", whole=True),
        help="Seed of all random choices: order, prefixes, layers, held-out examples, dropout",
        card=NO_LINE,
    )
    precision: Precision = choice(
        Precision.AUTO,
        TRAINING,
        help="`bf16`: autocast with float32 weights; `fp32`; `auto`: `bf16` where the hardware "
        "computes it natively",
        card=NO_LINE,
    )
    tf32: bool = switch(
        False,
        help="Multiply float32 matrices in TF32, which has 10 of their 23 fraction bits: faster on "
        "CUDA devices since Ampere",
        card=NO_LINE,
    )
    compile: bool = switch(
        False,
        help="Compile the network's layers with `torch.compile`, which takes half a minute at the "
        "start",
        card=NO_LINE,
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How the step that is kept is chosen."""

    dev: tuple[Path, ...] = paths(
        (),
        help="STS files to choose the best step by; labelled files in a classification",
        card=NO_LINE,
    )
    eval_every: int = number(
        100, at_least(0), help="Updates between evaluations; 0: only at the end", card=NO_LINE
    )
    keep_last: bool = switch(False, help="Keep the last step, not the best", card=NO_LINE)
    patience: int = number(
        0,
        at_least(0),
        help="Evaluations in a row without a better score after which the run stops; 0: never",
        card="Stopped early after evaluations without a better score: {}",
    )


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """Settings of the output."""

    out: Path = path(REQUIRED, help="Folder of the model", card=NO_LINE)
    checkpoint_every: int = number(
        100, at_least(0), help="Updates between checkpoints; 0 for none", card=NO_LINE
    )


# Headings in the docs, in the order in which a configuration lists its settings.
GROUPS = {
    "Data": DataSettings,
    "Model": ModelSettings,
    "Longer texts": LengtheningSettings,
    "Objective": ObjectiveSettings,
    "Objective `contrastive`": ContrastiveSettings,
    "Objective `classification`": LabelSettings,
    "Objective `distillation`": TeacherSettings,
    "Prefixes and layers": NestingSettings,
    "Optimisation": OptimizationSettings,
    "Evaluation": EvaluationSettings,
    "Output": OutputSettings,
}
