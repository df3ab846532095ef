"""What a filter means, in plain Python, and random filters: the oracle of every dialect."""

import operator
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from searchengine.backends.filters.dates import Date
from searchengine.backends.filters.sql import (
    And,
    Between,
    Compare,
    Contains,
    Exists,
    Filter,
    In,
    Like,
    Not,
    Or,
    Truthy,
)

COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MISSING = object()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lookup(record: Any, field: tuple[str, ...]) -> Any:
    for name in field:
        if not isinstance(record, dict) or name not in record:
            return MISSING
        record = record[name]
    return record


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def moment(value: Any) -> int | None:
    """The microsecond that a text names, by Python's own reading of dates."""
    form = r"\d{4}(-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?)?)?"
    if not isinstance(value, str) or not re.fullmatch(form, value, re.ASCII):
        return None
    whole = value + {4: "-01-01", 7: "-01"}.get(len(value), "")
    try:
        found = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", whole))
    except ValueError:
        return None
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - EPOCH) // timedelta(
        microseconds=1
    )


def like(text: str, pattern: str) -> bool:
    """% and _, without case, one character for one."""
    ends = {0}  # how much of the text the pattern up to here can have taken
    for escaped, sign in re.findall(r"\\([%_\\])|(.)", pattern, re.DOTALL):
        if sign == "%":
            ends = set(range(min(ends, default=len(text) + 1), len(text) + 1))
        else:
            letter = (escaped or sign).casefold()
            ends = {
                end + 1
                for end in ends
                if end < len(text) and (sign == "_" or text[end].casefold() == letter)
            }
    return len(text) in ends


def compares(found: Any, op: str, value: Any) -> bool:
    """A value and a value, or a value and a stretch of time."""
    if isinstance(value, Date):
        at = moment(found)
        if at is None:
            return False
        if op == "=":
            return value.first <= at <= value.last
        return bool(COMPARE[op](at, value.last if op in ("<=", ">") else value.first))
    return kind(found) == kind(value) and bool(COMPARE[op](found, value))


def holds(node: Filter, record: dict[str, Any]) -> bool:
    """The documented meaning of a filter, in plain Python."""
    match node:
        case And(operands):
            return all(holds(o, record) for o in operands)
        case Or(operands):
            return any(holds(o, record) for o in operands)
        case Not(operand):
            return not holds(operand, record)
        case Compare(field, "!=", value):
            return not compares(lookup(record, field), "=", value)
        case _:
            return holds_of(lookup(record, node.field), node)


def holds_of(found: Any, test: Filter) -> bool:
    match test:
        case Truthy():
            return isinstance(found, bool | int | float | str) and bool(found)
        case Exists():
            return found is not MISSING
        case In(_, values):
            return any(compares(found, "=", value) for value in values)
        case Contains(_, value):
            return isinstance(found, list) and any(compares(item, "=", value) for item in found)
        case Like(_, pattern):
            return isinstance(found, str) and like(found, pattern)
        case Between(_, low, high):
            return compares(found, ">=", low) and compares(found, "<=", high)
        case Compare(_, op, value):
            return compares(found, op, value)
    raise AssertionError(test)


names = st.sampled_from(["a", "b", "ü", "two words", "in"])
paths = st.lists(names, min_size=1, max_size=2).map(tuple)
days = st.sampled_from(["2019", "2020", "2020-02", "2020-02-29", "2020-03-01", "2021-02-29"])
times = st.sampled_from(["", "T00:00", " 23:59:59", "T00:30:00.5", "T12:00:00.0000009", "T24:00"])
zones = st.sampled_from(["", "Z", "+01:00", "-14:59", "+15:00"])
stamps = st.builds("{}{}{}".format, days, times, zones)
letters = st.text(st.sampled_from("aAéÉσςΣßẞ%_*?[]^-\\'\"`.0 語"), max_size=5)
texts = letters | stamps | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=4)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(0, 2) | numbers | texts
elements = scalars | st.lists(scalars, max_size=1) | st.just({})
values = scalars | st.lists(elements, max_size=4)
records = st.dictionaries(names, values | st.dictionaries(names, values, max_size=2), max_size=4)


def as_date(text: str) -> Date | None:
    try:
        return Date.parse(text)
    except ValueError:
        return None


dates = stamps.map(as_date).filter(lambda date: date is not None)
operands = scalars | dates
ordered = st.one_of(*[st.tuples(some, some) for some in (numbers, texts, dates)])
comparisons = st.builds(Compare, paths, st.sampled_from(sorted(COMPARE)), operands).filter(
    lambda c: c.operator in ("=", "!=") or not (c.value is None or isinstance(c.value, bool))
)
trees = st.recursive(
    comparisons
    | st.builds(lambda path, pair: Between(path, *pair), paths, ordered)
    | st.builds(In, paths, st.lists(operands, min_size=1, max_size=4).map(tuple))
    | st.builds(Like, paths, letters)
    | st.builds(Contains, paths, operands)
    | st.builds(Exists, paths)
    | st.builds(Truthy, paths),
    lambda inner: (
        st.builds(Not, inner)
        | st.lists(inner, min_size=2, max_size=3).map(tuple).map(And)
        | st.lists(inner, min_size=2, max_size=3).map(tuple).map(Or)
    ),
    max_leaves=6,
)
