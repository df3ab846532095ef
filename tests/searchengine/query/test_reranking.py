"""`rerank`: a function of the caller orders the best hits; on both backends."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, WordLengths
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_server import new_url
from tiny_model import write_cross_encoder

from searchengine import Hit, SearchEngine
from searchengine.errors import QueryError, SearchTimeout

QUESTION = "a bb ccc"
YEARS = {"a": 2001, "b": 2004, "c": 2004, "d": 2003, "e": 2009}
COSINES = {"a": 1.0, "b": 0.8, "c": 0.6, "d": 0.28, "e": 0.0}
TEXTS = ["a bb", "bb ccc", "a", "ccc", "a bb ccc", "a a bb", "bb", "a ccc", "dddd a", "dddd"]
DOCUMENTS = [
    {"_id": f"d{i}", "text": f"{TEXTS[i % 10]} {'eeeee ' * (i % 4)}", "n": i * 7 % 23, "g": i % 17}
    for i in range(60)
]


@pytest.fixture(scope="module", params=["folder", "postgresql"])
def places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """Where there is no collection yet."""
    if request.param == "postgresql":
        return new_url
    return lambda: str(tmp_path_factory.mktemp("rerank") / "c")


@pytest.fixture(scope="module")
def few(places: Callable[[], str]) -> Iterator[SearchEngine]:
    """Five documents; COSINES are those to the vector (1, 0)."""
    with SearchEngine.create(places(), None, {"prefix": 1}, dim=2) as engine:
        documents = [
            {"_id": key, "text": f"text {key}", "title": f"title {key}", "year": year}
            for key, year in YEARS.items()
        ]
        rows = [[cosine, (1 - cosine**2) ** 0.5] for cosine in COSINES.values()]
        engine.add(documents, np.array(rows, np.float32))
        yield engine


@pytest.fixture(scope="module")
def many(places: Callable[[], str]) -> Iterator[SearchEngine]:
    """DOCUMENTS, many of which tie; a shortlist that misses some."""
    config = {"prefix": 4, "shortlist": 15}
    with SearchEngine.create(places(), WordLengths(), config, tokenizer="stem:en") as engine:
        engine.add(DOCUMENTS)
        yield engine


def by_year(question: str, hits: Sequence[Hit]) -> list[int]:
    return [hit.metadata["year"] for hit in hits]


def by_n(question: str, hits: Sequence[Hit]) -> list[float]:
    """Few different numbers, so that many tie."""
    return [hit.metadata["n"] % 5 - 2.5 for hit in hits]


def test_the_best_candidates_by_its_numbers(few: SearchEngine) -> None:
    calls = []

    def rerank(question: str, hits: Sequence[Hit]) -> list[int]:
        calls.append((question, [(hit.key, hit.title, hit.text) for hit in hits]))
        return by_year(question, hits)

    hits = few.search([1.0, 0.0], 5, rerank=rerank, candidates=4)
    stored = [(key, f"title {key}", f"text {key}") for key in "abcd"]
    assert calls == [("", stored)]
    assert [(hit.key, hit.score) for hit in hits[:4]] == [
        ("b", 2004), ("c", 2004), ("d", 2003), ("a", 2001),
    ]  # fmt: skip
    assert hits[4].key == "e" and hits[4].score == pytest.approx(0, abs=1e-3)
    assert hits[0].scores == {"vector": pytest.approx(0.8, abs=1e-3), "rerank": 2004}
    assert "rerank" not in hits[4].scores and not hits.exact
    whole = few.search([1.0, 0.0], 5, rerank=by_year)
    assert [hit.key for hit in whole] == ["e", "b", "c", "d", "a"]
    assert few.search([1.0, 0.0], 2, rerank=by_year) == whole[:2]
    assert few.search([1.0, 0.0], 2, offset=2, rerank=by_year, where="year < 2009") == whole[3:]
    above = few.search([1.0, 0.0], 5, rerank=by_year, min_score=0.5)  # a cosine
    assert [hit.key for hit in above] == ["b", "c", "a"]
    assert few.search([1.0, 0.0], 1, offset=4, rerank=by_year, candidates=4) == hits[4:]
    exact = few.search([1.0, 0.0], 5, exact=True, rerank=by_year)
    assert [hit.key for hit in exact] == [hit.key for hit in whole]
    similar = few.similar("c", 4, rerank=by_year, candidates=3)  # nearest: b, d, e
    assert [hit.key for hit in similar] == ["e", "b", "d", "a"]
    assert few.search([1.0, 0.0], where="year > 2010", rerank=by_year) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_order_however_it_is_cut(many: SearchEngine, data: st.DataObject) -> None:
    options: dict[str, Any] = {
        "mode": data.draw(st.sampled_from(["vector", "text", "hybrid"])),
        "group_by": data.draw(st.sampled_from([None, "g"])),
        "where": data.draw(st.sampled_from([None, "n < 15"])),
    }
    plain = many.search(QUESTION, 60, **options)
    if data.draw(st.booleans()):
        options["min_score"] = data.draw(st.sampled_from([hit.score for hit in plain]))
        plain = many.search(QUESTION, 60, **options)
    candidates = data.draw(st.integers(1, 70))
    head = plain[:candidates]
    scored = sorted(
        zip(by_n("", head), head, strict=True), key=lambda pair: (-pair[0], pair[1].key)
    )
    expected = [(hit.key, score) for score, hit in scored]
    expected += [(hit.key, hit.score) for hit in plain[candidates:]]
    offset, k = data.draw(st.integers(0, 65)), data.draw(st.integers(1, 65))
    page = many.search(
        QUESTION, k, offset=offset, rerank=by_n, candidates=candidates, facets=["g"], **options
    )
    assert [(hit.key, hit.score) for hit in page] == expected[offset : offset + k]
    assert page.facets == many.search(QUESTION, 1, facets=["g"], **options).facets


def test_of_a_batch_each_question(many: SearchEngine) -> None:
    asked = []

    def rerank(question: str, hits: Sequence[Hit]) -> Any:
        asked.append(question)
        return np.array(by_n(question, hits), np.float32)

    questions = [QUESTION, "ccc dddd", QUESTION]
    batch = many.search_batch(questions, 7, rerank=rerank, candidates=20)
    assert asked == questions
    assert batch == [many.search(each, 7, rerank=by_n, candidates=20) for each in questions]
    assert batch[0] != many.search(QUESTION, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rerank": "newest"}, r"rerank must be a function of a question and its hits.*'newest'"),
        ({"rerank": by_year, "candidates": 0}, "candidates must be a whole number of at least 1"),
        ({"rerank": lambda q, hits: [1.0]}, r"for each of 5 hits, got \[1.0\]"),
        ({"rerank": lambda q, hits: np.ones((5, 2))}, "for each of 5 hits, got array"),
        ({"rerank": lambda q, hits: [1, None, 1, 1, 1]}, r"finite number .* got \[1, None"),
        ({"rerank": lambda q, hits: [[1], [1, 2]]}, r"finite number .* got \[\[1\]"),
        ({"rerank": lambda q, hits: [1, 2, float("nan"), 4, 5]}, r"number .* got \[1, 2, nan"),
    ],
)
def test_what_is_no_order_is_refused(
    few: SearchEngine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        few.search([1.0, 0.0], 2, **options)


def test_its_own_errors_pass_and_time_counts(few: SearchEngine, many: SearchEngine) -> None:
    error = ZeroDivisionError("mine")

    def failing(question: str, hits: Sequence[Hit]) -> Any:
        raise error

    for engine, query in ((few, [1.0, 0.0]), (many, QUESTION)):
        with pytest.raises(ZeroDivisionError) as raised:
            engine.search(query, rerank=failing)  # type: ignore[arg-type]
        assert raised.value is error

    def slow(question: str, hits: Sequence[Hit]) -> list[int]:
        time.sleep(0.3)
        return by_year(question, hits)

    with pytest.raises(SearchTimeout):
        few.search([1.0, 0.0], rerank=slow, timeout=0.3)


def recipes() -> list[str]:
    """The programs of the page."""
    page = (REPOSITORY / "docs" / "searching.md").read_text()
    section = page[page.index("## Your own order") : page.index("## Filters")]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cross, recency, field, diversity = recipes()
    year = date.today().year
    documents = [
        {"_id": "old", "text": "do whales sleep", "year": year - 20},
        {"_id": "repeat", "text": "do whales sleep", "year": year - 5},
        {"_id": "new", "text": "when do whales", "year": year},
        {"_id": "no", "text": "when owls hunt"},
    ]
    monkeypatch.chdir(tmp_path)
    write_cross_encoder(tmp_path / "cross-encoder" / "ms-marco-MiniLM-L6-v2")
    with SearchEngine.create("notes.index", WordLengths()) as engine:
        engine.add(documents)

        def keys(program: str) -> list[str]:
            names: dict[str, Any] = {"engine": engine}
            exec(program, names)
            return [hit.key for hit in names["hits"]]

        plain = [hit.key for hit in engine.search("when do whales sleep")]
        assert plain == ["old", "repeat", "new", "no"]
        assert keys(recency)[:3] == ["new", "repeat", "old"]
        assert keys(field) == ["new", "repeat", "old", "no"]
        assert keys(diversity) == ["old", "new", "repeat", "no"]
        names: dict[str, Any] = {"engine": engine}
        exec(cross, names)
        scores = {hit.key: hit.score for hit in names["hits"]}
        texts = [engine[key].text for key in scores]
        alone = names["cross_encoder"].predict([("when do whales sleep", text) for text in texts])
        assert list(scores.values()) == pytest.approx(sorted(alone.tolist(), reverse=True))
        assert len(scores) == 4 and max(alone) - min(alone) > 1e-3
