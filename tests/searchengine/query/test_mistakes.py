"""Mistakes of people who come from other libraries: a sentence with the way out."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import Document, SearchEngine
from searchengine.errors import FieldWarning, SearchEngineError

DOCUMENTS = [
    {"_id": 1, "text": "the cat sat", "year": 2016, "lang": "en"},
    {"_id": "two", "title": "whale", "text": "sleep", "year": 2020, "lang": "ko"},
]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "words.index", WordLengths()) as engine:
        engine.add(DOCUMENTS)
        yield engine


E = SearchEngine
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    # Opening.
    "chroma: Client(path)": (
        lambda e: E("x.index"),
        "use SearchEngine.open('x.index'), or open_or",
    ),
    "create twice": (
        lambda e: E.create(e.collection.path),
        "open it with SearchEngine.open_or_create",
    ),
    "open before create": (lambda e: E.open("none.index"), "make one with"),
    "a bare function": (
        lambda e: E.create("x", lambda texts: None),
        "FunctionEncoder(function, 'name')",
    ),
    "config metric": (
        lambda e: E.create("x", WordLengths(), config={"metric": "l2"}),
        "'metric' is no field of an index config; they are prefix",
    ),
    "faiss: factory": (
        lambda e: E.create("x", WordLengths(), config="HNSW32"),
        "an index config is a mapping",
    ),
    "a server of another kind": (lambda e: E.open("http://localhost:8000"), "a URL of PostgreSQL"),
    # Adding.
    "texts": (lambda e: e.add(["hello"]), '{"_id": "1", "text": "…"}, got str'),
    "txtai: tuples": (
        lambda e: e.add([(0, "hello", None)]),
        '{"_id": "1", "text": "…"}, got tuple',
    ),
    "faiss: bare rows": (
        lambda e: e.add(np.ones((2, 16))),
        '{"_id": "1", "text": "…"}, got ndarray',
    ),
    "one text": (lambda e: e.add("hello"), "put one document into a list"),
    "one mapping": (lambda e: e.add({"_id": "1", "text": "a"}), "put one document into a list"),
    "no key": (lambda e: e.add([{"text": "a"}]), "give every document an _id"),
    "one key to delete": (lambda e: e.delete("two"), "put one key into a list"),
    "a key twice": (lambda e: e.update({1: {"a": 1}, "1": {"a": 2}}), "the key '1' twice"),
    "one number to delete": (lambda e: e.delete(1), "put one key into a list"),
    # Searching.
    "chroma: where": (lambda e: e.search("cat", where={"year": 2016}), 'write "year >= 2015"'),
    "several questions": (lambda e: e.search(["a", "b"]), "use search_batch for several"),
    "one question": (lambda e: e.search_batch("cat"), "use search"),
    "no question": (lambda e: e.search_batch(None), "got None; use search or similar"),
    "an empty question": (lambda e: e.search(" \n"), "the query is empty"),
    "another width": (lambda e: e.search(np.ones(3)), "must have 16 numbers, got 3"),
    "several widths": (
        lambda e: e.search_batch([[1, 0], [1]]),
        "must have 16 numbers, got lists of several lengths",
    ),
    "is null": (lambda e: e.count("year is null"), "year = null"),
    "exists": (lambda e: e.count("year exists"), "write exists(year)"),
    "&&": (lambda e: e.count("year > 1 && year < 3"), "write and"),
    "facet of a title": (lambda e: e.search("cat", facets=["title"]), "take metadata fields"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_sentence_with_the_way_out(name: str, engine: SearchEngine) -> None:
    mistake, way_out = MISTAKES[name]
    with pytest.raises((SearchEngineError, TypeError, AttributeError)) as error:
        mistake(engine)
    first = str(error.value).partition("\n")[0]  # a filter shows where, below
    assert way_out in first and len(first) < 400
    assert len(engine) == 2  # nothing is lost


@pytest.mark.parametrize("key", [1, np.int64(1), "1"])
def test_a_whole_number_is_a_key_everywhere(key: Any, engine: SearchEngine) -> None:
    expected = Document("1", "the cat sat", metadata={"year": 2016, "lang": "en"})
    assert engine.get(key) == engine[key] == engine.get([key])[0] == expected
    assert key in engine and 3 not in engine and None not in engine
    (vectors,) = engine.vectors([key])
    assert vectors is not None and vectors.shape == (1, 16)
    assert [hit.key for hit in engine.similar(key)] == ["two"]
    assert engine.count(f"_id = {key}") == engine.count(f"_id in ({key}, 'x')") == 1
    engine.update({key: {"year": 2017}})
    engine.add([Document(key, "the cat ran")])
    assert engine[1].text == "the cat ran" and len(engine) == 2
    assert engine.delete([key]) == 1 and key not in engine
    with pytest.raises(SearchEngineError, match=r"an integer or UTF-8 text.*, got 1\.0"):
        engine.get([1.0])


def test_fields_that_no_document_has_are_named(engine: SearchEngine) -> None:
    calls: list[Callable[[str], Any]] = [
        lambda where: engine.search("cat", where=where).notes,
        lambda where: engine.search(np.ones(16), where=where).notes,
        lambda where: engine.search_batch(["cat"], where=where)[0].notes,
        lambda where: engine.similar("two", where=where).notes,
    ]
    for call in calls:
        with pytest.warns(
            FieldWarning, match="no document has a field yeer; did you mean year"
        ) as w:
            assert call("yeer = 2016") == (str(w[0].message),)
        assert w[0].filename == __file__  # the line of the caller
    for wrong, hint in {"id": "_id", "metadata.lang": "lang", "zzz": "misspelt"}.items():
        with pytest.warns(FieldWarning, match=hint):
            engine.search("cat", where=f"{wrong} = 'en'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.search("cat", where="year = 1999") == []  # the field exists
        assert engine.search("cat", where="yeer = 1999 or year = 2016")  # something matches


def test_part_of_the_hits_are_hits(engine: SearchEngine) -> None:
    hits = engine.search("cat", facets=["lang"])
    first = hits[:1]
    assert type(first) is type(hits) and len(first) == 1 and len(hits) == 2
    assert first.facets == hits.facets
    assert first.to_dicts() == hits.to_dicts()[:1]
