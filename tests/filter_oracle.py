"""Random filters as a user types them, each with its meaning in plain Python, and random records.

Nothing here is the engine's: the meaning is that of docs/searching.md.
"""

import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st

COMPARE = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MISSING = object()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRUTHY = ("bool", "number", "str")
Test = Callable[[Any], bool]
"""Whether a value passes; MISSING: the record lacks the field."""


class Case(NamedTuple):
    """A filter, and the records that it holds for."""

    source: str
    holds: Callable[[dict[str, Any]], bool]


class Date(NamedTuple):
    """A period in microseconds."""

    first: int
    last: int


def lookup(record: Any, field: list[str]) -> Any:
    for name in field:
        if not isinstance(record, dict) or name not in record:
            return MISSING
        record = record[name]
    return record


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def period(value: Any) -> Date | None:
    """The microseconds that a text names, by Python's own reading of dates."""
    form = r"\d{4}(-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?)?)?"
    if not isinstance(value, str) or not (match := re.fullmatch(form, value, re.ASCII)):
        return None
    whole = value + {4: "-01-01", 7: "-01"}.get(len(value), "")
    try:
        at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", whole))
    except ValueError:
        return None
    zone = at.utcoffset() or timedelta()
    if abs(zone) >= timedelta(hours=15) or re.search(r"[T ]24", value):
        return None
    first = (at.replace(tzinfo=UTC) - zone - EPOCH) // timedelta(microseconds=1)
    month, day, time, second, fraction, _ = match.groups()
    if time:
        span = timedelta(microseconds=1) if fraction else timedelta(seconds=1 if second else 60)
    elif day:
        span = timedelta(days=1)
    elif month:
        span = (at.replace(day=28) + timedelta(days=4)).replace(day=1) - at
    else:
        span = at.replace(month=12, day=31) - at + timedelta(days=1)
    return Date(first, first + span // timedelta(microseconds=1) - 1)


def like(text: Any, pattern: str) -> bool:
    """% and _, without case, one character for one."""
    if not isinstance(text, str):
        return False
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


def compares(stored: Any, op: str, value: Any) -> bool:
    """A value and a value, or the beginning of a date and a period."""
    if op in ("!=", "<>"):
        return not compares(stored, "=", value)
    if not isinstance(value, Date):
        return kind(stored) == kind(value) and bool(COMPARE[op](stored, value))
    if not (at := period(stored)):
        return False
    if op in ("=", "=="):
        return value.first <= at.first <= value.last
    return bool(COMPARE[op](at.first, value.last if op in ("<=", ">") else value.first))


names = st.sampled_from(["b", "ü", "two words", "in"])
paths = st.sampled_from([["a"], ["a"], ["a"], ["a", "b"]]) | st.lists(names, min_size=1, max_size=2)
days = st.sampled_from(["2019", "2020", "2020-02", "2020-02-29", "2020-03-01", "2021-02-29"])
times = st.sampled_from(["", "T00:00", " 23:59:59", "T00:30:00.5", "T12:00:00.0000009", "T24:00"])
zones = st.sampled_from(["", "Z", "+01:00", "-14:59", "+15:00"])
stamps = days | st.builds("{}{}{}".format, days, times, zones)
letters = st.text(st.sampled_from("aAéÉσςΣßẞ%_*?[]^-\\'\"`.0 語"), max_size=5)
patterns = st.sampled_from(["%", "_", "a%", "%ẞ", "20__", "%-02%", "\\%", "%s%"]) | letters
wild_texts = letters | stamps | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=4)
wild_numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.sampled_from(["", "a", "A", "aß", "1", "2020", "Σ"])
numbers = st.sampled_from([0, 1, 1.0, 2, -0.5, 1e300, 2**53 + 1])
constants = st.sampled_from([None, True, False])
# Few values, often: so that filters and records meet.
scalars = st.integers(0, 9).flatmap(
    lambda n: [wild_texts, wild_numbers, constants, constants, days, texts, texts, *[numbers] * 3][
        n
    ]
)
arrays = st.lists(scalars | st.just(["a"]) | st.just({}), max_size=4)
values = st.integers(0, 5).flatmap(lambda n: [arrays, scalars][n > 0])
nested = st.dictionaries(names, values, min_size=1, max_size=2)
rest = st.dictionaries(names, values | nested, max_size=2)
records = st.builds(lambda a, other: {"a": a} | other, values | values | nested, rest)
many_records = st.lists(records, min_size=8, max_size=12)
quotes = st.sampled_from("'\"")


def quoted(text: str, mark: str) -> tuple[str, Any]:
    return mark + text.replace(mark, mark * 2) + mark, text


def dated(text: str) -> tuple[str, Any]:
    return f"Date('{text}')", period(text)


numbers_written = (numbers | wild_numbers).map(lambda value: (repr(value), value))
texts_written = st.builds(quoted, texts | days | wild_texts, quotes)
dates_written = stamps.filter(period).map(dated)
ordered = [numbers_written, texts_written, dates_written]
operands = constants.map(
    lambda value: ({None: "null", True: "TRUE", False: "false"}[value], value)
) | st.one_of(ordered)


@st.composite
def comparisons(draw: st.DrawFn, path: list[str], field: str) -> Case:
    op = draw(st.sampled_from([*COMPARE, "", "exists"]))
    if op == "exists":
        return Case(f"exists({field})", lambda record: lookup(record, path) is not MISSING)
    if op == "":
        return Case(field, lambda r: kind(v := lookup(r, path)) in TRUTHY and bool(v))
    ordering = op in ("<", "<=", ">", ">=")
    written, value = draw(st.one_of(ordered) if ordering else operands)
    return Case(f"{field}{op} {written}", lambda r: compares(lookup(r, path), op, value))


@st.composite
def memberships(draw: st.DrawFn) -> tuple[str, Test]:
    members = draw(st.lists(operands, min_size=1, max_size=12))
    written = ", ".join(written for written, _ in members)
    return f"in ({written})", lambda v: any(compares(v, "=", value) for _, value in members)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, Test]:
    (low, least), (high, most) = draw(st.one_of([st.tuples(o, o) for o in ordered]))
    return (
        f"between {low} AND {high}",
        lambda v: compares(v, ">=", least) and compares(v, "<=", most),
    )


@st.composite
def likes(draw: st.DrawFn) -> tuple[str, Test]:
    pattern = draw(patterns)
    return f"like {quoted(pattern, draw(quotes))[0]}", lambda v: like(v, pattern)


@st.composite
def elements(draw: st.DrawFn) -> tuple[str, Test]:
    written, value = draw(operands)
    return (
        f"CONTAINS {written}",
        lambda v: isinstance(v, list) and any(compares(item, "=", value) for item in v),
    )


@st.composite
def tests(draw: st.DrawFn) -> Case:
    """One test of a field."""
    path = draw(paths)
    simple = [name if name.isidentifier() and name != "in" else f"`{name}`" for name in path]
    field, negated = ".".join(simple), draw(st.booleans())
    if draw(st.integers(0, 2)) == 0:
        return draw(comparisons(path, field))
    source, passes = draw(memberships() | ranges() | likes() | elements())
    return Case(
        f"{field} {'not ' if negated else ''}{source}",
        lambda record: passes(lookup(record, path)) != negated,
    )


def negation(case: Case, parentheses: bool) -> Case:
    source = f"NOT ({case.source})" if parentheses else f"not not not ({case.source})"
    return Case(source, lambda record: not case.holds(record))


def conjunction(cases: list[Case]) -> Case:
    source = " and ".join(f"({case.source})" for case in cases)
    return Case(source, lambda record: all(case.holds(record) for case in cases))


def disjunction(cases: list[Case]) -> Case:
    """`and` binds closer, so no parentheses are needed below one of them."""
    source = " or ".join(f"({case.source})" for case in cases)
    return Case(source, lambda record: any(case.holds(record) for case in cases))


def precedence(one: Case, two: Case, three: Case) -> Case:
    source = f"({one.source}) or ({two.source}) AND not ({three.source})"
    return Case(source, lambda r: one.holds(r) or (two.holds(r) and not three.holds(r)))


filters = st.recursive(
    tests(),
    lambda inner: (
        st.builds(negation, inner, st.booleans())
        | st.lists(inner, min_size=2, max_size=3).map(conjunction)
        | st.lists(inner, min_size=2, max_size=3).map(disjunction)
        | st.builds(precedence, inner, inner, inner)
    ),
    max_leaves=6,
)
