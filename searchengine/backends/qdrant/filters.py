"""Filters as conditions of Qdrant, over three fields of a point's payload.

    terms     a hash for each property of a field that filters ask for: that it exists, that it is
              true, that it equals a value, that it is a list with an element
    numbers   field → its number as float64; `remainders`: the rest of whole numbers beyond 2^53
    dates     field → the moment that a date begins with, in UTC; `item_dates`: those of a list

Qdrant compares a field with a value through lists, tells 1 from 1.0, and rounds whole numbers; the
terms do not. Texts cannot be compared by order or by pattern: such filters are refused.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any

from searchengine.backends.folder.filters.dates import Date
from searchengine.backends.folder.filters.parser import parse
from searchengine.backends.folder.filters.sql import (
    And,
    Check,
    Compare,
    Contains,
    Exists,
    Field,
    Filter,
    Not,
    Or,
    checks_of,
    compared,
)
from searchengine.errors import CorpusError, FilterError

if TYPE_CHECKING:
    from qdrant_client import models

TERMS, NUMBERS, REMAINDERS, DATES = "terms", "numbers", "remainders", "dates"
ITEM_DATES = "item_dates"
_EXACT = 2.0**53  # up to here a float64 holds every whole number
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_KINDS = {"true": True, "false": False, "null": None}
_PLAIN = re.compile(r"\w+", re.ASCII)


def payload_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What filters read of a document's metadata. Raises CorpusError for a date out of range."""
    terms: list[str] = []
    numbers: dict[str, float] = {}
    remainders: dict[str, int] = {}
    dates: dict[str, str] = {}
    item_dates: dict[str, list[str]] = {}
    for field, value in _fields(metadata):
        terms.append(_term(field, "exists"))
        name = name_of(field)
        if isinstance(value, list):
            terms += [_term(field, "item", v) for v in value if not isinstance(v, list | dict)]
            if found := [each for each in map(_date, value) if each is not None]:
                item_dates[name] = found
        elif not isinstance(value, dict):
            terms.append(_term(field, "equals", value))
            if value:
                terms.append(_term(field, "true"))
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[name], rest = _split(value)
                remainders |= {name: rest} if rest else {}
            if (date := _date(value)) is not None:
                dates[name] = date
    parts = {TERMS: terms, NUMBERS: numbers, REMAINDERS: remainders, DATES: dates}
    parts[ITEM_DATES] = item_dates
    return {name: part for name, part in parts.items() if part}


def condition(where: str | None) -> "models.Filter | None":
    """A filter as one of Qdrant; None for all documents. Raises FilterError."""
    return None if where is None else translated(parse(where))


def translated(node: Filter) -> "models.Filter":
    """The filter of a tree. Raises FilterError for what Qdrant cannot express."""
    from qdrant_client import models

    match node:
        case Not(operand):
            return models.Filter(must_not=[translated(operand)])
        case And(operands):
            return models.Filter(must=[translated(operand) for operand in operands])
        case Or(operands):
            return models.Filter(should=[translated(operand) for operand in operands])
        case Compare(field, "!=", value):
            return models.Filter(must_not=[translated(Compare(field, "=", value))])
        case Exists(field):
            return _any([_term(field, "exists")])
        case Contains(field, value):
            return _checked(field, compared("=", value), "item")
        case _:
            found: list[models.Condition] = [
                _checked(node.field, check, "equals") for check in checks_of(node)
            ]
            return models.Filter(should=found)


def name_of(field: Field) -> str:
    """The name of a metadata field inside `numbers` and `dates`."""
    if all(map(_PLAIN.fullmatch, field)):
        return "-".join(field)
    return f"-{_hash(field)}"


def _checked(field: Field, check: Check, kind: str) -> "models.Filter":
    if check.is_date:
        return _dates(ITEM_DATES if kind == "item" else DATES, field, check)
    if check.operator == "truthy":
        return _any([_term(field, "true")])
    if not check.operator:
        return _any([_term(field, kind, _KINDS[name]) for name in check.kinds])
    if check.operator in ("=", "in"):
        return _any([_term(field, kind, value) for value in check.values])
    if check.operator == "like" or isinstance(check.values[0], str):
        what = "match patterns (like)" if check.operator == "like" else "compare texts by order"
        raise FilterError(
            f"Qdrant cannot {what}: test {'.'.join(field)} by =, in or contains, write dates as "
            "date('2020-03-01'), or copy the collection to a folder"
        )
    return _numbers(field, check)


def _numbers(field: Field, check: Check) -> "models.Filter":
    from qdrant_client import models

    pairs = [(check.operator, check.values[0])]
    if check.operator == "between":
        pairs = [(">=", check.values[0]), ("<=", check.values[1])]
    return models.Filter(must=[_ordered(name_of(field), *pair) for pair in pairs])


def _ordered(name: str, operator: str, value: Any) -> "models.Filter":
    """A comparison of numbers: of the float64, and where that is equal of the rest."""
    from qdrant_client import models

    whole, rest = _split(value)
    key = f"{NUMBERS}.{name}"
    if abs(whole) < _EXACT:
        return models.Filter(must=[_range(key, **{_BOUNDS[operator]: whole})])
    beyond: list[models.Condition] = [_range(f"{REMAINDERS}.{name}", **{_BOUNDS[operator]: rest})]
    if _COMPARE[operator](0, rest):
        empty = models.PayloadField(key=f"{REMAINDERS}.{name}")
        beyond.append(models.IsEmptyCondition(is_empty=empty))
    equal: list[models.Condition] = [
        _range(key, gte=whole, lte=whole),
        models.Filter(should=beyond),
    ]
    strict = _range(key, **{_BOUNDS[operator[0]]: whole})
    return models.Filter(should=[strict, models.Filter(must=equal)])


def _dates(part: str, field: Field, check: Check) -> "models.Filter":
    from qdrant_client import models

    moments = [_bound(int(value or 0)) for value in check.values]
    if check.operator == "between":
        bounds = {"gte": moments[0], "lte": moments[1]}
    else:
        bounds = {_BOUNDS[check.operator]: moments[0]}
    holds = models.FieldCondition(
        key=f"{part}.{name_of(field)}", range=models.DatetimeRange(**bounds)
    )
    return models.Filter(must=[holds])


def _range(key: str, **bounds: float) -> "models.FieldCondition":
    from qdrant_client import models

    return models.FieldCondition(key=key, range=models.Range(**bounds))


def _any(terms: list[str]) -> "models.Filter":
    from qdrant_client import models

    holds = models.FieldCondition(key=TERMS, match=models.MatchAny(any=terms))
    return models.Filter(must=[holds])


def _fields(metadata: Mapping[str, Any], above: Field = ()) -> Iterator[tuple[Field, Any]]:
    """All fields, nested ones too, with their values."""
    for name, value in metadata.items():
        yield (*above, name), value
        if isinstance(value, Mapping):
            yield from _fields(value, (*above, name))


def _term(field: Field, what: str, value: Any = None) -> str:
    """The hash of a property of a field; 1 and 1.0 are one value, 1 and true are two."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole, rest = _split(value)
        value = int(whole) + rest if whole.is_integer() else whole
    return _hash([field, what, type(value).__name__, value])


def _hash(parts: Any) -> str:
    text = json.dumps(parts, ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _split(value: float) -> tuple[float, int]:
    """A number as a float64 and a rest, which is 0 but for whole numbers beyond 2^53."""
    if isinstance(value, int) and abs(value) < 2**63:
        return float(value), value - int(float(value))
    largest = sys.float_info.max
    return float(min(max(value, -largest), largest)) + 0.0, 0  # -0.0 is 0.0


def _date(value: Any) -> str | None:
    """The moment that a text begins with, if it is a date."""
    if not isinstance(value, str) or not value[:4].isdigit():
        return None
    try:
        first = Date.parse(value).first
    except ValueError:
        return None
    try:
        return _moment(first).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError as error:
        raise CorpusError(
            f"Qdrant cannot store the date {value!r}, which is not in the years 0001 to 9999 in "
            "UTC; correct it, or leave it out"
        ) from error


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _bound(microseconds: int) -> datetime:
    """A bound of a filter. Beyond the years that are stored, the last moment is as good."""
    try:
        return _moment(microseconds)
    except OverflowError:
        edge = datetime.max if microseconds > 0 else datetime.min
        return edge.replace(tzinfo=UTC)
