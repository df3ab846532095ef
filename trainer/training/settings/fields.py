"""A training setting: its check, its help and its line in the model card, in one place.

    temperature: float = number(0.05, POSITIVE, help="Divisor of the cosines", card=NO_LINE)

is a dataclass field with the default 0.05 and a `Setting` as its metadata, from which the checks of
`TrainConfig`, the table in docs/training-reference.md and the model card are made. All of them are
in `training.settings`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.reading import integer

Kind = TypeVar("Kind", bound=StrEnum)
Converter = Callable[[str, Any], Any]
KEY = "setting"
REQUIRED = MISSING
# The card of a setting that the model card states in a sentence of its own, or not at all.
NO_LINE = ""


class Objective(StrEnum):
    """Task: what is learnt of the texts."""

    CONTRASTIVE = "contrastive"  # tell pairs from other texts
    CLASSIFICATION = "classification"  # labels
    SIMILARITY = "similarity"  # scores of pairs
    DISTILLATION = "distillation"  # a teacher's scores or vectors


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones only where `whole`.

    expected: the range in an error; short: in a table.
    """

    low: float
    high: float
    expected: str
    short: str
    whole: bool = False

    def check(self, name: str, value: Any) -> Any:
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
WEIGHT = Range(0.0, 1.0, "0 to 1", "0 to 1")
COSINE = Range(-1.0, 1.0, "a cosine, −1 to 1", "−1 to 1")


def at_least(minimum: int) -> Range:
    """Whole numbers of at least `minimum`."""
    expected = f"a whole number of at least {minimum}"
    return Range(minimum, 10**300, expected, f"whole, ≥ {minimum}", whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        help: noun phrase with its unit, in Markdown, for the docs.
        convert: gives the value as the configuration stores it, from its name and the given value;
            raises ConfigError.
        card: a sentence of the model card without its full stop, for values that are not the
            default; {} is the value. Required, so that no setting is forgotten there.
        values: which it takes, for the docs.
        range: of a number.
        default_in_words: for the docs, where the value does not say it.
        objective: the only objective that it is for; "" for any.
    """

    help: str
    convert: Converter
    card: str
    values: str
    range: Range | None = None
    default_in_words: str = ""
    objective: str = ""


def _field(default: Any, **rest: Any) -> Any:
    """A dataclass field with a setting; default: REQUIRED for none."""
    return field(default=default, metadata={KEY: Setting(**rest)})


def number(default: Any, range: Range, *, optional: bool = False, **rest: Any) -> Any:
    """A number of a range; or None, where it is optional."""

    def convert(name: str, value: Any) -> Any:
        return None if optional and value is None else range.check(name, value)

    return _field(default, convert=convert, values=range.short, range=range, **rest)


def numbers(default: Any, range: Range, expected: str, **rest: Any) -> Any:
    """A list of numbers of a range. expected: the end of the error."""

    def convert(name: str, value: Any) -> tuple[Any, ...]:
        items = _tuple(name, value)
        try:
            return tuple(range.check(name, item) for item in items)
        except ConfigError:
            shown = ", ".join(map(str, items))
            raise ConfigError(f"{name} is {shown}: expected {expected}") from None

    values = f"list; {range.short}"
    return _field(default, convert=convert, values=values, range=range, **rest)


def switch(default: Any, **rest: Any) -> Any:
    """True or false."""

    def convert(name: str, value: Any) -> bool:
        if type(value) is not bool:
            raise ConfigError(f"{name} is {value!r}: expected true or false")
        return value

    return _field(default, convert=convert, values="true, false", **rest)


def choice(default: Any, kinds: Iterable[Kind], **rest: Any) -> Any:
    """One of these names."""

    def convert(name: str, value: Any) -> Kind:
        return _one_of(kinds, name, value)

    return _field(default, convert=convert, values=_names(kinds), **rest)


def choices(default: Any, kinds: Iterable[Kind], **rest: Any) -> Any:
    """A list of these names."""

    def convert(name: str, value: Any) -> tuple[StrEnum, ...]:
        return tuple(_one_of(kinds, name, item) for item in _tuple(name, value))

    return _field(default, convert=convert, values=f"list of {_names(kinds)}", **rest)


def text(default: Any, **rest: Any) -> Any:
    """A name or a path, as text."""
    return _field(default, convert=lambda name, value: str(value), values="text", **rest)


def texts(default: Any, **rest: Any) -> Any:
    """A list of names."""
    return _field(default, convert=_tuple, values="list of names", **rest)


def objects(default: Any, **rest: Any) -> Any:
    """A list of JSON objects."""

    def convert(name: str, value: Any) -> tuple[dict[str, Any], ...]:
        for item in (items := _tuple(name, value)):
            if not isinstance(item, Mapping):
                raise ConfigError(f"{name} holds {str(item)!r}: expected objects, {{…}} in JSON")
        return tuple(json.loads(json.dumps(dict(item), default=str)) for item in items)

    return _field(default, convert=convert, values="list of objects", **rest)


def path(default: Any, **rest: Any) -> Any:
    """A path."""
    return _field(default, convert=lambda name, value: Path(value), values="path", **rest)


def paths(default: Any, **rest: Any) -> Any:
    """A list of paths."""

    def convert(name: str, value: Any) -> tuple[Path, ...]:
        return tuple(map(Path, _tuple(name, value)))

    return _field(default, convert=convert, values="list of paths", **rest)


def _names(kinds: Iterable[StrEnum]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | Path) or not hasattr(value, "__iter__"):
        raise ConfigError(f'{name} is {str(value)!r}: expected a list, ["…"] in JSON')
    return tuple(value)


def _one_of(kinds: Iterable[Kind], name: str, value: Any) -> Kind:
    for kind in kinds:
        if kind == value:
            return kind
    raise ConfigError(f"{name} is {value!r}: expected one of {', '.join(kinds)}")


def setting(item: "Field[Any]") -> Setting:
    """The setting of a field of a configuration."""
    about: Setting = item.metadata[KEY]
    return about


def changed(config: Any) -> Iterator[tuple[str, Setting, Any]]:
    """Name, setting and value of each field that does not have its default."""
    for item in fields(config):
        value = getattr(config, item.name)
        if value != item.default:
            yield item.name, setting(item), value


def card_lines(config: Any) -> list[str]:
    """Sentences of a model card for the settings that are not the default."""
    return [
        setting.card.format(_in_words(value))
        for _, setting, value in changed(config)
        if setting.card != NO_LINE
    ]


def settings_table(groups: Mapping[str, type]) -> str:
    """All settings as a Markdown table. groups: the dataclass of each heading."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for heading, group in groups.items():
        rows.append(f"| **{heading}** | | | |")
        for item in fields(group):
            about = setting(item)
            rows.append(f"| `{item.name}` | {_default(item)} | {about.values} | {about.help} |")
    return "\n".join(rows)


def _default(item: "Field[Any]") -> str:
    if setting(item).default_in_words:
        return setting(item).default_in_words
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
