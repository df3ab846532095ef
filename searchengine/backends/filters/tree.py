"""The tree of a filter, and its condition in SQL as far as databases share it.

Predicates joined by `and` and `or`: `not` is carried down to them. What one predicate means in SQL
is written by filters.sqlite and postgresql.filters. All values of the user are bound as parameters,
none is written into the statement.

Dates are a literal of the filter language, and texts are read as them in SQL:

    2020    2020-03    2020-03-01    2020-03-01T09:30[:05[.25]][Z or +09:00]

A part of ISO 8601: a space may stand for the T, a time without a zone is UTC, zones reach from
-14:59 to +14:59, years from 0001 to 9999. The value is a number of microseconds since 1970 in
UTC, an exact integer; further decimals are cut off.
"""

import re
from calendar import isleap, monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

Value = str | int | float | bool | None
Field = tuple[str, ...]
Condition = tuple[str, tuple[Any, ...]]
"""A condition in SQL, and its parameters. Null is as good as false."""

COLUMNS: dict[Field, str] = {("_id",): "key", ("title",): "title", ("text",): "text"}
"""The fields of a document that are not metadata → their columns in `documents`, always a text."""

_LETTERS = 0x1F000  # no letter beyond this has cases


class Check(NamedTuple):
    """One way for a value to pass: it is of a kind, and meets an operator.

    Attributes:
        kind: null, true, false, number, text, date (a text that is one, as a number of
            microseconds), truthy (true, not 0, or not an empty text), or any.
        operator: = < <= > >= between in like; "" if the kind suffices.
        values: what follows the operator; of like, the pattern.
    """

    kind: str
    operator: str = ""
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Predicate:
    """A field passes one of the checks, or (`holds` False) none of them.

    `items`: it is an array, and one of its elements passes.
    """

    field: Field
    checks: tuple[Check, ...]
    holds: bool = True
    items: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Filters of which all hold, or (`either`) at least one."""

    operands: tuple["Filter", ...]
    either: bool


Filter = Predicate | Group


def fields_of(node: Filter) -> list[Field]:
    """The fields of a filter, in their order."""
    if isinstance(node, Predicate):
        return [node.field]
    return [field for operand in node.operands for field in fields_of(operand)]


def condition_of(node: Filter, check: Callable[[Predicate, Check], Condition]) -> Condition:
    """A tree as a condition over `documents`; `check` writes one check of a predicate.

    The deepest operand comes first: SQLite's parser has a stack of 100, in which a level takes one
    place then, and after `(x AND` it would take three.
    """

    def written(node: Filter, inside: str) -> tuple[str, tuple[Any, ...], int]:
        if isinstance(node, Predicate):
            parts = [(*check(node, one), 0) for one in node.checks] or [("false", (), 0)]
            word, form = " OR ", "({})" if node.holds else "NOT coalesce({}, false)"
        else:
            word = " OR " if node.either else " AND "
            parts = sorted((written(o, word) for o in node.operands), key=lambda part: -part[2])
            form = "({})" if word > inside else "{}"  # in alphabetical order: an OR inside an AND
        text = form.format(word.join(text for text, _, _ in parts))
        return text, tuple(value for _, values, _ in parts for value in values), 1 + parts[0][2]

    text, parameters, _ = written(node, "")
    return text, parameters


def like_pattern(pattern: str, wildcards: Mapping[str, str], escape: Callable[[str], str]) -> str:
    """A LIKE pattern in another language of patterns, each letter as the set of its cases.

    No database knows the cases of all letters in every locale, so they are listed.
    """
    parts = []
    for escaped, wildcard, plain in re.findall(r"\\([%_\\])|(%+|_)|(.)", pattern, re.DOTALL):
        letters = _cases().get(escaped or plain, escaped or plain)
        parts.append(
            f"[{letters}]" if len(letters) > 1 else wildcards.get(wildcard[:1], escape(letters))
        )
    return "".join(parts)


@cache
def _cases() -> dict[str, str]:
    """Letter → all letters that differ from it in case only, itself among them."""
    groups: dict[str, list[str]] = {}
    for character in map(chr, range(_LETTERS)):
        groups.setdefault(character.casefold(), []).append(character)
    return {c: "".join(group) for group in groups.values() if len(group) > 1 for c in group}


_FORM = re.compile(
    r"\d{4}(?P<month>-\d\d)?(?(month)(?P<day>-\d\d)?)(?(day)(?P<time>[T ]([01]\d|2[0-3]):\d\d"
    r"(?P<second>:\d\d(?P<fraction>\.\d+)?)?(Z|[+-](0\d|1[0-4]):[0-5]\d)?)?)",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000  # in microseconds
_DAY = 24 * 60 * 60 * _SECOND


class Date(NamedTuple):
    """The period that a date literal names: its first and last microsecond, inclusive.

    `date('2020-03')` is all of March 2020 in UTC, `date('2020-03-01T09:30')` that minute.
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Date":
        """Read a literal. Raises ValueError with the reason if it is not a date."""
        if not (form := _FORM.fullmatch(text)):
            raise ValueError("expected a date such as 2020, 2020-03-01 or 2020-03-01T09:30:00Z")
        day = datetime.fromisoformat(text + {4: "-01-01", 7: "-01"}.get(len(text), ""))
        at = day if day.tzinfo else day.replace(tzinfo=UTC)
        first = (at - _EPOCH) // timedelta(microseconds=1)
        if not form["month"]:
            span = (366 if isleap(day.year) else 365) * _DAY
        elif not form["time"]:
            span = _DAY if form["day"] else monthrange(day.year, day.month)[1] * _DAY
        else:
            span = 1 if form["fraction"] else _SECOND if form["second"] else 60 * _SECOND
        return cls(first, first + span - 1)


def _digits(pattern: str) -> str:
    return pattern.replace("9", "[0-9]")


def moment_sql(value: str) -> str:
    """An SQL expression: the first microsecond of a date in a text, null if it is not a date.

    SQLite's date functions alone accept much more: `now`, `12:00`, a number of days, and 2020-02-31
    as the second of March. So they get only texts of this form. `value` is SQL and must be text or
    null.
    """
    # LIMIT keeps SQLite from merging the steps, which would compute everything ten times.
    whole = (
        "SELECT v || CASE length(v) WHEN 4 THEN '-01-01' WHEN 7 THEN '-01' ELSE '' END AS v "
        f"FROM (SELECT {value} AS v) LIMIT 1"
    )
    parts = (
        "SELECT substr(v, 1, 10) AS day, substr(v, 11) AS rest, "
        "CASE WHEN substr(v, -1) = 'Z' THEN 1 "
        f"WHEN substr(v, -6) GLOB '{_digits('[+-]99:99')}' THEN 6 ELSE 0 END AS zone "
        f"FROM ({whole}) "
        f"WHERE v GLOB '{_digits('9999-99-99*')}' AND v >= '0001' LIMIT 1"
    )
    times = (
        "SELECT day, substr(rest, 1, length(rest) - zone) AS time, "
        f"substr(rest, length(rest) - zone + 1) AS zone FROM ({parts}) "
        "WHERE date(day, '+0 days') = day LIMIT 1"
    )
    return (
        f"(SELECT {_SECOND} * strftime('%s', CASE time WHEN '' THEN day "
        "ELSE day || substr(time || ':00', 1, 9) || zone END) "
        f"+ substr(substr(time, 11) || '000000', 1, 6) FROM ({times}) "
        f"WHERE substr(time, 2, 2) < '24' AND (time = '' AND zone = '' "
        f"OR time GLOB '{_digits('[T ]99:99')}' OR time GLOB '{_digits('[T ]99:99:99')}' OR "
        f"time GLOB '{_digits('[T ]99:99:99.9*')}' AND substr(time, 11) NOT GLOB '*[^0-9]*'))"
    )
