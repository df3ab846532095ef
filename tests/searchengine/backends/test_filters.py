"""The filter language: what each test means on every backend, mistakes, limits."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from filter_oracle import Case, filters, like, many_records, period
from filtered import collection, matching, select
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import new_url

from searchengine.backends.contract import as_json
from searchengine.backends.filters.parser import Date, field_name, field_named, parse
from searchengine.backends.filters.sqlite import compile_sql
from searchengine.errors import FilterError

# --- whole numbers --------------------------------------------------------------------------------

WHOLE = [-(2**64), -(2**63) - 1, -(2**63), 2**53 + 1, 2**63 - 1, 2**63, 10**30]


@pytest.mark.parametrize("indexed", [(), ("n",)])
def test_whole_numbers_of_any_size(indexed: tuple[str, ...]) -> None:
    """Within 64 bits they compare exactly, beyond as the nearest floating-point numbers."""
    records = [{"n": number} for number in WHOLE]
    for i, number in enumerate(WHOLE):
        equal = [i]
        if number in (-(2**63) - 1, -(2**63)):  # the first is rounded to the second
            equal = [1, 2]
        assert select(f"n = {number}", records, indexed) == equal
        assert select(f"n in ({number}, 'x')", records, indexed) == equal
        assert select(f"n between {number} and {number}", records, indexed) == equal
        assert select(f"n > {number}", records, indexed) == [*range(equal[-1] + 1, 7)]
        assert select(f"n < {number}", records, indexed) == [*range(equal[0])]
        lists = [{"n": [number]} for number in WHOLE]
        assert select(f"n contains {number}", lists, indexed) == equal


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
        source = "t like '" + pattern.replace("'", "''") + "'"
        assert select(source, [{"t": text}], indexed) == [0] * matches


def test_a_hostile_pattern_comes_to_an_end() -> None:
    record = {"t": "a" * 2000 + "b"}
    for pattern in ("%a" * 127 + "c", "%_" * 128, "%a%_" * 64, "%" * 256, "a" * 255 + "c"):
        expected = [0] * like(record["t"], pattern[:4] * 2)
        assert select(f"t like '{pattern}'", [record]) == expected


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
    assert Date.parse(text) == (first, last) == period(text)
    assert select(f"x = date('{text}')", [{"x": text}]) == [0]


@pytest.mark.parametrize(
    "text",
    "2020-13 2020-00 2020-02-30 2021-02-29 2020-3-1 0000 20200301 2020-W10 now 12:00 2459000.5 "
    "2020-03-01Z 2020-03-01T 2020-03-01T24:00 2020-03-01T10:60 2020-03-01T10:00:60 +2020 "
    "2020-03-01T10:00:00. 2020-03-01T10:00+15:00 2020-03-01T10:00+0900 ٢٠٢٠".split(),
)
def test_invalid_dates_are_refused(text: str) -> None:
    with pytest.raises(FilterError, match="is not a date"):
        parse(f"x = date('{text}')")
    for indexed in ((), ("x",)):
        found = select("x <= date('9999')", [{"x": text}, {"x": "0001"}], indexed)
        assert found == [1], text


# --- any filter, on any records ------------------------------------------------------------------

INDEXED = st.sets(st.sampled_from(["a", "b", "`two words`", "a.b", "ü.ü", "`in`"]), max_size=4)


@given(filters, many_records, INDEXED)
def test_a_filter_means_what_the_oracle_says(
    case: Case, records: list[dict[str, Any]], indexed: set[str]
) -> None:
    expected = [i for i, record in enumerate(records) if case.holds(record)]
    assert select(case.source, records) == expected
    assert select(case.source, records, tuple(indexed)) == expected


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """A connection to PostgreSQL with the columns that filters read."""
    url = new_url()
    import psycopg

    with psycopg.connect(url.partition("#")[0], autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE documents (id int, fields jsonb, dates jsonb)")
        yield connection


def select_on_server(connection: Any, source: str, records: list[dict[str, Any]]) -> list[int]:
    from psycopg.types.json import Jsonb

    from searchengine.backends.postgresql.filters import condition, dates_of

    text, parameters = condition(source)
    connection.execute("TRUNCATE documents")
    rows = [
        (i, Jsonb(as_json(record), dumps=str), Jsonb(dates_of(record)))
        for i, record in enumerate(records)
    ]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO documents VALUES (%s, %s, %s)", rows)
        sql = f"SELECT id FROM documents WHERE {text} ORDER BY id"
        return [i for (i,) in cursor.execute(sql, parameters)]


@given(filters, many_records)
def test_a_filter_means_the_same_on_a_server(
    connection: Any, case: Case, records: list[dict[str, Any]]
) -> None:
    expected = [i for i, record in enumerate(records) if case.holds(record)]
    assert select_on_server(connection, case.source, records) == expected


def test_a_long_filter_runs_on_a_server(connection: Any) -> None:
    for source in (
        " or ".join(["n >= 3"] * 400),
        "n in (" + "3, " * 29_000 + "3)",
        "not " * 18 + "n",
    ):
        assert select_on_server(connection, source, [{"n": 3}, {"n": 0}])[:1] == [0]


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
        ("(" * 60 + "x", "nested 20 deep", 20),
        ("2010 < year", "the field comes first: year > 2010", 0),
        ("year > 2010 < 2015", "one comparison at a time; write year > 2010 and", 12),
        (
            "at >= date('2020-02-30')",
            "'2020-02-30' is not a date: day is out of range for month|must be in range 1..29",
            11,
        ),
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
        ("x = 1" + "0" * 4300, "the number is too large", 4),
        ("x = '1", "no second quotation mark", 4),
        ("x = 1 or x = 1 && y", "write and", 15),
    ],
)
def test_mistakes_are_pointed_at(source: str, message: str, caret: int) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        parse(source)
    at_end = caret == len(source)
    assert f" ({'at its end' if at_end else f'character {caret + 1}: '}" in str(caught.value)


@pytest.mark.parametrize("source", ["a = '\0'", "a = '\ud800'"])
def test_characters_that_no_metadata_has_are_refused(source: str) -> None:
    with pytest.raises(FilterError, match="no metadata contains"):
        parse(source)


# --- limits and names ---------------------------------------------------------------------------


def test_too_many_tests_are_refused_and_many_values_are_not() -> None:
    with pytest.raises(FilterError, match="more than 400 tests"):
        parse(" or ".join(f"x = {i}" for i in range(401)))
    with pytest.raises(FilterError, match="more than 400 tests"):
        parse(f"x in ({', '.join(['0'] + [f'''date('{1000 + i}')''' for i in range(401)])})")
    assert select(" or ".join(f"x = {i}" for i in range(400)), [{"x": 399}]) == [0]
    each = [f"x in ('{i}', {i}.5, null, true, false)" for i in range(399)]
    many = f"x in ({', '.join(map(str, range(28_005)))})"
    greedy = " or ".join([many, *each])
    assert len(compile_sql(parse(greedy))[1]) <= 32_766 - 1000  # what is left is the caller's
    for indexed in ((), ("x",)):
        records = [{"x": 28_004}, {"x": 28_005}, {"x": "397"}, {"x": 0.5}, {"x": "399"}, {}]
        assert select(many, records, indexed) == [0]
        assert select(greedy, records, indexed) == [0, 2, 3]


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
    shapes = {
        " and ".join([leaf] * 200): [0],
        " or ".join([f"not {leaf}"] * 200): [],
        "(" * 19 + leaf + ")" * 19: [0],
        "not " * 18 + leaf: [0],
        f"not ({leaf} and not ({leaf} or " * 4 + leaf + "))" * 4: [0],
        f"({leaf} or ({leaf} and " * 9 + leaf + "))" * 9: [0],
        comb(leaf, 19, 2): [0],
        comb(leaf, 7, 7): [0],
        comb(f"not {leaf}", 18, 2): [],
    }
    with closing(collection([record], "x", "t", "d", "g")) as with_index:
        for source, expected in shapes.items():
            assert select(source, [record]) == matching(with_index, source) == expected, source


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
        parse(source)
    except FilterError:
        return
    select(source, [{"a": {"b": 1}}], ("a",))
