"""Another encoder for a collection on a server: into tables beside, which take its place."""

import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from conftest import Remainders, WordLengths, during, interrupt, stored_states
from postgres_server import new_url

from searchengine import SearchEngine
from searchengine.backends.postgresql import collection as collections
from searchengine.backends.postgresql.collection import PostgresCollection
from searchengine.engine import discard_reindex
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch

DEADLINE = 30  # seconds


@pytest.fixture
def url() -> str:
    """Of a collection whose name has a capital letter."""
    return new_url().replace("#c", "#C")


@pytest.fixture
def engine(url: str) -> Iterator[SearchEngine]:
    with SearchEngine.create(url, WordLengths(), tokenizer="stem:en") as engine:
        engine.add([{"_id": f"k{i}", "text": "a bb ccc " * (i % 3 + 1), "n": i} for i in range(9)])
        yield engine


def execute(engine: SearchEngine, sql: str) -> list[Any]:
    collection: Any = engine.collection
    with collection._connections.borrow() as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def test_what_others_change_meanwhile_is_included(
    engine: SearchEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.update({"k1": {"seen": True}})
    engine.set_synonyms([["bb", "dd"]])
    engine.index_fields("n")
    with SearchEngine.open(url, WordLengths()) as other:

        def change() -> None:
            other.add([{"_id": "new", "text": "dddd"}, {"_id": "k2", "text": "eeeee"}])
            other.update({"k3": {"n": None}, "k1": {"late": 1}})
            other.delete(["k4"])

        during(monkeypatch, PostgresCollection, "replace_by", change)
        engine.reindex(Remainders())
        with pytest.raises(EncoderMismatch):
            other.search("bb")
    assert set(engine.keys()) == {"new", *(f"k{i}" for i in range(9) if i != 4)}
    assert [*engine.keys()][:2] == ["k0", "k1"]
    assert engine["k1"].metadata == {"n": 1, "seen": True, "late": 1}
    assert stored_states(engine, ["k1"])["k1"].source == '{"n":1}'
    assert engine["k3"].metadata == {} and engine["k2"].text == "eeeee"
    engine.verify()
    assert engine.search("eeeee", 1, mode="vector")[0].score == pytest.approx(1, abs=1e-3)
    assert engine.collection.settings["synonyms"] == "bb, dd" and "n" in engine.stats().fields
    indexes = "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"
    assert {("field n",), ("date n",)} <= {*execute(engine, indexes)}
    left = "SELECT 1 FROM pg_namespace WHERE nspname LIKE current_schema() || '%reindex'"
    assert execute(engine, left) == []
    engine.add([{"_id": "later", "text": "ffff"}])
    assert len(engine) == 10


def test_an_interrupted_one_goes_on_or_is_dropped(
    engine: SearchEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for discard in (True, False):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            during(patch, PostgresCollection, "configure", interrupt)
            engine.reindex(Remainders())
        engine.refresh()
        assert engine.search("bb", 1) and engine.collection.settings["encoder"]["dim"] == 16
        with pytest.raises(EncoderMismatch, match="is pending"):
            engine.reindex(WordLengths(8, "narrow"))
        if discard:
            assert discard_reindex(engine) and not discard_reindex(engine)
    encoder = Remainders()
    engine.reindex(encoder)
    assert encoder.calls == [] and len(engine) == 9  # all were encoded before


def test_a_reader_keeps_its_commit(
    engine: SearchEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap waits for it. Another reindex meanwhile is refused, and so is one that lasts."""
    with SearchEngine.open(url, WordLengths()) as reader, reader.collection.reading() as snapshot:
        ids = snapshot.ids_after(-1, None, 99)
        thread = threading.Thread(target=engine.reindex, args=(Remainders(8),))
        swapping = threading.Event()
        during(monkeypatch, PostgresCollection, "configure", swapping.set)
        thread.start()
        assert swapping.wait(DEADLINE)
        with pytest.raises(CollectionBusy, match="reindexed by another process"):
            engine.reindex(Remainders(8))
        assert len(snapshot.documents(ids)) == 9 and snapshot.settings["encoder"]["dim"] == 16
    thread.join(DEADLINE)
    assert engine.collection.settings["encoder"]["dim"] == 8
    with SearchEngine.open(url, Remainders(8)) as reader, reader.collection.reading():
        monkeypatch.setattr(collections, "_PATIENCE", "100ms")
        monkeypatch.setattr("searchengine.backends.postgresql.connections._TRIES", 2)
        with pytest.raises(CollectionBusy, match="others read without a pause"):
            engine.reindex(WordLengths())
    assert engine.collection.settings["encoder"]["dim"] == 8


def test_documents_without_text_are_refused(engine: SearchEngine) -> None:
    engine.add([{"_id": "bare", "text": ""}], WordLengths().encode(["a"]))
    with pytest.raises(CollectionError, match="'bare' came with vectors and without text"):
        engine.reindex(Remainders())
    assert discard_reindex(engine) is False


def test_no_collection_has_the_name_that_a_reindex_takes(engine: SearchEngine, url: str) -> None:
    """Else a reindex, or its end, would drop that one."""
    for end, enter in product(("-reindex", "%2Dreindex"), (SearchEngine.create, SearchEngine.open)):
        with pytest.raises(CollectionError, match="must be a word"):
            enter(url + end, Remainders())
    with SearchEngine.create(url + "_reindex", Remainders()) as other:
        other.add([{"_id": "own", "text": "a bb"}])
        engine.reindex(Remainders())
        assert discard_reindex(engine) is False and [*other.keys()] == ["own"]
