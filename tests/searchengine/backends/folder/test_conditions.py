"""Trees of filters in SQL, with and without indexed fields, against plain Python."""

import time
from typing import Any

import pytest
from filter_oracle import holds, like, moment, records, trees
from filtered import collection, found_in, select
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.filters.dates import Date
from searchengine.backends.filters.parser import field_name, parse
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
)

# --- texts and dates ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pattern", "matches"),
    [
        ("Ärger in ΣΟΦΙΑΣ", "ärger%σοφιας", True),
        ("ЖУК", "ж_к", True),
        ("STRASSE", "straße", False),  # ß is one letter, and SS two
        ("straẞe", "STRAßE", True),
        ("ISTANBUL", "ıstanbul", False),
        ("100% sure", r"100\% s%", True),
        ("100 sure", r"100\% s%", False),
        ("a_b", r"a\_b", True),
        ("axb", r"a\_b", False),
        (r"C:\dir", r"c:\dir", True),
        (r"C:\_x", r"C:\\\_x", True),
        ("a*b?c[d]^", "A*b?c[D]^", True),
        ("aXb", "a*b", False),
        ("two\nlines", "two%LINES", True),
        ("鯨は眠る", "鯨_眠%", True),
        ("", "", True),
        ("", "_", False),
        ("x", "%%%", True),
        ("abcabd", "%ab_%abd", True),
    ],
)
def test_like(text: str, pattern: str, matches: bool) -> None:
    assert like(text, pattern) is matches
    for indexed in ((), ("t",)):
        assert select(Like(("t",), pattern), [{"t": text}], indexed) == [0] * matches


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2020", 1_577_836_800_000_000, 1_609_459_199_999_999),
        ("2020-02", 1_580_515_200_000_000, 1_583_020_799_999_999),
        ("2020-03-01", 1_583_020_800_000_000, 1_583_107_199_999_999),
        ("2020-03-01T10:00", 1_583_056_800_000_000, 1_583_056_859_999_999),
        ("2020-03-01 10:00:05+09:00", 1_583_024_405_000_000, 1_583_024_405_999_999),
        ("2020-03-01T10:00:05.25Z", 1_583_056_805_250_000, 1_583_056_805_250_000),
        ("9999", 253_370_764_800_000_000, 253_402_300_799_999_999),
    ],
)
def test_a_date_is_a_stretch_of_time(text: str, first: int, last: int) -> None:
    assert Date.parse(text) == Date(text, first, last)
    assert moment(text) == first
    bounds = [Compare(("x",), "=", Date("", at, at)) for at in (first - 1, first, first + 1)]
    assert [select(bound, [{"x": text}]) for bound in bounds] == [[], [0], []]


@pytest.mark.parametrize(
    "text",
    "2020-13 2020-00 2020-02-30 2021-02-29 2020-3-1 0000 20200301 2020-W10 now 12:00 2459000.5 "
    "2020-03-01Z 2020-03-01T 2020-03-01T24:00 2020-03-01T10:60 2020-03-01T10:00:60 +2020 "
    "2020-03-01T10:00:00. 2020-03-01T10:00+15:00 2020-03-01T10:00+0900 ٢٠٢٠".split(),
)
def test_invalid_dates_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Date.parse(text)
    anything = Compare(("x",), "<=", Date.parse("9999"))
    for indexed in ((), ("x",)):
        assert select(anything, [{"x": text}, {"x": "0001"}], indexed) == [1], text


# --- limits: ours are met before SQLite's --------------------------------------------------------

LEAVES = (
    "x >= 3",
    "x",
    "t like '%x%'",
    "d >= date('2020')",
    "g contains date('2020')",
    "d in (date('2020'), 3, 'x', null, true)",
)


def comb(leaf: str, depth: int, forks: int) -> str:
    """A deep filter, some of whose levels have two sides equally deep."""
    if depth == 0:
        return leaf
    word = "and" if depth % 2 else "or"
    if forks:
        return f"({comb(leaf, depth - 1, forks - 1)} {word} {comb(leaf, depth - 1, forks - 1)})"
    return f"({leaf} {word} {comb(leaf, depth - 1, 0)})"


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_parsed_filter_runs(leaf: str) -> None:
    record = {"x": 3, "t": "xX", "d": "2020-03-01", "g": ["2020", "p"]}
    with_index = collection([record], "x", "t", "d", "g")
    shapes = {
        " and ".join([leaf] * 200): [0],
        " or ".join([f"not {leaf}"] * 200): [],
        "(" * 48 + leaf + ")" * 48: [0],
        "not " * 48 + leaf: [0],
        f"not ({leaf} and not ({leaf} or " * 12 + leaf + "))" * 12: None,
        f"({leaf} or ({leaf} and " * 24 + leaf + "))" * 24: [0],
        comb(leaf, 45, 2): [0],
        comb(leaf, 7, 7): [0],
    }
    for source, expected in shapes.items():
        node = parse(source)
        answer = [0] if holds(node, record) else []
        assert expected in (None, answer)
        assert select(node, [record]) == found_in(with_index, node) == answer, source
    with_index.close()


def test_a_hostile_pattern_comes_to_an_end() -> None:
    record = {"t": "a" * 2000 + "b"}
    started = time.perf_counter()
    for pattern in ("%a" * 127 + "c", "%_" * 128, "%a%_" * 64, "%" * 256, "a" * 255 + "c"):
        assert select(Like(("t",), pattern), [record]) == [0] * like(record["t"], pattern[:4] * 2)
    assert time.perf_counter() - started < 5


# --- properties ----------------------------------------------------------------------------------

INDEXED = st.sets(st.sampled_from(["a", "b", "`two words`", "a.b", "ü.ü", "`in`"]), max_size=4)


@given(trees, st.lists(records, max_size=5), INDEXED)
def test_sql_means_what_the_tree_means(
    tree: Filter, rows: list[dict[str, Any]], indexed: set[str]
) -> None:
    expected = [i for i, row in enumerate(rows) if holds(tree, row)]
    assert select(tree, rows) == expected
    assert select(tree, rows, tuple(indexed)) == expected


def written(value: Any) -> str:
    if isinstance(value, Date):
        return f"date('{value.text}')"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def printed(node: Filter) -> str:
    """A filter as a user would type it."""
    match node:
        case And(operands):
            return " and ".join(f"({printed(o)})" for o in operands)
        case Or(operands):
            return " or ".join(f"({printed(o)})" for o in operands)
        case Not(operand):
            return f"not ({printed(operand)})"
        case Exists(field):
            return f"exists({field_name(field)})"
        case _:
            return field_name(node.field) + printed_test(node)


def printed_test(node: Filter) -> str:
    match node:
        case In(_, members):
            return f" in ({', '.join(map(written, members))})"
        case Contains(_, value):
            return f" contains {written(value)}"
        case Like(_, pattern):
            return f" like {written(pattern)}"
        case Between(_, low, high):
            return f" between {written(low)} and {written(high)}"
        case Compare(_, op, value):
            return f" {op} {written(value)}"
    return ""


@given(trees)
def test_what_is_printed_parses_to_the_same_tree(tree: Filter) -> None:
    assert parse(printed(tree)) == tree
