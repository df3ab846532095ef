"""What a setting of a training may be, by its type, and how tables and model cards show it.

temperature: Positive = setting(0.05, "Cosines are divided by it")
"""

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.reading import integer


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones if `low` is."""

    low: float
    high: float
    expected: str

    def read(self, value: Any) -> float:
        """The number. Raises ValueError for another type, or outside."""
        number: float | None = integer(value)
        if isinstance(value, float) and isinstance(self.low, float):
            number = float(value)
        if number is None or not self.low <= number <= self.high:
            raise ValueError
        return number


def at_least(minimum: int) -> Range:
    """Whole numbers of at least `minimum`."""
    return Range(minimum, 10**300, f"whole number ≥ {minimum}")


Positive = Annotated[float, Range(1e-300, 1e300, "number > 0")]
NotNegative = Annotated[float, Range(0.0, 1e300, "number ≥ 0")]
BelowOne = Annotated[float, Range(0.0, 1 - 1e-12, "number ≥ 0, < 1")]
Fraction = Annotated[float, Range(0.0, 1.0, "0 to 1")]
Seed = Annotated[int, Range(0, 2**32 - 1, "whole number ≥ 0, < 2³²")]
Count = Annotated[int, at_least(0)]
Size = Annotated[int, at_least(1)]


def setting(default: Any, meaning: str, group: str = "") -> Any:
    """A field of a configuration.

    default: MISSING for a required setting; None, () and {} are what the base or the files give.
    meaning: for the table of settings. group: a heading above the setting there.
    """
    facts = {"meaning": meaning, "group": group}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


@cache
def _kinds(config: Any) -> dict[str, Any]:
    """The type of each setting, with its limits and without None."""
    hints = get_type_hints(config, include_extras=True)
    optional = (Union, types.UnionType)
    return {k: get_args(h)[0] if get_origin(h) in optional else h for k, h in hints.items()}


def _read(kind: Any, value: Any) -> Any:
    """The value as a setting of this type stores it. Raises TypeError or ValueError."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and not isinstance(value, str | Path):  # which are no lists of letters
        return tuple(_read(inner[0], item) for item in value)
    if origin is Annotated:
        limit = inner[1]
        return limit.read(value) if isinstance(limit, Range) else limit[limit.index(value)]
    if origin is Mapping and value.keys() <= set(get_args(inner[0])):
        return {key: _read(inner[1], text) for key, text in value.items()}
    if (
        origin is not None
        or (kind is str and not isinstance(value, str | Path))
        or (kind is bool and type(value) is not bool)
    ):
        raise ValueError
    return kind(value)


def _expected(kind: Any) -> str:
    """The values of a type, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return f"list; {_expected(inner[0])}"
    limit = inner[1] if origin is Annotated else kind
    if isinstance(limit, Range):
        return limit.expected
    if origin is Mapping:
        return ", ".join(f"{key}: {_expected(inner[1])}" for key in get_args(inner[0]))
    if isinstance(limit, tuple) or issubclass(limit, StrEnum):
        return ", ".join(f"`{option}`" for option in limit)
    return {bool: "true, false", str: "text", Path: "path"}[limit]


def convert_all(config: Any) -> None:
    """Check every value of a new configuration, and store it as its type. Raises ConfigError."""
    config_type: Any = type(config)
    for item in dataclasses.fields(config):
        kind, value = _kinds(config_type)[item.name], getattr(config, item.name)
        try:
            if value is not None or item.default is not None:
                object.__setattr__(config, item.name, _read(kind, value))
        except (AttributeError, TypeError, ValueError):
            message = f"{item.name} is {value!r}: expected {_expected(kind)}"
            raise ConfigError(message) from None


def changed(config: Any) -> dict[str, Any]:
    """The settings that do not have their default, with their values."""
    values = {item: getattr(config, item.name) for item in dataclasses.fields(config)}
    return {item.name: v for item, v in values.items() if v not in (item.default, {})}


def in_words(value: Any) -> str:
    """A value as `--set` takes it; nothing for none."""
    if value in (None, (), {}, dataclasses.MISSING):
        return ""
    return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def settings_table(config: type) -> str:
    """All settings as a Markdown table."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for item in dataclasses.fields(config):
        if group := item.metadata["group"]:
            rows.append(f"| **{group}** | | | |")
        required = item.default is item.default_factory
        cells = ["required" if required else in_words(item.default)]
        cells += [_expected(_kinds(config)[item.name]), item.metadata["meaning"]]
        rows.append(f"| `{item.name}` | {' | '.join(cells)} |")
    return "\n".join(rows)
