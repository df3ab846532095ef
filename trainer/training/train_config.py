"""A training run as one frozen dataclass that checks itself and is written as JSON.

A new setting needs a field here with a line in the docstring, and the code that reads it: the
option `--set` and the table in docs/training-reference.md follow from them.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.runtimes.runtime_config import Precision
from searchengine.trainer.training.rows import Augment, Reading
from searchengine.trainer.training.setting_kinds import (
    FRACTION,
    SEED,
    BelowOne,
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    at_least,
    changed,
    convert_all,
)

PRECISIONS = tuple(kind for kind in Precision if kind is not Precision.INT8)


class Objective(StrEnum):
    """Task: what is learnt from the texts."""

    CONTRASTIVE = "contrastive"  # tell pairs from other texts
    CLASSIFICATION = "classification"  # labels
    SIMILARITY = "similarity"  # scores of pairs


class Pooler(StrEnum):
    """How the vectors of tokens are pooled, by SimCSE's names; BASE keeps the model's pooling.

    CLS adds a layer with tanh, which is trained and kept; CLS_BEFORE_POOLER uses it in training
    only.
    """

    BASE = "base"
    CLS = "cls"
    CLS_BEFORE_POOLER = "cls-before-pooler"
    MEAN = "mean"


# Headings in the docs, by the first setting of each group.
GROUPS = {
    "train": "Data",
    "base": "Model",
    "window": "Longer texts",
    "objective": "Objective",
    "hard_negative_weight": "Objective `contrastive`",
    "label_weight": "Objective `classification`",
    "prefixes": "Prefixes and layers",
    "batch_size": "Optimisation",
    "dev": "Evaluation",
    "out": "Output",
}
# Defaults in words, for the docs, where the value does not say it.
DEFAULTS = {
    "columns": "by name",
    "dropout": "the base's",
    "prompts": "the base's",
    "window": "the base's",
    "prefixes": "the base model's; else its width and 512, 256, 128, 64 below it; with pooling "
    "`cls…` the width alone",
    "prefix_weights": "1 each",
}
# Sentences of the model card without their full stop, for values that are not the default, {}.
CARD = {
    "augment": "Positive of a single sentence: {}",
    "augment_share": "Share of the words left out of a positive: {}",
    "prompts": "Prompts: {}",
    "pooling": "Pooling: {}",
    "dropout": "Dropout {}",
    "window": "Window lengthened to {} tokens by position interpolation",
    "attention_group": "Shifted sparse attention in training, groups of {} tokens",
    "adapter_rank": "Low-rank adapters of the attention, rank {}, merged",
    "mlm_weight": "Masked-language-model loss, weight {}",
    "hard_negative_weight": "An anchor's own negatives weigh {}",
    "queue_size": "A queue of {} earlier vectors as further negatives",
    "prefix_weights": "Weights of the prefixes: {}",
    "layers_per_step": "Encoders of fewer layers drawn for each update: {}",
}
# Settings that are for one objective alone.
OF_OBJECTIVES = {
    **dict.fromkeys(
        (
            "augment", "hard_negative_weight", "layers_per_step", "queue_size",
        ),
        Objective.CONTRASTIVE,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run: `train` and `out` are required, docs/training-reference.md lists all.

    Lists become tuples, strings paths and choices. Raises ConfigError for values out of range, and
    for settings that exclude one another.

    Attributes:
        train: Files of examples: CSV, TSV, JSONL, Parquet; or Hugging Face datasets
        columns: Columns to read: anchor, positive, negatives; anchor, positive, score where scores
            are learnt; or text, label
        exclude: Files of sentences to leave out of training
        augment: Positive of a single sentence: `none` the sentence itself, `delete-word` without
            one of its words, `delete` or `crop` without a share of them, `next-sentence` the next
            sentence of the file
        augment_share: Share of a sentence's words that `delete` and `crop` leave out
        base: Base model: a folder, a hub name, or a name such as `starter` or `starter-768`
        prompts: Texts put before every question (an anchor) and before every document (positives,
            negatives, labelled texts), in training and whenever the stored model encodes one
        pooling: Pooling, instead of the base model's: `cls` with a tanh layer that is kept,
            `cls-before-pooler` with one in training only, `mean`
        dropout: Dropout rate of the whole network; 0 for none
        window: Tokens that the trained model reads; above the base's positions these are
            [interpolated](special-encoders.md#longer-texts)
        attention_group: Tokens in a group of shifted sparse attention, for texts longer than that
            in training; 0: full attention
        adapter_rank: Rank of low-rank adapters ([LoRA](https://arxiv.org/abs/2106.09685)) of the
            attention, trained in place of the network and merged in the end; 0: train all weights
        objective: Task: tell pairs from other texts, predict the labels of texts, or order pairs
            by their scores
        temperature: Temperature, by which cosines are divided
        mlm_weight: Weight of a masked-language-model loss on the anchors, which masks 15 % of their
            tokens; the mean over all masked tokens of a batch
        hard_negative_weight: α, the weight of an anchor's hard negatives
        queue_size: Positives of earlier batches as further negatives, encoded by a momentum
            encoder ([MoCo](https://arxiv.org/abs/1911.05722)), momentum 0.999
        label_weight: λ in (1−λ) · cross-entropy + λ · supervised contrastive
        label_temperature: Temperature of the supervised contrastive loss
        prefixes: Trained prefix lengths, descending, the full width first; it alone: no prefixes
        prefix_weights: Weight of each prefix in the loss and in choosing the best step
        rotate: With several prefixes, begin by rotating the vectors
            ([why](training.md#the-rotation-at-the-start))
        layers_per_step: Number of random truncated encoders (first layers only) for every update,
            with one prefix drawn for all; then `Encoder.truncate(layers=n)` still works
        batch_size: Examples that are each other's negatives, over all processes
        accumulation: Batches per update
        gradient_cache: [Gradient caching](https://arxiv.org/abs/2101.06983): memory that does not
            grow with the batch, for a second forward pass
        max_tokens: Maximum tokens of a text in training; the model's own limit applies as well
        epochs: Passes over the examples; at least 80 updates on labels
        max_steps: Number of updates, instead of `epochs`
        learning_rate: Peak learning rate
        warmup_ratio: Share of the updates in which the rate rises
        seed: Seed of all random choices: order, prefixes, layers, held-out examples, dropout
        precision: `bf16` or `fp16`: autocast with float32 weights, in fp16 with a scaled loss, for
            GPUs that only emulate bf16; `fp32`; `auto`: `bf16` where the hardware computes it
            natively, else `fp32`
        dev: Files to choose the best step by: pairs with scores (STS) or without; labelled texts in
            a classification
        eval_every: Updates between evaluations; 0: only at the end
        keep_last: Keep the last step, not the best
        out: Folder of the model
    """

    # Data: files, and how an example becomes a training pair.
    train: tuple[Path, ...]
    columns: tuple[str, ...] = ()
    exclude: tuple[Path, ...] = ()
    augment: Augment = Augment.NONE
    augment_share: BelowOne = 0.1

    # Model: where training starts, and what it changes.
    base: str = "starter-768"
    prompts: Mapping[str, str] = field(default_factory=dict)
    pooling: Pooler = Pooler.BASE
    dropout: BelowOne | None = None

    # Longer texts: LongLoRA, arXiv 2309.12307.
    window: Annotated[int, at_least(3)] | None = None
    attention_group: NotNegativeInt = 0
    adapter_rank: NotNegativeInt = 0

    # Objective: what is learnt, and settings of several objectives.
    objective: Objective = Objective.CONTRASTIVE
    temperature: Positive = 0.05
    mlm_weight: NotNegative = 0.0

    # Objective contrastive: the candidates, and which of them are negatives.
    hard_negative_weight: Positive = 1.0
    queue_size: NotNegativeInt = 0

    # Objective classification: supervised contrastive, arXiv 2011.01403.
    label_weight: Annotated[float, FRACTION] = 0.9
    label_temperature: Positive = 0.3

    # Prefixes and layers: Matryoshka, arXiv 2205.13147; over layers too, arXiv 2402.14776.
    prefixes: tuple[PositiveInt, ...] = ()
    prefix_weights: tuple[NotNegative, ...] = ()
    rotate: bool = True
    layers_per_step: NotNegativeInt = 0

    # Optimisation: batches, optimizer and schedule.
    batch_size: Annotated[int, at_least(2)] = 32
    accumulation: PositiveInt = 1
    gradient_cache: bool = False
    max_tokens: Annotated[int, at_least(3)] = 128
    epochs: PositiveInt = 3
    max_steps: PositiveInt | None = None
    learning_rate: Positive = 5e-5
    warmup_ratio: BelowOne = 0.1
    seed: Annotated[int, SEED] = 0
    precision: Annotated[Precision, PRECISIONS] = Precision.AUTO

    # Evaluation: how the step that is kept is chosen.
    dev: tuple[Path, ...] = ()
    eval_every: NotNegativeInt = 100
    keep_last: bool = False

    # Output.
    out: Path

    def __post_init__(self) -> None:
        convert_all(self)
        self._check_values()
        for conflict in self._conflicts():
            raise ConfigError(f"{conflict}: leave one of them out")
        if not self.train:
            raise ConfigError("train names no file: expected at least one")
        trained = {path.resolve() for path in self.train}
        if learnt := next((path for path in self.dev if path.resolve() in trained), None):
            raise ConfigError(
                f"dev is {learnt}, which is a file of train, so its scores would only say what was "
                "learnt: give another file, or leave dev out, and examples are held out"
            )

    def _check_values(self) -> None:
        """Refuse values that do not fit one another, or that no range describes."""
        lengths, weights = self.prefixes, self.prefix_weights
        if list(lengths) != sorted(set(lengths), reverse=True):
            raise ConfigError(
                f"prefixes is {', '.join(map(str, lengths))}: expected different lengths, "
                "descending, such as 768,256,64"
            )
        if weights and (len(weights) != len(lengths) or max(weights) == 0):
            raise ConfigError(
                f"prefix_weights has {len(weights)} numbers for {len(lengths)} prefixes: give "
                "prefixes, and one weight for each, none negative and not all 0"
            )
        if self.window is not None and self.max_tokens < self.window:
            raise ConfigError(
                f"max_tokens is {self.max_tokens} with window {self.window}: expected "
                f"{self.window} or more, as positions that no text reaches are not trained"
            )
        if self.attention_group == 1:
            raise ConfigError("attention_group is 1: expected 2 or more tokens, or 0 for none")
        if len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"columns is {', '.join(self.columns)}: expected different names, anchor first, "
                "then positive, then negatives"
            )

    def _conflicts(self) -> Iterator[str]:
        """Settings that exclude one another, or that have no effect beside others."""
        labels = self.objective is Objective.CLASSIFICATION
        for name in changed(self):
            objective = OF_OBJECTIVES.get(name, self.objective)
            if labels and objective is Objective.CONTRASTIVE:
                yield f"objective classification has no pairs for {name}"
            elif objective is not self.objective:
                yield f"{name} needs objective {objective}"
        dropped = self.pooling is Pooler.CLS_BEFORE_POOLER
        rules = (
            (labels and dropped,
             "a classifier would read the layer that pooling cls-before-pooler drops"),
            (len(self.prefixes) > 1 and dropped,
             "prefixes would be trained behind the layer that pooling cls-before-pooler drops"),
            (self.queue_size and self.layers_per_step, "queue_size has no layers_per_step"),
            (labels and "query" in self.prompts,
             "labelled texts get the document prompt, so no query prompt would be learnt"),
        )  # fmt: skip
        yield from (conflict for wrong, conflict in rules if wrong)

    @property
    def reading(self) -> Reading:
        """What is read of the files besides texts."""
        if self.objective is Objective.CLASSIFICATION:
            return Reading.LABELS
        return Reading.SCORES if self.objective is Objective.SIMILARITY else Reading.TEXTS

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {name: _as_json(value) for name, value in asdict(self).items()}

    def to_json(self) -> str:
        """The configuration as a JSON object; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The configuration in a JSON object; raises ConfigError for unknown or missing names."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the training configuration is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError("the training configuration is not a JSON object")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration in a JSON object already read. Raises ConfigError as `from_json`."""
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            near = difflib.get_close_matches(unknown[0], known, 1)
            raise ConfigError(
                f"unknown in a training configuration: {', '.join(unknown)}; "
                + (f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}")
            )
        if missing := [name for name in ("train", "out") if name not in values]:
            raise ConfigError(f"the training configuration lacks {', '.join(missing)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"the training configuration has a wrong type: {error}") from error


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return str(value) if isinstance(value, Path | StrEnum) else value
