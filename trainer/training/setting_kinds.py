"""The values that settings take, by their types, and the tables made of settings.

    temperature: Positive = 0.05

A `Range` in an annotation limits a number, a tuple of choices an enumeration.
"""

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.reading import integer


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; only whole ones if `whole`.

    expected: the range in an error. short: in a table.
    """

    low: float
    high: float
    expected: str
    short: str
    whole: bool = False

    def convert(self, name: str, value: Any) -> Any:
        """The value. Raises ConfigError if it is of another type or outside."""
        number: float | None = integer(value)
        if isinstance(value, float) and not self.whole:
            number = float(value)
        if number is None or not self.low <= number <= self.high:
            raise ConfigError(f"{name} is {value}: expected {self.expected}")
        return number


def at_least(minimum: int) -> Range:
    """Whole numbers of at least `minimum`."""
    expected = f"a whole number of at least {minimum}"
    return Range(minimum, 10**300, expected, f"whole, ≥ {minimum}", whole=True)


FRACTION = Range(0.0, 1.0, "0 to 1", "0 to 1")
SEED = Range(
    0, 2**32 - 1, f"a whole number of 0 or more and less than {2**32}", "whole, ≥ 0, < 2³²", True
)
Positive = Annotated[float, Range(1e-300, 1e300, "a number more than 0", "> 0")]
NotNegative = Annotated[float, Range(0.0, 1e300, "a number of 0 or more", "≥ 0")]
BelowOne = Annotated[float, Range(0.0, 1 - 1e-12, "0 or more and less than 1", "≥ 0, < 1")]
PositiveInt = Annotated[int, at_least(1)]
NotNegativeInt = Annotated[int, at_least(0)]


@cache
def kinds(config: Any) -> dict[str, Any]:
    """The type of each setting with its limits; without None, which is the default of some."""
    hints = get_type_hints(config, include_extras=True)
    optional = (Union, types.UnionType)
    return {
        name: get_args(hint)[0] if get_origin(hint) in optional else hint
        for name, hint in hints.items()
    }


def limits(kind: Any) -> Any:
    """The Range of numbers or the choices of an enumeration, also in a list; None: neither."""
    if get_origin(kind) is tuple:
        return limits(get_args(kind)[0])
    if get_origin(kind) is Annotated:
        return get_args(kind)[1]
    return tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else None


def convert(kind: Any, name: str, value: Any) -> Any:
    """The value as a setting of this type stores it. Raises ConfigError."""
    if get_origin(kind) is tuple:
        if isinstance(value, str | Path) or not hasattr(value, "__iter__"):
            raise ConfigError(f'{name} is {str(value)!r}: expected a list, ["…"] in JSON')
        return tuple(convert(get_args(kind)[0], name, item) for item in value)
    limit = limits(kind)
    if isinstance(limit, Range):
        return limit.convert(name, value)
    if get_origin(kind) is Mapping:
        roles = ("query", "document")
        if not isinstance(value, Mapping) or any(
            key not in roles or not isinstance(text, str) for key, text in value.items()
        ):
            raise ConfigError(f'{name} is {value!r}: expected {{"query": "…", "document": "…"}}')
        return dict(value)
    if limit is not None:
        if value not in limit:
            raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(limit)}")
        return limit[limit.index(value)]
    if kind is bool and type(value) is not bool:
        raise ConfigError(f"{name} is {value!r}: expected true or false")
    return kind(value)


def convert_all(config: Any) -> None:
    """Check every value of a new configuration, and store it as its type. Raises ConfigError."""
    config_type: Any = type(config)
    for item in fields(config):
        value = getattr(config, item.name)
        if value is not None or item.default is not None:
            converted = convert(kinds(config_type)[item.name], item.name, value)
            object.__setattr__(config, item.name, converted)


def changed(config: Any) -> dict[str, Any]:
    """The settings that do not have their default, with their values."""
    values = {item.name: (getattr(config, item.name), item.default) for item in fields(config)}
    return {k: value for k, (value, default) in values.items() if value not in (default, {})}


def card_lines(config: Any, sentences: Mapping[str, str]) -> list[str]:
    """The sentences of a model card for the settings that are not the default; {} is the value."""
    values = changed(config).items()
    return [sentences[name].format(_in_words(v)) for name, v in values if name in sentences]


def settings_table(config: type, groups: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """All settings as a Markdown table, explained by the docstring's section `Attributes`.

    groups: the first setting of a group → its heading. defaults: in words, by setting.
    """
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    meanings = dict(_meanings(config))
    for item in fields(config):
        name = item.name
        if name in groups:
            rows.append(f"| **{groups[name]}** | | | |")
        default = defaults.get(name) or _default(item)
        rows.append(f"| `{name}` | {default} | {_values(kinds(config)[name])} | {meanings[name]} |")
    return "\n".join(rows)


def _meanings(config: type) -> Iterator[tuple[str, str]]:
    """The settings that the docstring explains, with their explanations, each on one line."""
    section = inspect.cleandoc(config.__doc__ or "").partition("\nAttributes:\n")[2]
    for paragraph in inspect.cleandoc(section).replace("\n    ", " ").splitlines():
        name, _, meaning = paragraph.partition(": ")
        yield name, meaning


def _values(kind: Any) -> str:
    """The values that a setting takes, for a table."""
    limit, is_list = limits(kind), get_origin(kind) is tuple
    if isinstance(limit, Range):
        return f"list; {limit.short}" if is_list else limit.short
    if limit is not None:
        choices = ", ".join(f"`{choice}`" for choice in limit)
        return f"list of {choices}" if is_list else choices
    if is_list:
        return f"list of {'paths' if get_args(kind)[0] is Path else 'names'}"
    if get_origin(kind) is Mapping:
        return "texts by role"
    return {bool: "true, false", str: "text", Path: "path"}[kind]


def _default(item: "Field[Any]") -> str:
    if item.default is MISSING:
        return "required"
    if item.default in (None, (), ""):
        return "none"
    shown = _in_words(item.default)
    return f"`{shown}`" if isinstance(item.default, str | bool) else shown


def _in_words(value: Any) -> str:
    """A value for a sentence: numbers without trailing zeros, lists with commas."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ", ".join(map(_in_words, value))
        case dict():
            return ", ".join(f"{key} {text!r}" for key, text in value.items())
    return str(value)
