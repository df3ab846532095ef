"""A training run as one frozen dataclass that checks itself and is written as JSON.

A new setting is one field here and the code that reads it: `--set` and the table in
docs/training-reference.md follow from the field. A preset names the settings of a paper, or what a
kind of data needs; what it does not name has the default, and whatever is given beside it wins.
"""

import difflib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.reading import integer
from searchengine.trainer.runtimes.runtime_config import Precision


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
    """How token vectors are pooled, by SimCSE's names.

    CLS adds a layer with tanh, which is kept; CLS_BEFORE_POOLER uses it in training only.
    """

    BASE = "base"
    CLS = "cls"
    CLS_BEFORE_POOLER = "cls-before-pooler"
    MEAN = "mean"


class Kind(NamedTuple):
    """Values of a setting: in words, and what reads one, or raises."""

    expected: str
    read: Callable[[Any], Any]

    def __call__(self, default: Any, meaning: str, group: str = "") -> Any:
        """A field of TrainConfig.

        default: MISSING for a required setting; None and () are what the base or the files give.
        meaning: for the table of settings. group: a heading above the setting there.
        """
        return field(default=default, metadata={"kind": self, "meaning": meaning, "group": group})


def number(low: float, high: float = 1e300, expected: str = "") -> Kind:
    """Numbers from `low` to `high`, both included; whole ones if `low` is."""

    def read(value: Any) -> float:
        exact = value if isinstance(value, float) and isinstance(low, float) else integer(value)
        if exact is None or not low <= exact <= high:
            raise ValueError
        return type(low)(exact)

    return Kind(expected or f"whole number ≥ {low}", read)


def one_of(*options: StrEnum) -> Kind:
    """Members of an enum, or their texts."""
    return Kind(", ".join(f"`{option}`" for option in options), {o: o for o in options}.__getitem__)


def many(kind: Kind) -> Kind:
    """Lists of values, stored as tuples."""

    def read(values: Any) -> tuple[Any, ...]:
        if isinstance(values, str):  # no list of letters
            raise TypeError
        return tuple(map(kind.read, values))

    return Kind(f"list; {kind.expected}", read)


text, path = Kind("text", os.fspath), Kind("path", Path)
flag = Kind("true, false", {True: True, False: False}.__getitem__)
count, size = number(0), number(1)
positive = number(1e-300, expected="number > 0")
not_negative = number(0.0, expected="number ≥ 0")
below_one = number(0.0, 1 - 1e-12, "number ≥ 0, < 1")
AUTOCAST = Precision.AUTO, Precision.FP32, Precision.BF16
# Settings that the objective contrastive alone has.
_CONTRASTIVE = {"augment", "hard_negative_weight", "queue_size", "layers_per_step"}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run: `train` and `out` are required, docs/training-reference.md lists all.

    Lists become tuples, strings paths and choices. Raises ConfigError for values out of range, and
    for settings that exclude one another.
    """

    train: tuple[Path, ...] = many(path)(MISSING, "[Files](training.md#files) of examples", "Data")
    columns: tuple[str, ...] = many(text)((), "Columns to read, where they have other names")
    exclude: tuple[Path, ...] = many(path)((), "Files of texts to leave out of training")
    augment: Augment = one_of(*Augment)(
        Augment.NONE, "Positive of a sentence; SimCSE (arXiv 2104.08821) scores less with each"
    )
    augment_share: float = below_one(0.1, "Share of the words that `delete` and `crop` leave out")
    base: str = text("starter", "Folder, hub name, or a name such as `starter-768`", "Model")
    pooling: Pooler = one_of(*Pooler)(
        Pooler.BASE, "SimCSE's: `cls` keeps its tanh layer, `cls-before-pooler` drops it in the end"
    )
    dropout: float | None = below_one(None, "Dropout rate, in place of the base's")
    window: int | None = number(3)(
        None, "Tokens that the model reads ([longer texts](training.md#longer-texts))"
    )
    attention_group: int = count(
        0, "Tokens in a group of attention (LongLoRA, arXiv 2309.12307); 0: all"
    )
    adapter_rank: int = count(
        0, "Train adapters (LoRA, arXiv 2106.09685) and merge them; 0: the network"
    )
    objective: Objective = one_of(*Objective)(
        Objective.CONTRASTIVE, "Tell pairs from other texts, learn labels, or scores", "Objective"
    )
    temperature: float = positive(0.05, "Cosines are divided by it; 0.05 is SimCSE's best")
    mlm_weight: float = not_negative(
        0.0, "Weight of a masked-language-model loss; SimCSE has 0.1 for transfer tasks"
    )
    hard_negative_weight: float = positive(1.0, "α of an anchor's own negatives; SimCSE: 1")
    queue_size: int = count(
        0, "Earlier positives as negatives, momentum 0.999 (MoCo, arXiv 1911.05722)"
    )
    label_weight: float = number(0.0, 1.0, "0 to 1")(
        0.9, "λ of supervised contrastive (arXiv 2011.01403), 1−λ of cross-entropy"
    )
    label_temperature: float = positive(0.3, "Temperature of that loss; theirs")
    prefixes: tuple[int, ...] = many(size)(
        (),
        "Trained lengths (Matryoshka, arXiv 2205.13147), the full width first or alone. By default "
        "the base's, else its width and 512, 256, 128, 64 below it; with `cls…` its width",
        "Prefixes and layers",
    )
    prefix_weights: tuple[float, ...] = many(not_negative)((), "In the loss and score; else 1")
    layers_per_step: int = count(
        0, "Layers and one prefix drawn for an update (2D Matryoshka, arXiv 2402.14776)"
    )
    rotate: bool = flag(True, "Begin with a [rotation](training.md#the-rotation-at-the-start)")
    batch_size: int = number(2)(32, "Examples that are each other's negatives", "Optimisation")
    gradient_cache: bool = flag(False, "Two passes in little memory (arXiv 2101.06983)")
    max_tokens: int = number(3)(128, "Maximum tokens of a text in training")
    epochs: int = size(3, "Passes over the examples; on labels at least 80 updates, or 40 passes")
    max_steps: int | None = size(None, "Number of updates, in place of `epochs`")
    learning_rate: float = positive(5e-5, "Peak learning rate of AdamW")
    warmup_ratio: float = below_one(0.1, "Share of the updates in which it rises")
    seed: int = number(0, 2**32 - 1, "whole number ≥ 0, < 2³²")(0, "Seed of all random choices")
    precision: Precision = one_of(*AUTOCAST)(
        Precision.AUTO, "Autocast; `auto`: `bf16` where the hardware computes it, else `fp32`"
    )
    dev: tuple[Path, ...] = many(path)(
        (), "[Files](training.md#better-worse-or-the-same) to judge by"
    )
    eval_every: int = count(100, "Updates between evaluations; 0: only at the end")
    out: Path = path(MISSING, "Folder of the model")

    def __post_init__(self) -> None:
        for item in fields(self):
            kind, value = item.metadata["kind"], getattr(self, item.name)
            try:
                if value is not None or item.default is not None:
                    object.__setattr__(self, item.name, kind.read(value))
            except (LookupError, TypeError, ValueError):
                message = f"{item.name} is {value!r}: expected {kind.expected}"
                raise ConfigError(message) from None
        for problem in self._problems():
            raise ConfigError(problem)

    def _problems(self) -> Iterator[str]:
        """What is wrong with values of the right kinds, alone or beside others."""
        labels = self.objective is Objective.CLASSIFICATION
        lengths, weights = self.prefixes, self.prefix_weights
        trained = {path.resolve() for path in self.train}
        problems = {
            "train names no file: expected at least one": not self.train,
            "dev names a file of train, so its scores would only say what was learnt: give another "
            "file, or none, and examples are held out": (
                not trained.isdisjoint(path.resolve() for path in self.dev)
            ),
            f"prefixes is {in_words(lengths)}: expected different lengths, descending": (
                list(lengths) != sorted(set(lengths), reverse=True)
            ),
            f"prefix_weights has {len(weights)} numbers for {len(lengths)} prefixes: give one for "
            "each, not all 0": weights and (len(weights) != len(lengths) or not any(weights)),
            f"max_tokens is {self.max_tokens} with window {self.window}: expected {self.window} or "
            "more, as positions that no text reaches are not trained": (
                self.max_tokens < (self.window or 0)
            ),
            "queue_size has no layers_per_step: leave one of them out": (
                self.queue_size and self.layers_per_step
            ),
            "pooling cls-before-pooler drops its layer in the end: choose another for labels or "
            "several prefixes": (
                self.pooling is Pooler.CLS_BEFORE_POOLER and (labels or len(lengths) > 1)
            ),
        }
        yield from (problem for problem, wrong in problems.items() if wrong)
        if self.objective is not Objective.CONTRASTIVE:
            for item in fields(self):
                if item.name in _CONTRASTIVE and getattr(self, item.name) != item.default:
                    yield f"{item.name} needs objective contrastive: leave one of them out"

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
            raise ConfigError(f"the training configuration must set {', '.join(missing)}")
        return cls(**values)


def in_words(value: Any) -> str:
    """A value as `--set` takes it; nothing for none."""
    if value in (None, ()):
        return ""
    return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def settings_table() -> str:
    """All settings as a Markdown table."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for item in fields(TrainConfig):
        kind, meaning, group = item.metadata.values()
        rows += [f"| **{group}** | | | |"] if group else []
        default = "required" if item.default is MISSING else in_words(item.default)
        rows.append(f"| `{item.name}` | {default} | {kind.expected} | {meaning} |")
    return "\n".join(rows)


class Preset(NamedTuple):
    """summary: its data, with its paper. harm: what it costs an encoder that is tuned already."""

    summary: str
    settings: dict[str, Any]
    harm: str = ""


# Spearman's correlation, of the base as it is shipped and of the result.
_HARM = "harms a tuned encoder: all-MiniLM-L6-v2 falls from .867 to {} on STS-B dev"
# Table A.1 of the paper and the training script beside it.
_SIMCSE = dict(base="bert-base-uncased", max_tokens=32, warmup_ratio=0.0, eval_every=125)
# As sentence-transformers' documentation trains the model whose figures it publishes (98.37 % of
# the full width kept at 64), with a scale of 20.
_NLI = dict(base="microsoft/mpnet-base", batch_size=128, epochs=1)
PRESETS = {  # from the papers' base models, on the model hub; "starter" needs no network
    "simcse-unsup": Preset(
        "Sentences alone, from a plain BERT (SimCSE, arXiv 2104.08821)",
        # One million sentences of Wikipedia, CLS with an MLP in training only.
        _SIMCSE | dict(pooling="cls-before-pooler", batch_size=64, epochs=1, learning_rate=3e-5),
        harm=_HARM.format(".844") + ", by .04 on test",
    ),
    "simcse-sup": Preset(
        "Pairs or triplets of NLI, from a plain BERT (SimCSE, arXiv 2104.08821)",
        _SIMCSE | dict(pooling="cls", batch_size=512),
        harm=_HARM.format(".809"),
    ),
    "matryoshka": Preset(
        "Pairs or triplets, over prefixes, from a plain network (Matryoshka, arXiv 2205.13147)",
        _NLI,
    ),
    "matryoshka-2d": Preset(
        "The same over numbers of layers too (2D Matryoshka, arXiv 2402.14776)",
        _NLI | dict(layers_per_step=1),
    ),
    "labels": Preset(
        "Few labelled texts of each class (supervised contrastive, arXiv 2011.01403)",
        # Large batches hold other texts of each class, as the pairs of SetFit (arXiv 2209.11055).
        # Chosen on questions of TREC's training set.
        dict(objective="classification", label_temperature=0.1, batch_size=64),
    ),
    "pairs": Preset(
        "Questions and documents of your domain, from a tuned encoder (arXiv 1705.00652)",
        # A tuned encoder has little to learn: a low rate, and a judgement often.
        dict(base="starter", batch_size=64, max_tokens=256, learning_rate=2e-5, eval_every=50),
    ),
    "scored-pairs": Preset(
        "Pairs with scores, whose order is learnt (CoSENT, doi 10.1109/TASLP.2024.3402087)",
        # As sentence-transformers' example trains it on STS-B; the rate of arXiv 1908.10084.
        dict(base="bert-base-uncased", objective="similarity")
        | dict(batch_size=16, epochs=4, learning_rate=2e-5),
    ),
    "longlora": Preset(
        "Pairs of long documents: a window of 2,048 tokens (LongLoRA, arXiv 2309.12307)",
        # Section 4.1: groups of a quarter, adapters of rank 8. Its rate is for networks of 7
        # billion weights and its batch for 8 GPUs; these are for the starter. Dropout would keep
        # torch from its fast attention.
        dict(base="sentence-transformers/all-MiniLM-L6-v2", prefixes=[384], dropout=0.0)
        | dict(window=2048, max_tokens=2048, attention_group=512, adapter_rank=8)
        | dict(batch_size=16, epochs=1, learning_rate=2e-4),
    ),
}


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset. Raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}: expected one of {', '.join(PRESETS)}")
    return dict(PRESETS[name].settings)
