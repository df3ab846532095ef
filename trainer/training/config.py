"""What a training run is told: one frozen dataclass that checks itself and is written as JSON."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from trainer.errors import ConfigError
from trainer.runtimes.config import TRAINING, Precision
from trainer.training.data.positives import Augment, Kind


class Objective(StrEnum):
    """What is learnt: to tell pairs from other texts, or labels."""

    CONTRASTIVE = "contrastive"
    CLASSIFICATION = "classification"


class Pooler(StrEnum):
    """How the vectors of tokens become one, as SimCSE names them; BASE leaves the model as it is.

    CLS has a layer with tanh behind it that is trained and kept; CLS_BEFORE_POOLER has it in
    training only. FIRST_LAST and LAST_TWO average two layers, then all tokens.
    """

    BASE = "base"
    CLS = "cls"
    CLS_BEFORE_POOLER = "cls-before-pooler"
    MEAN = "mean"
    FIRST_LAST = "first-last"
    LAST_TWO = "last-two"


_PATHS = ("train", "exclude", "dev")
_LISTS = (*_PATHS, "columns", "expects", "prefixes", "prefix_weights")
_CHOICES: dict[str, type[StrEnum]] = {
    "objective": Objective,
    "pooling": Pooler,
    "augment": Augment,
    "precision": Precision,
}
# The least a whole number may be.
_WHOLE = {
    "batch_size": 2,
    "accumulation": 1,
    "chunk_tokens": 0,
    "queue_size": 0,
    "epochs": 1,
    "max_tokens": 3,
    "prefixes_per_step": 0,
    "layers_per_step": 0,
    "encoders": 1,
    "seed": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
}
_ABOVE_ZERO = (
    "temperature",
    "label_temperature",
    "learning_rate",
    "classifier_learning_rate",
    "max_grad_norm",
    "hard_negative_weight",
)
_NOT_NEGATIVE = (
    "weight_decay",
    "mixup",
    "mlm_weight",
    "prefix_distillation",
    "layer_weight",
    "layer_distillation",
)
_OPTIONAL = ("dropout", "mask_above")
_SWITCHES = (
    "fixed_dropout",
    "nested",
    "rotate",
    "gradient_cache",
    "keep_last",
    "head_only",
    "trust_remote_code",
)
_SHARES = ("augment_share", "warmup_ratio", "label_smoothing", "mlm_probability", "queue_momentum")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training run. docs/training.md says what each setting does, and which paper it is from.

    train: TSV or JSONL files of examples. out: the model's folder. base: what to start from, as
    `Encoder.load` takes it. columns: the columns to read, where their names do not say. expects:
    the kinds of examples that the files may hold; () for any. exclude: files whose sentences must
    not be trained on. dev: STS files that choose the best step (labelled ones in a
    classification); without, a seeded tenth of the examples is held out.

    pooling, dropout: in place of the base's. augment, augment_share: how a sentence alone gets its
    positive. fixed_dropout: one mask for both. encoders: 2 for one that reads anchors and one that
    reads the rest; the first is kept. temperature: cosines are divided by it.
    hard_negative_weight: α of an anchor's own negatives. mask_above: a candidate whose cosine to
    the anchor is above is no negative. mlm_weight, mlm_probability: masked-language-model loss.

    label_weight: λ of (1−λ)·cross-entropy + λ·supervised contrastive, whose temperature is
    label_temperature. label_smoothing; mixup: α of its Beta distribution, 0 for none.

    nested: train prefixes too, not the full width alone. prefixes: their lengths, descending, full
    width first; () for the base model's, or 512, 256, 128 and 64 below its width where it names
    none. prefix_weights: one per prefix, in the loss and in choosing the best step; () for 1.
    prefixes_per_step: that many drawn for an update; 0 for all. prefix_distillation: weight of the
    loss that draws a prefix's ranking to the full width's. rotate: with several prefixes, begin by
    turning the vectors so that the strongest axes come first (`training.head`). layers_per_step:
    shallower encoders that learn in an update, with layer_weight and layer_distillation.

    batch_size: examples that are told apart, over all processes; one update takes batch_size ·
    accumulation. gradient_cache: memory that does not grow with the batch, for a second forward
    pass. chunk_tokens: tokens in a forward pass, 0 for the device's usual. queue_size,
    queue_momentum: vectors of earlier batches as further negatives. max_steps: updates, in place of
    epochs. max_tokens: a text is cut there while training. eval_every, checkpoint_every: in
    updates; 0 for only at the end, and never. keep_last: the last step, not the best. head_only:
    train the Dense layers, not the network. trust_remote_code: as for `Encoder.load`.
    """

    train: tuple[Path, ...]
    out: Path
    base: str = "starter-768"
    objective: Objective = Objective.CONTRASTIVE
    columns: tuple[str, ...] = ()
    expects: tuple[Kind, ...] = ()
    exclude: tuple[Path, ...] = ()
    dev: tuple[Path, ...] = ()
    pooling: Pooler = Pooler.BASE
    dropout: float | None = None
    augment: Augment = Augment.NONE
    augment_share: float = 0.1
    fixed_dropout: bool = False
    encoders: int = 1
    temperature: float = 0.05
    hard_negative_weight: float = 1.0
    mask_above: float | None = None
    mlm_weight: float = 0.0
    mlm_probability: float = 0.15
    label_weight: float = 0.9
    label_temperature: float = 0.3
    label_smoothing: float = 0.0
    mixup: float = 0.0
    nested: bool = True
    prefixes: tuple[int, ...] = ()
    prefix_weights: tuple[float, ...] = ()
    prefixes_per_step: int = 0
    prefix_distillation: float = 0.0
    rotate: bool = True
    layers_per_step: int = 0
    layer_weight: float = 1.0
    layer_distillation: float = 1.0
    batch_size: int = 32
    accumulation: int = 1
    gradient_cache: bool = False
    chunk_tokens: int = 0
    queue_size: int = 0
    queue_momentum: float = 0.999
    epochs: int = 3
    max_steps: int | None = None
    learning_rate: float = 5e-5
    classifier_learning_rate: float = 1e-3
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_tokens: int = 128
    seed: int = 0
    eval_every: int = 100
    checkpoint_every: int = 100
    keep_last: bool = False
    precision: Precision = Precision.AUTO
    head_only: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        self._convert()
        self._check_numbers()
        self._check_prefixes()
        self._check_together()
        if not self.train:
            raise ConfigError("train names no file: expected at least one TSV or JSONL file")
        if len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"columns is {', '.join(self.columns)}: expected different names, anchor first, "
                "then positive, then negatives"
            )

    def _convert(self) -> None:
        """Lists to tuples, strings to paths and choices; what JSON cannot say."""
        for name in _LISTS:
            value = getattr(self, name)
            if isinstance(value, str | Path) or not hasattr(value, "__iter__"):
                raise ConfigError(f'{name} is {str(value)!r}: expected a list, ["…"] in JSON')
            made = tuple(Path(v) for v in value) if name in _PATHS else tuple(value)
            object.__setattr__(self, name, made)
        object.__setattr__(self, "out", Path(self.out))
        object.__setattr__(self, "base", str(self.base))
        for name, choice in _CHOICES.items():
            object.__setattr__(self, name, _chosen(name, choice, getattr(self, name)))
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected true or false")
        if self.precision not in TRAINING:
            raise ConfigError(
                f"precision is {self.precision}: expected one of {', '.join(TRAINING)} to train in"
            )
        kinds = tuple(_chosen("expects", Kind, value) for value in self.expects)
        object.__setattr__(self, "expects", kinds)

    def _check_numbers(self) -> None:
        for name, least in _WHOLE.items():
            _at_least(name, getattr(self, name), least)
        if self.max_steps is not None:
            _at_least("max_steps", self.max_steps, 1)
        if self.encoders > 2:
            raise ConfigError(f"encoders is {self.encoders}: expected 1 or 2")
        if self.seed >= 2**32:
            raise ConfigError(f"seed is {self.seed}: expected less than {2**32}")
        for names, low, high, expected in (
            (_ABOVE_ZERO, 1e-300, 1e300, "a number more than 0"),
            (_NOT_NEGATIVE, 0.0, 1e300, "a number of 0 or more"),
            (_SHARES, 0.0, 1 - 1e-12, "0 or more and less than 1"),
            (("dropout",), 0.0, 1 - 1e-12, "0 or more and less than 1"),
            (("label_weight",), 0.0, 1.0, "0 to 1"),
            (("mask_above",), -1.0, 1.0, "a cosine, −1 to 1"),
        ):
            for name in names:
                value = getattr(self, name)
                if value is None and name in _OPTIONAL:
                    continue
                if type(value) not in (int, float) or not low <= value <= high:
                    raise ConfigError(f"{name} is {value}: expected {expected}")

    def _check_prefixes(self) -> None:
        lengths, weights = self.prefixes, self.prefix_weights
        if any(type(p) is not int or p < 1 for p in lengths) or list(lengths) != sorted(
            set(lengths), reverse=True
        ):
            raise ConfigError(
                f"prefixes is {', '.join(map(str, lengths))}: expected different lengths, "
                "descending, such as 768,256,64"
            )
        if weights and (len(weights) != len(lengths) or min(weights) < 0 or max(weights) == 0):
            raise ConfigError(
                f"prefix_weights has {len(weights)} numbers for {len(lengths)} prefixes: give "
                "prefixes, and one weight for each, none negative and not all 0"
            )

    def _check_together(self) -> None:
        """Settings that exclude one another: what each would mean beside the other is undefined."""
        for wrong, message in (*self._of_objectives(), *self._of_vectors()):
            if wrong:
                raise ConfigError(f"{message}: leave one of them out")

    def _of_objectives(self) -> tuple[tuple[bool, str], ...]:
        labels = self.objective is Objective.CLASSIFICATION
        pairs = (
            ("encoders", self.encoders > 1),
            ("queue_size", self.queue_size > 0),
            ("layers_per_step", self.layers_per_step > 0),
            ("prefix_distillation", self.prefix_distillation > 0),
            ("mask_above", self.mask_above is not None),
            ("augment", self.augment is not Augment.NONE),
            ("hard_negative_weight", self.hard_negative_weight != 1),
            ("fixed_dropout", self.fixed_dropout),
        )
        mixing = self.mixup > 0 or self.label_smoothing > 0
        dropped = labels and self.pooling is Pooler.CLS_BEFORE_POOLER
        return (
            *((labels and on, f"objective classification has no pairs for {n}") for n, on in pairs),
            (not labels and mixing, "mixup and label_smoothing need objective classification"),
            (dropped, "a classifier would read the layer that pooling cls-before-pooler drops"),
        )

    def _of_vectors(self) -> tuple[tuple[bool, str], ...]:
        mixed = self.pooling in (Pooler.FIRST_LAST, Pooler.LAST_TWO)
        nested = self.nested and len(self.prefixes) != 1
        dropped = self.pooling is Pooler.CLS_BEFORE_POOLER
        trains = self.mlm_weight > 0 or self.layers_per_step > 0
        drops = self.dropout is not None or self.fixed_dropout or self.gradient_cache
        return (
            (not self.nested and bool(self.prefixes), "nested false trains no prefixes"),
            (nested and dropped, "nested would train prefixes behind the layer that is dropped"),
            (self.queue_size > 0 and self.layers_per_step > 0, "queue_size has no layers_per_step"),
            (mixed and self.layers_per_step > 0, f"layers_per_step cannot cut into {self.pooling}"),
            (self.head_only and trains, "head_only trains no network for mlm or layers"),
            (self.head_only and drops, "head_only has no dropout and needs no gradient_cache"),
            (self.head_only and self.encoders > 1, "head_only trains one head, not two encoders"),
            (self.head_only and self.queue_size > 0, "head_only trains one head, without a queue"),
            (
                self.mlm_weight > 0 and self.mlm_probability == 0,
                "mlm_weight with mlm_probability 0",
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        values = asdict(self)
        for name in _PATHS:
            values[name] = [str(path) for path in values[name]]
        values["out"] = str(values["out"])
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

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
        """As `from_json`, of an object already read."""
        known = {field.name for field in fields(cls)}
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


def _chosen(name: str, choice: type[StrEnum], value: Any) -> StrEnum:
    try:
        return choice(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(choice)}") from None


def _at_least(name: str, value: object, low: int) -> None:
    if type(value) is not int or value < low:
        raise ConfigError(f"{name} is {value!r}: expected a whole number of at least {low}")
