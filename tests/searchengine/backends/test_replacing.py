"""Passages on a server written anew beside those in use: the rotation again, another encoder."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from conftest import Remainders, WordLengths
from postgres_server import new_cluster_url, new_url

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Entry
from searchengine.backends.postgresql import pool, replacing
from searchengine.backends.postgresql.schema import FITTED
from searchengine.errors import BackendUnavailable, CollectionBusy, EncoderMismatch, QueryError
from searchengine.indexer.config import FLAT_BELOW

DIM = 32
DEADLINE = 60  # seconds
SERVERS = ["postgresql", pytest.param("citus", marks=pytest.mark.cluster)]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a collection that does not exist yet."""
    return new_url() if request.param == "postgresql" else new_cluster_url()


@pytest.fixture
def engine(url: str) -> Iterator[SearchEngine]:
    with SearchEngine.create(url, None, {"prefix": 8}, dim=DIM, tokenizer="porter") as engine:
        yield engine


def units(n: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Unit rows (n, DIM), of which each seed has the energy in other directions."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, DIM)) * np.arange(1, DIM + 1) ** -1.2
    rows = rows @ np.linalg.qr(np.random.default_rng(90 + seed).standard_normal((DIM, DIM)))[0]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def entries(n: int, seed: int = 0, start: int = 0) -> list[Entry]:
    return [
        Entry(Document(f"k{i}", f"text {i}", metadata={"n": i}), ((0, 4),), vector[None])
        for i, vector in enumerate(units(n, seed), start)
    ]


def refit(engine: SearchEngine) -> None:
    engine.collection.configure({FITTED: 1})
    engine.collection.wait_ready(DEADLINE)


@contextmanager
def repeated(*works: Callable[[np.random.Generator], Any]) -> Iterator[list[BaseException]]:
    """Each of these in a thread, again and again, with its random numbers; their errors."""
    done, errors = threading.Event(), list[BaseException]()

    def repeat(seed: int, work: Callable[[np.random.Generator], Any]) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not done.is_set():
                work(rng)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=each) for each in enumerate(works)]
    [thread.start() for thread in threads]
    try:
        yield errors
    finally:
        done.set()
        [thread.join(DEADLINE) for thread in threads]


def found(engine: SearchEngine, queries: Any) -> float:
    """The share of the true 10 that a shortlist of 20 has."""
    shares = []
    for query in queries:
        true = {hit.key for hit in engine.search(query, 10, exact=True)}
        shares.append(len(true & {hit.key for hit in engine.search(query, 10, shortlist=20)}) / 10)
    return float(np.mean(shares))


# --- the rotation ---------------------------------------------------------------------------------


def test_a_collection_that_has_grown_gets_another_rotation(engine: SearchEngine) -> None:
    collection: Any = engine.collection
    collection.upsert(entries(FLAT_BELOW))
    collection.wait_ready(DEADLINE)
    assert collection.settings[FITTED] == FLAT_BELOW
    first = collection.carried()["rotation"]
    stored = entries(7 * FLAT_BELOW - 1, seed=1, start=FLAT_BELOW)
    collection.upsert(stored)
    collection.wait_ready(DEADLINE)
    assert (collection.carried()["rotation"] == first).all()  # not eight times as many yet
    queries = units(20, seed=1)
    before = found(engine, queries)
    collection.upsert(entries(1001, seed=1, start=8 * FLAT_BELOW - 1))
    collection.wait_ready(DEADLINE)
    assert collection.settings[FITTED] == 9 * FLAT_BELOW
    assert not (collection.carried()["rotation"] == first).all()
    assert found(engine, queries) > before + 0.1
    assert collection.is_indexed() and engine.stats().passages == 9 * FLAT_BELOW
    (entry,) = collection.entries([stored[7].document.key])
    np.testing.assert_allclose(entry.vectors, stored[7].vectors, atol=2e-3)
    collection.wait_ready(DEADLINE)
    with collection.looking() as replacement:
        assert replacement.details() is None
        sql = "SELECT to_regclass('passages_next'), to_regclass('passages_done')"
        assert replacement.connection.execute(sql).fetchone() == (None, None)


def test_readers_and_writers_go_on(engine: SearchEngine) -> None:
    """While the rotation is fitted four times, writers add, replace and delete."""
    collection: Any = engine.collection
    collection.upsert(entries(1200))
    collection.wait_ready(DEADLINE)
    expected = {entry.document.key: entry.vectors[0] for entry in entries(1200)}
    vectors = iter(units(100_000, seed=2))

    def read(rng: np.random.Generator) -> None:
        key = f"k{rng.integers(200)}"
        hits = engine.search(expected[key], 3)
        assert hits[0].key == key and hits[0].score > 0.995
        (entry,) = collection.entries([key])
        np.testing.assert_allclose(entry.vectors[0], expected[key], atol=2e-3)

    def write(rng: np.random.Generator) -> None:
        key = f"k{200 + rng.integers(1200)}"
        if rng.random() < 0.3 and key in expected:
            assert engine.delete([key]) == 1
            del expected[key]
            return
        vector = next(vectors)
        collection.upsert([Entry(Document(key, "new"), ((0, 3),), vector[None])])
        expected[key] = vector

    with repeated(read, read, write) as errors:
        for _ in range(4):
            refit(engine)
    assert errors == []
    assert sorted(engine.keys()) == sorted(expected)
    for entry in collection.entries(sorted(expected)):
        np.testing.assert_allclose(entry.vectors[0], expected[entry.document.key], atol=2e-3)


def test_rights_of_others_are_kept(engine: SearchEngine) -> None:
    engine.collection.upsert(entries(1100))
    collection: Any = engine.collection
    with collection._connections.borrow() as connection:
        connection.execute("GRANT SELECT ON passages TO PUBLIC")
    collection.wait_ready(DEADLINE)
    with collection._connections.borrow() as connection:
        sql = "SELECT relacl::text FROM pg_class WHERE oid = 'passages'::regclass"
        assert ",=r/" in connection.execute(sql).fetchone()[0]


# --- another encoder ------------------------------------------------------------------------------


def texts(n: int) -> list[dict[str, Any]]:
    words = "a bb ccc dddd eeeee ffffff ggggggg hhhhhhhh".split()
    rng = np.random.default_rng(0)
    return [
        {"_id": f"k{i}", "text": " ".join(rng.choice(words, 1 + i % 7)), "n": i} for i in range(n)
    ]


def test_a_reindex_gives_what_a_new_collection_would(url: str) -> None:
    other = Remainders(8)
    documents = texts(1100)
    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(documents)
        engine.set_default("hybrid", 0.3)
        engine.reindex(other)
        assert not engine.reindex_pending()
        assert engine.stats().dim == 8 and engine.stats().fingerprint == "remainders"
        assert engine.stats().passages == 1100 and engine.collection.is_indexed()
        assert engine.collection.settings[FITTED] == 1100
        question = documents[6]["text"]
        hits = engine.search(question, 5, mode="vector", exact=True)
        rows = other.encode([document["text"] for document in documents])
        best = np.sort(rows @ rows[6])[::-1][:5]
        assert [hit.score for hit in hits] == pytest.approx(best.tolist(), abs=2e-3)
        engine.add([{"_id": "later", "text": "ccc hhhhhhhh hhhhhhhh"}])
        assert engine.search("ccc hhhhhhhh hhhhhhhh", 1, mode="vector")[0].score > 0.998
    with SearchEngine.open(url, other) as engine:
        for entry in engine.collection.entries(["k3", "k500", "later"]):
            expected = other.encode([entry.document.text])
            np.testing.assert_allclose(entry.vectors, expected, atol=2e-3)
    with pytest.raises(EncoderMismatch):
        SearchEngine.open(url, WordLengths(16))


def test_few_documents_get_their_rotation_when_there_are_more(url: str) -> None:
    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(texts(300))
        engine.reindex(Remainders(8))
        collection: Any = engine.collection
        assert collection.carried()["rotation"] is None
        assert engine.stats().exact and not collection.is_indexed()
        engine.add(texts(FLAT_BELOW))
        assert collection.is_indexed() and collection.settings[FITTED] == FLAT_BELOW
        assert collection.carried()["rotation"] is not None


def test_an_interrupted_reindex_goes_on(url: str) -> None:
    class Failing(Remainders):
        def encode(self, texts: Any, *, role: Any = None) -> Any:
            if sum(map(len, self.calls)) >= 900:
                raise RuntimeError("no more")
            return super().encode(texts, role=role)

    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(texts(5000))
        with pytest.raises(RuntimeError, match="no more"):
            engine.reindex(Failing(8))
        assert engine.reindex_pending()
        assert engine.stats().fingerprint == "word-lengths"
        engine.add([{"_id": "k4", "text": "hhhhhhhh eeeee"}])
        engine.delete(["k5"])
        other = Remainders(8)
        engine.reindex(other)
        assert len(engine) == 4999
        hits = engine.search("hhhhhhhh eeeee", 1, mode="vector", where="n >= 0 or not exists(n)")
        assert hits[0].score > 0.998
        (entry,) = engine.collection.entries(["k4"])
        expected = other.encode(["hhhhhhhh eeeee"])
        np.testing.assert_allclose(entry.vectors, expected, atol=2e-3)
        with pytest.raises(QueryError, match="no reindex"):
            engine.reindex()


def test_a_pending_reindex_is_discarded_and_refuses_another(url: str) -> None:
    class Broken(Remainders):
        def encode(self, texts: Any, *, role: Any = None) -> Any:
            raise RuntimeError("broken")

    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(texts(20))
        with pytest.raises(RuntimeError, match="broken"):
            engine.reindex(Broken(8))
        with pytest.raises(EncoderMismatch, match="is pending"):
            engine.reindex(WordLengths(4, "third"))
        collection: Any = engine.collection
        with collection.replacing(), pytest.raises(CollectionBusy, match="another process"):
            engine.discard_reindex()
        assert engine.discard_reindex() and not engine.discard_reindex()
        engine.reindex(WordLengths(4, "third"))
        assert engine.stats().dim == 4 and len(engine.search("a bb", 3)) == 3


def test_readers_go_on_during_a_reindex(url: str) -> None:
    """Those of the same engine change over; another one must be opened again."""
    documents = texts(1500)
    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(documents)
        other = SearchEngine.open(url, WordLengths(16))

        def read(rng: np.random.Generator, reader: SearchEngine = engine) -> None:
            i = int(rng.integers(1500))
            hits = reader.search(documents[i]["text"], 1, mode="vector")
            assert hits[0].score > 0.998 and reader.get(f"k{i}") is not None

        def read_as_another(rng: np.random.Generator) -> None:
            read(rng, other)

        with repeated(read, read, read_as_another) as errors:
            for encoder in (Remainders(8), WordLengths(12, "twelve")):
                time.sleep(0.3)
                engine.reindex(encoder)
            time.sleep(0.3)
        other.close()
    assert [type(error) for error in errors] == [EncoderMismatch]


def test_a_reader_that_lasts_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "_PATIENCE", 0.1)
    monkeypatch.setattr(replacing, "_TRIES", 2)
    other = Remainders(8)
    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(texts(20))
        with engine.collection.reading() as snapshot:
            assert snapshot.rows == 20
            with pytest.raises(BackendUnavailable, match="a transaction of a reader lasts"):
                engine.reindex(other)
            assert snapshot.store.counts() == (20, 20)
        encoded = len(other.calls)
        assert engine.stats().fingerprint == "word-lengths" and engine.reindex_pending()
        engine.reindex(other)
        assert engine.stats().fingerprint == "remainders" and len(other.calls) == encoded


def test_a_reader_that_began_before_the_swap_begins_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot is older than the new tables, of which it would see nothing."""
    documents = texts(20)
    with SearchEngine.create(url, WordLengths(16)) as engine:
        engine.add(documents)
        run, begun = pool.Connection.run, []

        def slow(connection: Any, *statements: Any) -> Any:
            if statements[0][0] != pool.READ or begun:
                return run(connection, *statements)
            begun.append(connection)
            rows = run(connection, statements[0], ("SELECT count(*) FROM pg_class", ()))[:1]
            thread = threading.Thread(target=engine.reindex, args=(Remainders(8),))
            thread.start()
            thread.join(DEADLINE)
            return [*rows, *run(connection, *statements[1:])]

        monkeypatch.setattr(pool.Connection, "run", slow)
        hits = engine.search(documents[6]["text"], 1, mode="vector")
        assert hits[0].score > 0.998 and len(begun) == 1
        assert engine.stats().fingerprint == "remainders"


def test_what_was_encoded_by_the_former_encoder_is_not_stored(url: str) -> None:
    """A thread of the engine that reindexes encodes again; another engine is refused."""

    class Slow(WordLengths):
        def encode(self, texts: Any, *, role: Any = None) -> Any:
            vectors = super().encode(texts, role=role)
            if work and role == "document":
                work.pop()()
            return vectors

    work: list[Callable[[], object]] = []
    with SearchEngine.create(url, Slow(16)) as engine:
        engine.add(texts(20))
        other, remainders = SearchEngine.open(url, Slow(16)), Remainders(8)
        work.append(lambda: engine.reindex(remainders))
        engine.add([{"_id": "late", "text": "hhhhhhhh eeeee"}])
        (entry,) = engine.collection.entries(["late"])
        expected = remainders.encode(["hhhhhhhh eeeee"])
        np.testing.assert_allclose(entry.vectors, expected, atol=2e-3)
        with pytest.raises(EncoderMismatch):
            other.add([{"_id": "later", "text": "a bb"}])
        other.close()
        assert len(engine) == 21
        shown = engine.collection.settings
        engine.reindex(WordLengths(8, "third"))
        with pytest.raises(EncoderMismatch, match="was reindexed while the documents were encoded"):
            engine.collection.upsert(
                [Entry(Document("x", "a"), ((0, 1),), remainders.encode(["a"]))], None, shown
            )
        assert len(engine) == 21
