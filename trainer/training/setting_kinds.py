"""A setting of a run: its default, the values it takes, its help and its line in the model card.

    temperature: float = setting(0.05, POSITIVE, "Temperature, by which cosines are divided")

is a dataclass field with the default 0.05 and a `Setting` as its metadata. The checks of
`TrainConfig`, the table in docs/training-reference.md and the model card are made from it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.reading import integer

KEY = "setting"
REQUIRED = MISSING


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


POSITIVE = Range(1e-300, 1e300, "a number more than 0", "> 0")
NOT_NEGATIVE = Range(0.0, 1e300, "a number of 0 or more", "≥ 0")
BELOW_ONE = Range(0.0, 1 - 1e-12, "0 or more and less than 1", "≥ 0, < 1")
FRACTION = Range(0.0, 1.0, "0 to 1", "0 to 1")
COSINE = Range(-1.0, 1.0, "a cosine, −1 to 1", "−1 to 1")
SEED = Range(
    0, 2**32 - 1, f"a whole number of 0 or more and less than {2**32}", "whole, ≥ 0, < 2³²", True
)


def at_least(minimum: int) -> Range:
    """Whole numbers of at least `minimum`."""
    expected = f"a whole number of at least {minimum}"
    return Range(minimum, 10**300, expected, f"whole, ≥ {minimum}", whole=True)


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one type. short: in a table.

    convert: gives the value as the configuration stores it, from the setting's name and the value;
    raises ConfigError. range: of the numbers in a list.
    """

    short: str
    convert: Callable[[str, Any], Any]
    range: Range | None = None


def one_of(kinds: Iterable[StrEnum]) -> Values:
    """A choice."""
    choices = tuple(kinds)

    def convert(name: str, value: Any) -> StrEnum:
        for kind in choices:
            if kind == value:
                return kind
        raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(choices)}")

    return Values(", ".join(f"`{kind}`" for kind in choices), convert)


def list_of(item: Values | Range, plural: str = "", expected: str = "") -> Values:
    """A list. plural: the items, in a table. expected: the end of an error about an item."""

    def convert(name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | Path) or not hasattr(value, "__iter__"):
            raise ConfigError(f'{name} is {str(value)!r}: expected a list, ["…"] in JSON')
        items = tuple(value)
        try:
            return tuple(item.convert(name, x) for x in items)
        except ConfigError:
            if not expected:
                raise
            shown = ", ".join(map(str, items))
            raise ConfigError(f"{name} is {shown}: expected {expected}") from None

    if isinstance(item, Range):
        return Values(f"list; {item.short}", convert, item)
    return Values(f"list of {plural or item.short}", convert)


def _switch(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ConfigError(f"{name} is {value!r}: expected true or false")
    return value


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} holds {str(value)!r}: expected objects, {{…}} in JSON")
    plain: dict[str, Any] = json.loads(json.dumps(dict(value), default=str))
    return plain


SWITCH = Values("true, false", _switch)
TEXT = Values("text", lambda name, value: str(value))
PATH = Values("path", lambda name, value: Path(value))
NAMES = list_of(Values("name", lambda name, value: value), "names")
PATHS = list_of(PATH, "paths")
OBJECTS = list_of(Values("object", _object), "objects")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        values: what it takes; beside them None, if that is the default.
        help: noun phrase with its unit, in Markdown, for the docs.
        card: a sentence of the model card without its full stop, for values that are not the
            default; {} is the value. "" for none.
        default: for the docs, if the value does not say it.
        objective: the only objective that it is for; "" for any.
    """

    values: Values | Range
    help: str
    card: str
    default: str
    objective: str

    @property
    def range(self) -> Range | None:
        """The range of a number, or of the numbers in a list."""
        return self.values if isinstance(self.values, Range) else self.values.range


def setting(
    default: Any,
    values: Values | Range,
    help: str,
    *,
    card: str = "",
    shown: str = "",
    objective: str = "",
) -> Any:
    """A dataclass field with a `Setting`. default: REQUIRED for none. shown: it, in the docs."""
    return field(default=default, metadata={KEY: Setting(values, help, card, shown, objective)})


def about(item: "Field[Any]") -> Setting:
    """The setting of a field of a configuration."""
    of_field: Setting = item.metadata[KEY]
    return of_field


def convert_all(config: Any) -> None:
    """Check every value of a new configuration, and store it as its type. Raises ConfigError."""
    for item in fields(config):
        value = getattr(config, item.name)
        if value is not None or item.default is not None:
            converted = about(item).values.convert(item.name, value)
            object.__setattr__(config, item.name, converted)


def changed(config: Any) -> Iterator[tuple[str, Setting, Any]]:
    """Name, setting and value of each field that does not have its default."""
    for item in fields(config):
        value = getattr(config, item.name)
        if value != item.default:
            yield item.name, about(item), value


def card_lines(config: Any) -> list[str]:
    """Sentences of a model card for the settings that are not the default."""
    return [item.card.format(_in_words(value)) for _, item, value in changed(config) if item.card]


def settings_table(config: type, groups: Mapping[str, str]) -> str:
    """All settings as a Markdown table. groups: the first setting of a group → its heading."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for item in fields(config):
        if item.name in groups:
            rows.append(f"| **{groups[item.name]}** | | | |")
        of_field = about(item)
        values, help_text = of_field.values.short, of_field.help
        rows.append(f"| `{item.name}` | {_default(item)} | {values} | {help_text} |")
    return "\n".join(rows)


def _default(item: "Field[Any]") -> str:
    if about(item).default:
        return about(item).default
    if item.default is REQUIRED:
        return "required"
    if item.default in (None, ()):
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
    return str(value)
