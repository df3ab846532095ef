"""The tree of a filter, and its condition in SQL as far as databases share it.

Predicates joined by `and` and `or`: `not` is carried down to them. What one predicate means in SQL
is written by filters.sqlite and postgresql.filters. All values of the user are bound as parameters,
none is written into the statement.

Dates are a literal of the filter language, and texts of metadata are read as them:

    2020    2020-03    2020-03-01    2020-03-01T09:30[:05[.25]][Z or +09:00]

A part of ISO 8601: a space may stand for the T, a time without a zone is UTC, zones reach from
-14:59 to +14:59, years from 0001 to 9999. The value is a number of microseconds since 1970 in
UTC, an exact integer; further decimals are cut off.
"""

import re
from calendar import isleap, monthrange
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
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


def condition_of(
    node: Filter, check: Callable[[Predicate, Check], Condition], inside: str = ""
) -> Condition:
    """A tree as a condition over `documents`; `check` writes one check of a predicate.

    `inside`: the word that joins it with others.
    """
    if isinstance(node, Predicate):
        parts = [check(node, one) for one in node.checks] or [("false", ())]
        word, form = " OR ", "({})" if node.holds else "NOT coalesce({}, false)"
    else:
        word = " OR " if node.either else " AND "
        parts = [condition_of(operand, check, word) for operand in node.operands]
        form = "({})" if word > inside else "{}"  # in alphabetical order: an OR inside an AND
    text = form.format(word.join(text for text, _ in parts))
    return text, tuple(value for _, values in parts for value in values)


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
_REST = {4: "-01-01", 7: "-01"}
"""The length of a date without a day → what makes it the first one."""
_EPOCHS = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
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
        first, year = _first(text), int(text[:4])
        if not form["month"]:
            span = (366 if isleap(year) else 365) * _DAY
        elif not form["time"]:
            span = _DAY if form["day"] else monthrange(year, int(text[5:7]))[1] * _DAY
        else:
            span = 1 if form["fraction"] else _SECOND if form["second"] else 60 * _SECOND
        return cls(first, first + span - 1)


def moment(value: object) -> int | None:
    """The first microsecond of a text that is a date; None for anything else."""
    if isinstance(value, str) and _FORM.fullmatch(value):
        with suppress(ValueError):
            return _first(value)
    return None


def _first(text: str) -> int:
    """The first microsecond of a text of the form. Raises ValueError if there is no such day."""
    at = datetime.fromisoformat(text + _REST.get(len(text), ""))
    since = at - _EPOCHS[at.tzinfo is None]
    return (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds
