"""Documents without a question: got by key, listed, counted, sampled; pages, order and facets."""

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import Document, SearchEngine
from searchengine.backends import entries, listing
from searchengine.errors import CollectionError, FilterError, QueryError, UnknownKey

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


def many(count: int) -> list[dict[str, Any]]:
    return [{"_id": f"k{i:04d}", "text": "bee", "n": i, "even": i % 2 == 0} for i in range(count)]


def test_get_one_and_several(engine: SearchEngine) -> None:
    document = Document("b", "the cat slept", metadata={"year": 2014, "lang": "en", "tags": ["y"]})
    assert engine.get("b") == document == engine["b"]
    assert engine.get("?") is None
    assert engine.get("?", "none") == "none"
    several = engine.get(["d", "?", "b", "b"])
    assert [each and each.key for each in several] == ["d", None, "b", "b"]
    assert engine.get(iter(["a"]), 0)[0] == engine["a"]
    assert engine.get([]) == []


def test_an_unknown_key_is_a_key_error_in_one_sentence(engine: SearchEngine) -> None:
    with pytest.raises(KeyError) as caught:
        _ = engine["?"]
    assert isinstance(caught.value, UnknownKey)
    assert str(caught.value) == (
        f"{engine.collection.path} has no document '?'; "
        "engine.get(key) returns None instead of raising"
    )


@pytest.mark.parametrize("key", [5.0, True, None, "\ud800", ["a", None], b"a"])
def test_what_cannot_be_a_key_is_refused(engine: SearchEngine, key: Any) -> None:
    with pytest.raises(QueryError, match="key"):
        engine.get(key)


def test_contains_length_and_iteration(engine: SearchEngine) -> None:
    assert "a" in engine and "?" not in engine and 5 not in engine
    assert len(engine) == engine.count() == 4
    assert [document.key for document in engine] == list(engine.keys()) == ["a", "b", "c", "d"]
    assert list(engine)[2].title == "whale"
    with pytest.raises(QueryError, match="a key must be text"):
        _ = "\ud800" in engine


def test_an_empty_collection(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        assert (len(engine), list(engine), engine.get("a")) == (0, [], None)
        assert engine
        hits = engine.search("a bee", facets=["year"])
        assert hits == [] and hits.facets == {"year": {}}


def test_keys_and_counts_by_filter(engine: SearchEngine) -> None:
    assert list(engine.keys("lang = 'en'")) == ["a", "b"]
    assert engine.count("lang = 'en' and year > 2015") == 1
    assert [each.key for each in engine.documents("exists(year)", offset=1, limit=1)] == ["b"]
    assert list(engine.documents(offset=2**70)) == list(engine.documents(limit=0)) == []


@pytest.mark.parametrize("method", ["keys", "count", "documents"])
def test_a_bad_filter_is_refused_when_it_is_given(engine: SearchEngine, method: str) -> None:
    with pytest.raises(FilterError):
        getattr(engine, method)("year >")
    with pytest.raises(QueryError, match="where must be a text"):
        getattr(engine, method)(5)


@pytest.mark.parametrize("indexed", [False, True])
def test_listing_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool) -> None:
    monkeypatch.setattr(entries, "_IDS", 7)
    monkeypatch.setattr(listing, "_DOCUMENTS", 3)
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add(many(50))
        if indexed:
            engine.index_fields("even", "n")
        evens = [f"k{i:04d}" for i in range(0, 50, 2)]
        assert list(engine.keys("even")) == evens
        assert [each.key for each in engine.documents("even", offset=4, limit=9)] == evens[4:13]
        assert engine.count("even") == 25


def test_an_iterator_keeps_its_commit(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "_IDS", 1)
    monkeypatch.setattr(listing, "_DOCUMENTS", 1)
    documents = iter(engine)
    assert next(documents).key == "a"
    engine.delete(["b", "c"])
    engine.add([{"_id": "e", "text": "new"}])
    assert [document.key for document in documents] == ["b", "c", "d"]
    assert list(engine.keys()) == ["a", "d", "e"]


def test_an_iterator_left_alone_does_not_keep_the_collection_open(engine: SearchEngine) -> None:
    documents = iter(engine)
    next(documents)
    engine.delete(["b"])
    engine.close()
    assert [document.key for document in documents] == ["b", "c", "d"]  # its commit is still there
    with pytest.raises(CollectionError, match="closed"):
        next(iter(engine))


def test_threads_list_while_one_writes(engine: SearchEngine) -> None:
    """Every listing is that of one commit: all documents of a round, or none."""
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            keys = [key for key in engine.keys() if key.startswith("k")]
            if len(keys) not in (0, 60) or engine.count() not in (4, 64):
                wrong.append(keys)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(3):
        engine.add(many(60))
        engine.delete([f"k{i:04d}" for i in range(60)])
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def _list_in_child(engine: SearchEngine, answers: Any) -> None:
    answers.put((list(engine.keys()), engine.count("lang = 'en'"), engine["c"].title))


def test_other_processes_list_too(engine: SearchEngine) -> None:
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    children = [context.Process(target=_list_in_child, args=(engine, answers)) for _ in range(2)]
    for child in children:
        child.start()
    results = [answers.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert results == [(["a", "b", "c", "d"], 2, "whale")] * 2


# ------------------------------------------------------------------- pages, order, scores, facets


@pytest.mark.parametrize("indexed", [False, True])
def test_facets_count_all_documents_that_match(engine: SearchEngine, indexed: bool) -> None:
    engine.add([{"_id": "e", "text": "e", "year": 2016.0, "lang": None, "open": False}])
    if indexed:
        engine.index_fields("year", "lang", "tags", "open", "by.name", "by")
    names = ("year", "lang", "tags", "open", "by.name", "by", "missing")
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


# ------------------------------------------------------------------------------------- conversions


def test_hits_as_dicts(engine: SearchEngine) -> None:
    hits = engine.search("the cat sat", 2)
    assert hits.to_dicts() == [hit.as_dict() for hit in hits]
    batch = engine.search_batch(["the cat sat", "sleep"], 2)
    rows = batch.to_dicts()
    assert [row.pop("query") for row in rows] == [0, 0, 1, 1]
    assert rows == [hit.as_dict() for hits in batch for hit in hits]
