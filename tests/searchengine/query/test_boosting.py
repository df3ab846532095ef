"""Boosts: what an expression means, which ones are refused, and the order that they give."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_paging import QUESTION, Row, created, documents

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.query import boosting
from searchengine.query.boosting import parse
from searchengine.query.ranking import BOOSTED

NOW = 1_600_000_000.0  # 2020-09-13T12:26:40Z
VALUES: dict[tuple[str, ...], Any] = {
    ("year",): 2016.0,
    ("lang",): "en",
    ("date",): "2020-09-12T12:26:40Z",
    ("author", "rank"): 3.0,
    ("two words",): 7.0,
    ("none",): None,
    ("tags",): ["a"],
}


def value(source: str) -> float:
    return boosting._factor(parse(source).node, VALUES, NOW)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("2", 2),
        ("year / 2000 - 1", 0.008),
        ("2 ** -1 * (3 + 1)", 2),
        ("-year + 2020", 4),
        ("True + 0.5", 1.5),
        ("age_days(date)", 1),
        ("0.9 ** age_days('2020-09-03T12:26:40')", 0.9**10),
        ("age_days('2021')", 0),
        ("log(year)", math.log(2016)),
        ("sqrt(author.rank + 1)", 2),
        ("abs(-3) + min(year, 4) + max(1, 2, 3)", 10),
        ("coalesce(none, 5)", 5),
        ("coalesce(none, age_days(none), year, 5)", 2016),
        ("coalesce(author.rank, 5)", 3),
        ("coalesce(lang, 5)", 5),
        ("coalesce(tags, 5)", 5),
        ("1 if coalesce(year, 'none') == 'none' else 0", 1),
        ("coalesce(none * 2 + year, 5)", 5),
        ("field('two words')", 7),
        ("2 if lang == 'en' else 1", 2),
        ("2 if lang != 'en' else none", None),
        ("2 if lang in ('ko', 'en') and not year < 2016 else 1", 2),
        ("2 if lang not in ['ko'] and (year >= 2020 or year <= 10) else 1", 1),
        ("2 if coalesce(none, '') == '' else 1", 2),
        ("2 if lang > 'a' else 1", 2),
        ("2 if year and not (year - 2016) and lang else 1", 2),
    ],
)
def test_what_an_expression_means(source: str, expected: float | None) -> None:
    if expected is None:
        with pytest.raises(boosting._Missing):
            value(source)
    else:
        assert value(source) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none", "has no none; write coalesce"),
        ("lang", "has the text 'en' where a number is needed"),
        ("tags", "has no number or text as tags"),
        ("lang < 3", None),
        ("1 if lang < 3 else 2", "has 'en' to compare with 3.0"),
        ("0 - year", "has the boost -2016; it must be a number of at least 0"),
        ("1e308 * 10", "has the boost inf"),
        ("1e308 * 10 - 1e308 * 10", "has the boost nan"),
        ("10 ** year", "too great for a number"),
        ("1 / (year - 2016)", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(0 - 1) ** 0.5", "has the root of a number below 0"),
        ("log(0)", r"has 0 in log\(0\), which has no log"),
        ("sqrt(0 - year)", "has -2016 in sqrt"),
        ("age_days(lang)", "has 'en' as lang; age_days takes a date such as 2020-03-01"),
        ("age_days(year)", "has 2016.0 as year; age_days takes a date"),
    ],
)
def test_values_that_are_no_boost(source: str, message: str | None) -> None:
    if message is None:
        with pytest.raises(QueryError, match="takes numbers, texts"):
            parse(source)
        return
    with pytest.raises(boosting._Unusable, match=message):
        value(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "cannot be read"),
        ("year >", "cannot be read"),
        ("1; 2", "cannot be read"),
        ("x\0", "cannot be read"),
        ("ln(year)", "no function ln; its functions are abs, age_days, coalesce"),
        ("log(year, 2)", r"write log\(number\), got log\(year, 2\)"),
        ("coalesce(year)", r"write coalesce\(field, value\)"),
        ("max(x=1)", "takes numbers"),
        ("field(year)", r"write field\('name'\)"),
        ("text", "takes metadata fields, got text"),
        ("_id * 2", "takes metadata fields, got _id"),
        ("__import__('os').system('x')", "takes numbers"),
        ("(1).__class__", "takes numbers"),
        ("year[0]", "takes numbers"),
        ("lambda: 1", "takes numbers"),
        ("[1]", "takes numbers"),
        ("f'{year}'", "takes numbers"),
        ("(x := 1)", "takes numbers"),
        ("1 < year < 3", "takes numbers"),
        ("year % 2", "takes numbers"),
        ("None", "takes numbers"),
        ("b'x'", "takes numbers"),
        ("2j", "takes numbers"),
        ("1" * 400, "too great for a number"),
        ("+".join("1" * 450), "nested more than 100 levels"),
        ("-" * 990 + "1", "nested more than|cannot be read"),
        ("(" * 400 + "1" + ")" * 400, "cannot be read"),
        ("1" * 1001, "1,001 characters, at most 1,000"),
    ],
)
def test_expressions_that_are_refused(source: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        parse(source)


@pytest.fixture(scope="module", params=["exact", "hnsw"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with created(request.param, tmp_path_factory) as engine:
        engine.add(documents())
        yield engine


SOURCE = "1 + (1 if g < 200 else 0.25)"


def boost_of(hit: Any) -> float:
    return 2 if hit.metadata["g"] < 200 else 1.25


def in_parts(plain: list[Any], sizes: list[int]) -> list[str]:
    """The documents by boosted score within each part of the order."""
    start, keys = 0, []
    for size in sizes:
        part = plain[start:size]
        part.sort(key=lambda hit: -hit.score * (boost_of(hit) if hit.score > 0 else 1))
        keys += [hit.key for hit in part]
        start = size
    return keys


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_boosts_order_the_best_and_then_the_next(engine: SearchEngine, mode: str) -> None:
    plain = engine.search(QUESTION, 900, mode=mode)
    expected = in_parts(list(plain), [BOOSTED, 4 * BOOSTED, 16 * BOOSTED])[:700]
    hits = engine.search(QUESTION, 700, mode=mode, boost=SOURCE)
    assert [hit.key for hit in hits] == expected
    pages = [
        engine.search(QUESTION, 70, mode=mode, boost=SOURCE, offset=n) for n in range(0, 700, 70)
    ]
    assert [hit.key for page in pages for hit in page] == expected
    scores = {hit.key: hit for hit in plain}
    for hit in hits[:200]:
        before = scores[hit.key]
        assert hit.scores == {**before.scores, mode: before.score, "boost": boost_of(hit)}
        assert hit.score == (before.score * boost_of(hit) if before.score > 0 else before.score)
    assert not hits.exact


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_boosts_with_other_options(engine: SearchEngine, mode: str) -> None:
    plain = engine.search(QUESTION, 150, mode=mode)
    least = plain[99].score
    kept = list(engine.search(QUESTION, 300, mode=mode, min_score=least))
    hits = engine.search(QUESTION, 300, mode=mode, boost=SOURCE, min_score=least)
    assert [hit.key for hit in hits] == in_parts(kept, [BOOSTED])
    groups = engine.search(QUESTION, 60, mode=mode, boost=SOURCE, group_by="g")
    first: dict[int, str] = {}
    boosted = engine.search(QUESTION, 200, mode=mode, boost=SOURCE)
    for hit in boosted:
        first.setdefault(hit.metadata["g"], hit.key)
    assert [hit.key for hit in groups] == list(first.values())[:60]
    diverse = engine.search(QUESTION, 30, mode=mode, boost=SOURCE, diversity=0.3)
    assert len({hit.key for hit in diverse}) == 30 and diverse[0].key == boosted[0].key
    best = sorted(engine.search(QUESTION, 200, mode=mode), key=lambda hit: -hit.score)
    same = engine.search(QUESTION, 20, mode=mode, boost="7")
    assert [hit.key for hit in same] == [hit.key for hit in best[:20]]
    filtered = engine.search(QUESTION, 20, mode=mode, boost=SOURCE, where="g >= 200")
    assert all(hit.scores["boost"] == 1.25 for hit in filtered)


def test_why_a_boost_hides_a_document(engine: SearchEngine) -> None:
    for mode in ("vector", "text", "hybrid"):
        options: dict[str, Any] = {"mode": mode, "boost": SOURCE}
        hits = engine.search(QUESTION, 60, **options)
        for rank in (1, 7, 60):
            found = engine.explain(QUESTION, hits[rank - 1].key, 60, **options)
            assert (found.found, found.rank, found.stages[-1].name) == (True, rank, "boost")
        lost = engine.explain(QUESTION, hits[59].key, 10, **options)
        assert (lost.lost, lost.settings, lost.rank) == ("boost", {"k": 60}, 60)
        least = engine.search(QUESTION, 60, mode=mode)[30].score
        low = engine.search(QUESTION, 60, mode=mode)[59].key
        without = engine.explain(QUESTION, low, 10, min_score=least, mode=mode).lost
        assert without in ("min_score", "prefix")
        assert engine.explain(QUESTION, low, 10, min_score=least, **options).lost == without


@pytest.mark.parametrize(
    ("boost", "message"),
    [
        ("nn + 1", "boost: no document has a field nn; did you mean n"),
        ("0 - n - 2", r"boost: the document '\d+' has the boost -\d+; it must be"),
        ("log(", "cannot be read"),
        (3, "boost must be a text or None, got 3"),
    ],
)
def test_boosts_that_are_refused(engine: SearchEngine, boost: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine.search(QUESTION, boost=boost)
    with pytest.raises(QueryError, match="leave boost or cross_encoder out"):
        engine.search(QUESTION, boost="n", cross_encoder="x")


@pytest.fixture
def dated(tmp_path: Path) -> Iterator[SearchEngine]:
    """Texts with one vector, of different days."""
    days = ["2020-09-01", "2020-09-12", None, "2020-09-10T10:00+09:00", "2021-01-01"]
    with SearchEngine.create(tmp_path / "c", Row()) as engine:  # type: ignore[arg-type]
        engine.add({"_id": str(i), "text": "owl", "date": day} for i, day in enumerate(days))
        yield engine


def test_age_goes_by_hours(dated: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    boost = "0.9 ** age_days(coalesce(date, '2020-09-11'))"
    answers = []
    for now in (1_600_000_000.0, 1_600_000_000.0 + 20 * 60):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        answers.append(dated.search("owl", boost=boost))
    assert answers[0] == answers[1]
    assert [hit.key for hit in answers[0]] == ["4", "1", "2", "3", "0"]
    assert [hit.scores["boost"] for hit in answers[0]] == pytest.approx(
        [1, 0.9**1.5, 0.9**2.5, 0.9 ** (3 + 11 / 24), 0.9**12.5]
    )
    with pytest.raises(QueryError, match="the document '2' has no date; write coalesce"):
        dated.search("owl", boost="age_days(date)")
