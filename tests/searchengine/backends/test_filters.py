"""The filter language: what each test means, mistakes, limits."""

import sqlite3
from typing import Any

import pytest
from filtered import select
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.filters.parser import field_name, field_named, parse
from searchengine.backends.filters.sql import compile_sql
from searchengine.errors import FilterError

# --- the meaning of each test --------------------------------------------------------------------

RECORDS: list[dict[str, Any]] = [
    {"year": 2016, "lang": "en", "draft": False, "at": "2020-03-01"},
    {"year": 2014.5, "lang": "ko", "draft": True, "at": "2020-03-01T23:30:00-01:00"},
    {"year": "2016", "lang": None, "tags": ["Sea", "whale"], "at": "2020"},
    {"a": {"b": {"c": 3}}, "two words": "x", "draft": 1, "tags": "Sea", "at": "2020-02-30"},
    {"tags": [1, None, True, ["Sea"], "2020-03-05"], "at": 2020},
]


@pytest.mark.parametrize("indexed", [(), ("year", "lang", "draft", "a.b.c", "tags", "at")])
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
        ("year in (2016, '2016', null)", [0, 2]),
        ("draft in (1, false)", [0, 3]),
        ("year between 2014.5 and 2016", [0, 1]),
        ("year between 2015 and 2014", []),
        ("lang between 'a' and 'f'", [0]),
        ("year NOT BETWEEN 2015 AND 2020 and exists(year)", [1, 2]),
        ("lang like 'E_'", [0]),
        ("lang like '%'", [0, 1]),
        ("year like '20%'", [2]),
        ("lang not like '%n'", [1, 2, 3, 4]),
        ("exists(lang)", [0, 1, 2]),
        ("exists(a.b) and exists(a.b.c) and not exists(a.b.d)", [3]),
        ("exists(tags)", [2, 3, 4]),
        ("tags contains 'Sea'", [2]),
        ("tags contains 'sea'", []),
        ("tags not contains 'Sea'", [0, 1, 3, 4]),
        ("tags in ('Sea')", [3]),
        ("tags contains 1", [4]),
        ("tags contains true", [4]),
        ("tags contains false", []),
        ("tags contains null", [4]),
        ("tags contains date('2020-03')", [4]),
        ("tags", [3]),
        ("at = date('2020')", [0, 1, 2]),
        ("at = date('2020-03')", [0, 1]),
        ("at = date('2020-03-01')", [0]),
        ("at > date('2020-03-01')", [1]),
        ("at >= date('2020-03-01')", [0, 1]),
        ("at <= date('2020-03-01')", [0, 2]),
        ("at < date('2020-03-01')", [2]),
        ("at <= date('2020-03')", [0, 1, 2]),
        ("at > date('2020')", []),
        ("at != date('2020-03-01')", [1, 2, 3, 4]),
        ("at = date('2020-03-02T00:30')", [1]),
        ("at between date('2020-03') and date('2020-03')", [0, 1]),
        ("at in (date('2020-03-01'), date('2020-01-01'), 2020)", [0, 2, 4]),
        ("at not in (date('2020'))", [3, 4]),
        ("at > '2020-03'", [0, 1]),
    ],
)
def test_meaning(source: str, expected: list[int], indexed: tuple[str, ...]) -> None:
    assert select(parse(source), RECORDS, indexed) == expected


def test_words_of_the_language_may_be_names_of_fields() -> None:
    record = {"like": 1, "exists": 2, "date": "2020", "between": 5, "contains": ["x"], "in": 3}
    for source in (
        "like = 1 and exists = 2 and exists and not between > 5",
        "date = date('2020') and exists(date) and date like '20%'",
        "between between 5 and 5 and contains contains 'x' and `in` in (3)",
    ):
        assert select(parse(source), [record]) == [0], source


WHOLE = [-(2**64), -(2**63) - 1, -(2**63), 2**53 + 1, 2**63 - 1, 2**63, 10**30]


@pytest.mark.parametrize("indexed", [(), ("n",)])
def test_whole_numbers_of_any_size(indexed: tuple[str, ...]) -> None:
    """Within 64 bits they compare exactly, beyond as the nearest floating-point numbers."""
    records = [{"n": number} for number in WHOLE]
    for i, number in enumerate(WHOLE):
        equal = [i]
        if number in (-(2**63) - 1, -(2**63)):  # the first is rounded to the second
            equal = [1, 2]
        assert select(parse(f"n = {number}"), records, indexed) == equal
        assert select(parse(f"n in ({number}, 'x')"), records, indexed) == equal
        assert select(parse(f"n between {number} and {number}"), records, indexed) == equal
        assert select(parse(f"n > {number}"), records, indexed) == [*range(equal[-1] + 1, 7)]
        assert select(parse(f"n < {number}"), records, indexed) == [*range(equal[0])]
        lists = [{"n": [number]} for number in WHOLE]
        assert select(parse(f"n contains {number}"), lists, indexed) == equal


# --- mistakes ------------------------------------------------------------------------------------


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
        ("x = " + "9" * 5000, "the number is too large", 4),
        ("x = 1e999", "the number is too large", 4),
        ("x = -1" + "0" * 309, "the number is too large", 4),
        ("x = 1; drop table documents", "cannot read this", 5),
        ("(" * 60 + "x", "more than 50 levels", 50),
        ("2010 < year", "the field comes first: year > 2010", 0),
        ("2010 < year < 2015", "write year > 2010 and year < 2015", 0),
        ("year > 2010 < 2015", "one comparison at a time; write year > 2010 and", 12),
        ("at >= date('2020-02-30')", "'2020-02-30' is not a date: that month has 29 days", 11),
        ("at >= date('soon')", "expected a date such as 2020, 2020-03-01", 11),
        ("at >= date(2020)", "expected a date in quotes", 11),
        ("at >= date('2020'", r"expected \)", 17),
        ("x between 1 or 2", "expected 'and' and a second value", 12),
        ("x between 1 and 'b'", "two numbers, two texts or two dates", 16),
        ("x between null and null", "two numbers, two texts or two dates", 19),
        ("x like 3", "expected a text after 'like'", 7),
        (f"x like '{'%' * 257}'", "256 characters at most", 7),
        ("exists(3)", "expected a field name, got 3", 7),
        ("exists(a", r"expected \)", 8),
        ("x not = 3", "expected 'and', 'or' or the end, got not", 2),
        ('`a"b` = 1', "cannot hold", 0),
        ("`a\\b` = 1", "cannot hold", 0),
        ("`a\nb` = 1", "cannot hold", 0),
    ],
)
def test_mistakes_are_pointed_at(source: str, message: str, caret: int) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        parse(source)
    pointer = str(caught.value).splitlines()[2]
    assert pointer == " " * (2 + caret) + "^"


def test_the_caret_stands_below_wide_and_combining_characters() -> None:
    with pytest.raises(FilterError) as caught:
        parse("語 = '한국' and x = 'e\u0301' = ?")
    _, line, pointer, _ = str(caught.value).splitlines()
    assert line == "  語 = '한국' and x = 'e\u0301' = ?"
    assert len(pointer) == len(line) + 3 - 1  # three characters of two columns, one of none


def test_only_the_neighbourhood_of_a_mistake_is_shown() -> None:
    for source in (
        "x = 1 or " * 100 + "x = ? " + "or x = 1 " * 100,
        "\x1b[31m" + "a " * 20_000,
        "b" * 1_000_000 + " like 3",
        f"a = date('{'x' * 1_000_000}')",
        f"'{'x' * 1_000_000}' < a",
        "a in (" + "1, " * 50_000 + "1)",
        "'" * 999_999,
    ):
        with pytest.raises(FilterError) as caught:
            parse(source)
        _, line, pointer, _ = str(caught.value).splitlines()
        assert len(str(caught.value)) < 500 and str(caught.value).replace("\n", "").isprintable()
        assert len(pointer) <= len(line) + 1
    with pytest.raises(FilterError) as caught:
        parse("x = 1 or " * 100 + "x = ? " + "or x = 1 " * 100)
    _, line, pointer, _ = str(caught.value).splitlines()
    assert line[2] == line[-1] == "…" and line[len(pointer) - 1] == "?"


# --- limits and names ---------------------------------------------------------------------------


def test_too_many_tests_are_refused_and_many_values_are_not() -> None:
    with pytest.raises(FilterError, match="more than 400 tests"):
        parse(" or ".join(f"x = {i}" for i in range(401)))
    with pytest.raises(FilterError, match="more than 400 tests"):
        parse(f"x in ({', '.join(['0'] + [f'''date('{1000 + i}')''' for i in range(400)])})")
    assert select(parse(" or ".join(f"x = {i}" for i in range(400))), [{"x": 399}]) == [0]
    with pytest.raises(FilterError, match="more than 30000 values"):
        parse(f"x in ({', '.join(['1'] * 30_001)})")
    many = f"x in ({', '.join(str(i) for i in range(28_804))})"
    greedy = " or ".join([many, *[f"x in ('{i}', null, true)" for i in range(398)], "x"])
    most = compile_sql(parse(greedy))[1]
    assert len(most) <= 32_766 - 1000  # what is left is the caller's
    for indexed in ((), ("x",)):
        found = select(parse(many), [{"x": 28_803}, {"x": 28_804}], indexed)
        assert found == [0]
        assert select(parse(greedy), [{"x": "397"}, {"x": 0.5}, {"x": "398"}, {}], indexed) == [
            0,
            1,
            2,
        ]


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters='`"\\'), min_size=1), min_size=1
    )
)
def test_a_field_has_one_name(parts: list[str]) -> None:
    field = tuple(parts)
    if any(c < " " for c in "".join(parts)):
        with pytest.raises(FilterError):
            field_named(field_name(field))
    else:
        assert field_named(field_name(field)) == field


@pytest.mark.parametrize("name", ["", "in", "a b", "a = 1", "not a", "exists(a)", "a or b", "3"])
def test_filters_without_a_field_name_are_refused(name: str) -> None:
    with pytest.raises(FilterError):
        field_named(name)


words = st.sampled_from(
    (
        "a.b `c d` and or not in between like contains exists date ( ) , = < 'x' '%' 3 null '2020'"
    ).split()
)


@given(st.text(max_size=40) | st.lists(words, max_size=12).map(" ".join))
def test_any_text_parses_or_is_refused(source: str) -> None:
    try:
        node = parse(source)
    except FilterError:
        return
    select(node, [{"a": {"b": 1}}], ("a",))


@pytest.mark.parametrize(("field", "copies"), [("text", 1), ("notes", 10)])
def test_patterns_share_a_copy_of_the_text(field: str, copies: int) -> None:
    """Else a long text takes its size again for each of them, and metadata twice."""
    source = " or ".join(f"{field} like '%{n}%'" for n in range(9))
    condition, parameters = compile_sql(parse(source))
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, text, metadata)")
    program = database.execute(f"EXPLAIN SELECT 1 FROM documents WHERE {condition}", parameters)
    columns = [row for row in program if row[1] == "Column"]
    assert len({row[4] for row in columns}) <= copies
