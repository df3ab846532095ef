"""A training run as one frozen dataclass that checks itself and is written as JSON.

A new setting is one field here and the code that reads it: `--set` and the table in
docs/training-reference.md follow from the field.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.runtimes.runtime_config import Precision
from searchengine.trainer.training import setting_kinds as kinds
from searchengine.trainer.training.setting_kinds import (
    BelowOne,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Seed,
    Size,
    at_least,
    setting,
)

PromptRole = Literal["query", "document"]
PRECISIONS = (Precision.AUTO, Precision.FP32, Precision.BF16)


class Augment(StrEnum):
    """How a sentence's positive differs from it, besides the dropout mask."""

    NONE = "none"  # the sentence itself
    DELETE_WORD = "delete-word"  # without one of its words
    DELETE = "delete"  # without a share of its words
    CROP = "crop"  # a run of its words, without a share of them
    NEXT_SENTENCE = "next-sentence"  # the next sentence in the file


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


# Settings that the objective contrastive alone has.
_CONTRASTIVE = ("augment", "hard_negative_weight", "queue_size", "layers_per_step")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run: `train` and `out` are required, docs/training-reference.md lists all.

    Lists become tuples, strings paths and choices. Raises ConfigError for values out of range, and
    for settings that exclude one another.
    """

    train: tuple[Path, ...] = setting(MISSING, "[Files](training.md#files) of examples", "Data")
    columns: tuple[str, ...] = setting((), "Columns to read, where they have other names")
    exclude: tuple[Path, ...] = setting((), "Files of texts to leave out of training")
    augment: Augment = setting(
        Augment.NONE,
        "Positive of a sentence; [SimCSE](https://arxiv.org/abs/2104.08821) scores less with each",
    )
    augment_share: BelowOne = setting(0.1, "Share of the words that `delete` and `crop` leave out")
    base: str = setting("starter", "Folder, hub name, or a name such as `starter-768`", "Model")
    prompts: Mapping[PromptRole, str] = setting(
        {}, "Text before each query (an anchor) and document, also in the trained model"
    )
    pooling: Pooler = setting(
        Pooler.BASE, "SimCSE's: `cls` keeps its tanh layer, `cls-before-pooler` drops it in the end"
    )
    dropout: BelowOne | None = setting(None, "Dropout rate, in place of the base's")
    window: Annotated[int, at_least(3)] | None = setting(
        None, "Tokens that the model reads ([longer texts](special-encoders.md#longer-texts))"
    )
    attention_group: Count = setting(
        0, "Tokens in a group of attention ([LongLoRA](https://arxiv.org/abs/2309.12307)); 0: all"
    )
    adapter_rank: Count = setting(
        0,
        "Train adapters ([LoRA](https://arxiv.org/abs/2106.09685)) and merge them; 0: the network",
    )
    objective: Objective = setting(
        Objective.CONTRASTIVE, "Tell pairs from other texts, learn labels, or scores", "Objective"
    )
    temperature: Positive = setting(0.05, "Cosines are divided by it; 0.05 is SimCSE's best")
    mlm_weight: NotNegative = setting(
        0.0, "Weight of a masked-language-model loss; SimCSE has 0.1 for transfer tasks"
    )
    hard_negative_weight: Positive = setting(1.0, "α of an anchor's own negatives; SimCSE: 1")
    queue_size: Count = setting(
        0,
        "Earlier positives as negatives, momentum 0.999 ([MoCo](https://arxiv.org/abs/1911.05722))",
    )
    label_weight: Fraction = setting(
        0.9,
        "λ of supervised contrastive ([Gunel et al.](https://arxiv.org/abs/2011.01403)), 1−λ of "
        "cross-entropy",
    )
    label_temperature: Positive = setting(0.3, "Temperature of that loss; theirs")
    prefixes: tuple[Size, ...] = setting(
        (),
        "Trained lengths ([Matryoshka](https://arxiv.org/abs/2205.13147)), the full width first or "
        "alone. By default the base's, else its width and 512, 256, 128, 64 below it; with `cls…` "
        "its width",
        "Prefixes and layers",
    )
    prefix_weights: tuple[NotNegative, ...] = setting((), "In the loss and in the score; else 1")
    layers_per_step: Count = setting(
        0, "Layers and one prefix drawn for an update ([2D](https://arxiv.org/abs/2402.14776))"
    )
    rotate: bool = setting(True, "Begin with a [rotation](training.md#the-rotation-at-the-start)")
    batch_size: Annotated[int, at_least(2)] = setting(
        32, "Examples that are each other's negatives", "Optimisation"
    )
    accumulation: Size = setting(1, "Batches per update")
    gradient_cache: bool = setting(
        False, "Two passes in little memory ([Gao et al.](https://arxiv.org/abs/2101.06983))"
    )
    max_tokens: Annotated[int, at_least(3)] = setting(128, "Maximum tokens of a text in training")
    epochs: Size = setting(
        3, "Passes over the examples; on labels at least 80 updates, or 40 passes"
    )
    max_steps: Size | None = setting(None, "Number of updates, in place of `epochs`")
    learning_rate: Positive = setting(5e-5, "Peak learning rate of AdamW")
    warmup_ratio: BelowOne = setting(0.1, "Share of the updates in which it rises")
    seed: Seed = setting(0, "Seed of all random choices")
    precision: Annotated[Precision, PRECISIONS] = setting(
        Precision.AUTO, "Autocast; `auto`: `bf16` where the hardware computes it, else `fp32`"
    )
    dev: tuple[Path, ...] = setting((), "[Files](training.md#better-worse-or-the-same) to judge by")
    eval_every: Count = setting(100, "Updates between evaluations; 0: only at the end")
    out: Path = setting(MISSING, "Folder of the model")

    def __post_init__(self) -> None:
        kinds.convert_all(self)
        for problem in self._problems():
            raise ConfigError(problem)

    def _problems(self) -> Iterator[str]:
        """What is wrong with values that fit their types, alone or beside others."""
        labels = self.objective is Objective.CLASSIFICATION
        lengths, weights = self.prefixes, self.prefix_weights
        trained = {path.resolve() for path in self.train}
        problems = {
            "train names no file: expected at least one": not self.train,
            "dev names a file of train, so its scores would only say what was learnt: give another "
            "file, or none, and examples are held out": any(
                p.resolve() in trained for p in self.dev
            ),
            f"columns is {', '.join(self.columns)}: expected different names": (
                len(set(self.columns)) < len(self.columns)
            ),
            f"prefixes is {kinds.in_words(lengths)}: expected different lengths, descending": (
                list(lengths) != sorted(set(lengths), reverse=True)
            ),
            f"prefix_weights has {len(weights)} numbers for {len(lengths)} prefixes: give one for "
            "each, not all 0": (weights and (len(weights) != len(lengths) or max(weights) == 0)),
            f"max_tokens is {self.max_tokens} with window {self.window}: expected {self.window} or "
            "more, as positions that no text reaches are not trained": (
                self.max_tokens < (self.window or 0)
            ),
            "attention_group is 1: expected 2 or more, or 0 for all": self.attention_group == 1,
            "queue_size has no layers_per_step: leave one of them out": (
                self.queue_size and self.layers_per_step
            ),
            "pooling cls-before-pooler drops its layer in the end: choose another for labels or "
            "several prefixes": (
                self.pooling is Pooler.CLS_BEFORE_POOLER and (labels or len(lengths) > 1)
            ),
            "prompts has a query, but labelled texts get the document prompt: leave it out": (
                labels and "query" in self.prompts
            ),
        }
        yield from (problem for problem, wrong in problems.items() if wrong)
        if self.objective is not Objective.CONTRASTIVE:
            for name in kinds.changed(self).keys() & _CONTRASTIVE:
                yield f"{name} needs objective contrastive: leave one of them out"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; `from_dict` reads them back."""
        return dict(json.loads(json.dumps(asdict(self), default=str)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration in a JSON object. Raises ConfigError for unknown or missing names."""
        known = [item.name for item in fields(cls)]
        if unknown := sorted(values.keys() - set(known)):
            near = difflib.get_close_matches(unknown[0], known, 1)
            raise ConfigError(
                f"unknown in a training configuration: {', '.join(unknown)}; "
                + (f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}")
            )
        if missing := [name for name in ("train", "out") if name not in values]:
            raise ConfigError(f"the training configuration lacks {', '.join(missing)}")
        return cls(**values)
