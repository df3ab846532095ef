"""What a training run is told: one frozen dataclass that checks itself and is written as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from trainer.errors import ConfigError

PRECISIONS = ("auto", "fp32", "bf16")
_PATHS = ("train", "exclude", "dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A training run.

    train: TSV or JSONL files of examples. out: the model's folder. base: what to start from, as
    `Encoder.load` takes it. columns: the 1 to 3 columns to read, where their names do not say.
    exclude: files whose sentences must not be trained on. dev: STS files that choose the best
    step; without, a seeded tenth of the examples is held out. prefixes: trained lengths,
    descending, full width first; () for the base model's, or 512, 256, 128 and 64 below its width
    where it names none. prefix_weights: one per prefix, in the
    loss and in choosing the best step; () for 1. rotate: with several prefixes, begin by
    turning the vectors so that the strongest axes come first (`trainer.head`); full-width scores
    stay as they are. batch_size: examples per forward pass; one update takes batch_size ·
    accumulation of them, and the negatives of an example are those of its forward pass. max_steps:
    updates, in place of epochs. max_tokens: a text is cut there while training. eval_every,
    checkpoint_every: in updates; 0 for only at the end, and never. head_only: train the Dense
    layers, not the network.
    """

    train: tuple[Path, ...]
    out: Path
    base: str = "starter-768"
    columns: tuple[str, ...] = ()
    exclude: tuple[Path, ...] = ()
    dev: tuple[Path, ...] = ()
    prefixes: tuple[int, ...] = ()
    prefix_weights: tuple[float, ...] = ()
    rotate: bool = True
    temperature: float = 0.05
    batch_size: int = 32
    accumulation: int = 1
    epochs: int = 3
    max_steps: int | None = None
    learning_rate: float = 5e-5
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_tokens: int = 128
    seed: int = 0
    eval_every: int = 100
    checkpoint_every: int = 100
    precision: str = "auto"
    head_only: bool = False

    def __post_init__(self) -> None:
        for name in (*_PATHS, "columns", "prefixes", "prefix_weights"):
            value = getattr(self, name)
            if isinstance(value, str | Path):
                raise ConfigError(f"{name} is {str(value)!r}: expected a list")
            made = tuple(Path(v) for v in value) if name in _PATHS else tuple(value)
            object.__setattr__(self, name, made)
        object.__setattr__(self, "out", Path(self.out))
        object.__setattr__(self, "base", str(self.base))
        self._check_numbers()
        self._check_prefixes()
        if not self.train:
            raise ConfigError("train names no file: expected at least one TSV or JSONL file")
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"precision is {self.precision!r}: expected one of {', '.join(PRECISIONS)}"
            )
        if len(self.columns) > 3 or len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"columns is {', '.join(self.columns)}: expected 1 to 3 different names, "
                "anchor first, then positive, then negative"
            )

    def _check_numbers(self) -> None:
        for name, low in (
            ("batch_size", 2),
            ("accumulation", 1),
            ("epochs", 1),
            ("max_tokens", 3),
            ("seed", 0),
            ("eval_every", 0),
            ("checkpoint_every", 0),
        ):
            _at_least(name, getattr(self, name), low)
        if self.max_steps is not None:
            _at_least("max_steps", self.max_steps, 1)
        for name, fits, expected in (
            ("temperature", 0 < self.temperature, "more than 0"),
            ("learning_rate", 0 < self.learning_rate, "more than 0"),
            ("max_grad_norm", 0 < self.max_grad_norm, "more than 0"),
            ("warmup_ratio", 0 <= self.warmup_ratio < 1, "0 or more and less than 1"),
            ("weight_decay", 0 <= self.weight_decay, "0 or more"),
        ):
            if not fits:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected {expected}")

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
                f"prefix_weights has {len(weights)} numbers for {len(lengths)} prefixes: expected "
                "one for each prefix, none negative and not all 0"
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
            raise ConfigError(
                f"unknown in a training configuration: {', '.join(unknown)}; known are "
                f"{', '.join(sorted(known))}"
            )
        if missing := [name for name in ("train", "out") if name not in values]:
            raise ConfigError(f"the training configuration lacks {', '.join(missing)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"the training configuration has a wrong type: {error}") from error


def _at_least(name: str, value: object, low: int) -> None:
    if type(value) is not int or value < low:
        raise ConfigError(f"{name} is {value!r}: expected a whole number of at least {low}")
