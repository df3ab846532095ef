"""Filters of Haystack as `where`, with the meaning of its own document_matches_filter.

They differ where a filter of a collection differs from Python: a comparison of values of different
kinds is false, where Haystack raises an error for the documents it meets; stored dates have one of
the forms in docs/searching.md; and a date without a zone in the filter is UTC beside stored dates
that have one.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from haystack import Document
from haystack.errors import FilterError

from searchengine.errors import FilterError as Inexpressible
from searchengine.integrations import filters as parts
from searchengine.integrations.metadata import stored_path

_ATTRIBUTES = {each.name for each in fields(Document)}
_ZONED = ("%Z", "%+__:__", "%-__:__")
_DATED = "____-__-__%"
_DAY = len("2020-03-01")


def where_of(asked: Mapping[str, Any] | None) -> str | None:
    """A filter as `where`; None: all documents. Raises Haystack's FilterError."""
    if not asked:
        return None
    try:
        return _test(asked)
    except Inexpressible as error:
        raise FilterError(str(error)) from error


def _test(asked: Any) -> str:
    """A comparison, or several joined."""
    if not isinstance(asked, Mapping):
        raise FilterError(f"a filter must be a dict, got {asked!r:.80}")
    if "field" in asked:
        operator, value = _part(asked, "operator"), _part(asked, "value")
        if operator not in _COMPARISONS:
            raise FilterError(
                f"operator must be one of {', '.join(_COMPARISONS)}, got {operator!r}"
            )
        return _COMPARISONS[operator](_field(asked["field"]), value)
    operator, conditions = _part(asked, "operator"), _part(asked, "conditions")
    tests = [_test(each) for each in conditions]
    if operator == "AND":
        return parts.every(tests)
    if operator == "OR":
        return parts.either(tests)
    if operator == "NOT":
        return parts.negated(parts.every(tests))
    raise FilterError(f"operator must be AND, OR or NOT, got {operator!r}")


def _part(asked: Mapping[str, Any], name: str) -> Any:
    if name not in asked:
        raise FilterError(f"a filter needs {name!r}, got {dict(asked)!r:.200}")
    return asked[name]


def _field(name: str) -> str:
    """The stored field of `meta.author.name`, or of `author`."""
    first, *rest = str(name).split(".")
    if first == "meta" and rest:
        return parts.field(stored_path(tuple(rest)))
    if rest or first in _ATTRIBUTES:
        raise FilterError(
            f"documents are selected by fields of meta, got {name!r}; write meta.year"
        )
    return parts.field(stored_path((first,)))


def _equal(field: str, value: Any) -> str:
    if value is None:
        return parts.missing(field)
    moment = _moment(value) if _is_dated(value) else None
    if moment is None:
        return parts.equal(field, value)
    same = _dated(field, "=", moment)
    return parts.either([parts.equal(field, value), same]) if isinstance(value, str) else same


def _member(field: str, values: Any) -> str:
    if not isinstance(values, list):
        raise FilterError(f"in and not in take a list, got {values!r:.80}")
    plain = [value for value in values if not _is_dated(value)]
    dates = [_equal(field, value) for value in values if _is_dated(value)]
    return parts.either([parts.member(field, plain), *dates])


def _ordered(sign: str) -> Callable[[str, Any], str]:
    def test(field: str, value: Any) -> str:
        if value is None:
            return parts.NOTHING
        if not isinstance(value, str | datetime):
            return parts.ordered(field, sign, value)
        moment = _moment(value)
        if moment is None:
            raise FilterError(
                f"texts compare by {sign} only as dates, such as 2020-03-01T09:30:00, "
                f"got {value!r:.80}"
            )
        return _dated(field, sign, moment)

    return test


_COMPARISONS: dict[str, Callable[[str, Any], str]] = {
    "==": _equal,
    "!=": lambda field, value: parts.negated(_equal(field, value)),
    ">": _ordered(">"),
    ">=": _ordered(">="),
    "<": _ordered("<"),
    "<=": _ordered("<="),
    "in": _member,
    "not in": lambda field, values: parts.negated(_member(field, values)),
}


def _is_dated(value: Any) -> bool:
    """Whether `==` compares it as a date, if it is one."""
    return isinstance(value, datetime) or (
        isinstance(value, str)
        and value[:_DAY].count("-") == 2
        and (len(value) == _DAY or value[_DAY : _DAY + 1] in ("T", "t", " "))
    )


def _moment(value: str | datetime) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _dated(field: str, sign: str, moment: datetime) -> str:
    """A comparison with a moment; where one of two dates has no zone, it has that of the other."""
    is_date = f"{field} like '{_DATED}'"
    test = f"{field} {sign} {_literal(moment)}"
    if moment.utcoffset():
        zoned = parts.either([f"{field} like '{pattern}'" for pattern in _ZONED])
        local = f"{field} {sign} {_literal(moment.replace(tzinfo=None))}"
        test = parts.either(
            [parts.every([zoned, test]), parts.every([parts.negated(zoned), local])]
        )
    return parts.every([is_date, test])


def _literal(moment: datetime) -> str:
    """A moment to the microsecond: of a shorter date, a filter would take all of the period."""
    utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return f"date('{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z')"
