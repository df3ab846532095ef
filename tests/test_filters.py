"""The filter language against an evaluator that a person can follow."""

import json
import operator
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.errors import FilterError
from searchengine.filters import And, Compare, Filter, In, Not, Or, Truthy, compile_sql, parse

COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MISSING = object()


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


def holds(node: Filter, record: dict[str, Any]) -> bool:
    """The documented meaning of a filter, in plain Python."""
    match node:
        case And(operands):
            return all(holds(o, record) for o in operands)
        case Or(operands):
            return any(holds(o, record) for o in operands)
        case Not(operand):
            return not holds(operand, record)
        case Truthy(field):
            value = lookup(record, field)
            return isinstance(value, bool | int | float | str) and bool(value)
        case In(field, values):
            return any(holds(Compare(field, "=", value), record) for value in values)
        case Compare(field, "!=", value):
            return not holds(Compare(field, "=", value), record)
        case Compare(field, op, value):
            found = lookup(record, field)
            return kind(found) == kind(value) and bool(COMPARE[op](found, value))


def select(node: Filter, records: list[dict[str, Any]]) -> list[int]:
    condition, parameters = compile_sql(node)
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, metadata TEXT)")
        rows = [(i, json.dumps(r, ensure_ascii=False)) for i, r in enumerate(records)]
        db.executemany("INSERT INTO t VALUES (?, ?)", rows)
        query = f"SELECT id FROM t WHERE {condition} ORDER BY id"
        found = [row[0] for row in db.execute(query, parameters)]
    db.close()
    return found


RECORDS: list[dict[str, Any]] = [
    {"year": 2016, "lang": "en", "draft": False},
    {"year": 2014.5, "lang": "ko", "draft": True},
    {"year": "2016", "lang": None},
    {"a": {"b": {"c": 3}}, "two words": "x", "draft": 1},
    {},
]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("year >= 2015", [0]),
        ("year < 2015", [1]),
        ("year = '2016'", [2]),
        ("year != 2016", [1, 2, 3, 4]),
        ("lang in ('en', 'ko')", [0, 1]),
        ("lang not in ('en', 'ko')", [2, 3, 4]),
        ("lang = null", [2]),
        ("draft", [1, 3]),
        ("not draft", [0, 2, 4]),
        ("draft = true", [1]),
        ("draft = false", [0]),
        ("a.b.c = 3", [3]),
        ("`two words` = 'x'", [3]),
        ("year >= 2015 and lang = 'en' or a.b.c > 2", [0, 3]),
        ("year >= 2015 and (lang = 'xx' or lang = 'en')", [0]),
        ("NOT (year > 0 OR lang = NULL)", [3, 4]),
        ("year == 2016.0", [0]),
        ("lang <> 'en'", [1, 2, 3, 4]),
        ("year >= -1e3", [0, 1]),
    ],
)
def test_meaning(source: str, expected: list[int]) -> None:
    assert select(parse(source), RECORDS) == expected


@pytest.mark.parametrize(
    ("source", "message", "caret"),
    [
        ("", "it is empty", 0),
        ("year >=", "expected a value, got the end", 7),
        ("year >= soon", "write text in quotes: 'soon'", 8),
        ("(year > 1", r"expected \)", 9),
        ("year > 1 lang = 'en'", "expected 'and', 'or' or the end, got lang", 9),
        ("lang = 'en", "cannot read this", 7),
        ("and = 3", "expected a field name, got and", 0),
        ("draft > true", "compare with = and != only", 6),
        ("lang in ()", r"expected a value, got \)", 9),
        ("lang in 'en'", r"expected \( after 'in'", 8),
        ("x = 99999999999999999999", "the number is too large", 4),
        ("x = 1; drop table documents", "cannot read this", 5),
        ("(" * 60 + "x", "more than 50 levels", 50),
    ],
)
def test_mistakes_are_pointed_at(source: str, message: str, caret: int) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        parse(source)
    pointer = str(caught.value).splitlines()[2]
    assert pointer == " " * (2 + caret) + "^"


def test_too_many_tests_are_refused_and_many_values_are_not() -> None:
    with pytest.raises(FilterError, match="more than 400 tests"):
        parse(" or ".join(f"x = {i}" for i in range(401)))
    assert select(parse(" or ".join(f"x = {i}" for i in range(400))), [{"x": 399}]) == [0]
    many = parse(f"x in ({', '.join(str(i) for i in range(20_000))})")
    assert select(many, [{"x": 19_999}, {"x": 20_000}]) == [0]


names = st.sampled_from(["a", "b", "ü", "two words"])
fields = st.lists(names, min_size=1, max_size=2).map(tuple)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=4)
)
comparisons = st.builds(Compare, fields, st.sampled_from(sorted(COMPARE)), scalars).filter(
    lambda c: c.operator in "=!=" or not (c.value is None or isinstance(c.value, bool))
)
trees = st.recursive(
    comparisons
    | st.builds(In, fields, st.lists(scalars, min_size=1, max_size=3).map(tuple))
    | st.builds(Truthy, fields),
    lambda inner: (
        st.builds(Not, inner)
        | st.lists(inner, min_size=2, max_size=3).map(tuple).map(And)
        | st.lists(inner, min_size=2, max_size=3).map(tuple).map(Or)
    ),
    max_leaves=6,
)
records = st.dictionaries(names, scalars | st.dictionaries(names, scalars, max_size=2), max_size=3)


@given(trees, st.lists(records, max_size=5))
def test_sql_means_what_the_tree_means(tree: Filter, rows: list[dict[str, Any]]) -> None:
    assert select(tree, rows) == [i for i, row in enumerate(rows) if holds(tree, row)]


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(source: str) -> None:
    try:
        compile_sql(parse(source))
    except FilterError:
        pass
