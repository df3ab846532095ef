"""Documents without a question: got by key, listed, counted, sampled; pages, order and facets."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.errors import CollectionError, FilterError, QueryError

DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "a", "text": "the cat sat", "year": 2016, "lang": "en", "tags": ["x", "y", "x"]},
    {"_id": "b", "text": "the cat slept", "year": 2014, "lang": "en", "tags": ["y"]},
    {"_id": "c", "title": "whale", "text": "sleep", "year": 2020, "lang": "ko", "open": True},
    {"_id": "d", "text": "bees hum", "by": {"name": "Ann"}, "tags": []},
]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "words.index", WordLengths()) as engine:
        engine.add(DOCUMENTS)
        yield engine


@pytest.mark.parametrize("key", [5.0, True, None, "\ud800", ["a", None], b"a"])
def test_what_cannot_be_a_key_is_refused(engine: SearchEngine, key: Any) -> None:
    with pytest.raises(QueryError, match="key"):
        engine.get(key)


def test_an_empty_collection(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        assert (len(engine), list(engine), engine.get("a")) == (0, [], None)
        assert engine
        hits = engine.search("a bee", facets=["year"])
        assert hits == [] and hits.facets == {"year": {}}


@pytest.mark.parametrize("method", ["keys", "count", "documents"])
def test_a_bad_filter_is_refused_when_it_is_given(engine: SearchEngine, method: str) -> None:
    with pytest.raises(FilterError):
        getattr(engine, method)("year >")
    with pytest.raises(QueryError, match="where must be a text"):
        getattr(engine, method)(5)


def test_an_iterator_keeps_its_commit(engine: SearchEngine) -> None:
    """Also where the engine was closed meanwhile."""
    more = [{"_id": f"k{i}", "text": "bee"} for i in range(300)]  # read 100 at a time
    engine.add(more)
    documents = iter(engine)
    assert next(documents).key == "a"
    engine.delete(["b", "c", "k250"])
    engine.add([{"_id": "e", "text": "new"}])
    engine.close()
    assert [each.key for each in documents] == ["b", "c", "d", *(each["_id"] for each in more)]
    with pytest.raises(CollectionError, match="closed"):
        next(iter(engine))


# ------------------------------------------------------------------- pages, order, scores, facets


@pytest.mark.parametrize("indexed", [False, True])
def test_facets_count_all_documents_that_match(engine: SearchEngine, indexed: bool) -> None:
    engine.add(
        [{"_id": "e", "text": "e", "year": 2016.0, "lang": None, "open": False, "n": [True, 1]}]
    )
    if indexed:
        engine.index_fields("year", "lang", "tags", "open", "by.name", "by")
    names = ("year", "lang", "tags", "open", "by.name", "by", "missing")
    assert [*map(repr, engine.facets("n")["n"])] == ["1"]
    hits = engine.search("the cat sat", 1, facets=names)
    assert len(hits) == 1
    assert hits.facets == {
        "year": {2016: 2, 2014: 1, 2020: 1},
        "lang": {"en": 2, "ko": 1, None: 1},
        "tags": {"y": 2, "x": 1},
        "open": {True: 1, False: 1},
        "by.name": {"Ann": 1},
        "by": {},
        "missing": {},
    }
    assert [*hits.facets["year"]] == [2016, 2014, 2020]  # the most frequent first
    assert all(type(value) is bool for value in hits.facets["open"])
    filtered = engine.search("the cat sat", 1, where="lang = 'en'", facets=["year", "tags"])
    assert filtered.facets == {"year": {2014: 1, 2016: 1}, "tags": {"y": 2, "x": 1}}
    assert engine.similar("a", 1, facets=["lang"]).facets["lang"] == {"en": 2, "ko": 1, None: 1}


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "a", "1"]))


@given(st.lists(st.one_of(VALUES, st.lists(VALUES, max_size=3)), min_size=1, max_size=12))
def test_facets_equal_a_count_in_python(tmp_path_factory: Any, values: list[Any]) -> None:
    expected: Counter[Any] = Counter()
    for value in values:
        kinds = {json.dumps(item): item for item in (value if isinstance(value, list) else [value])}
        expected.update(kinds.values())
    documents = [{"_id": str(i), "text": "x", "v": v} for i, v in enumerate(values)]
    path = tmp_path_factory.mktemp("facets") / "c"
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(documents)
        assert engine.search("x", facets=["v"]).facets["v"] == expected
        engine.index_fields("v")
        assert engine.search("x", facets=["v"]).facets["v"] == expected
