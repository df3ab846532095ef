"""Passages on a server written again beside those in use, by another rotation."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from postgres_server import new_cluster_url, new_url

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Entry
from searchengine.backends.postgresql import pool, replacing
from searchengine.backends.postgresql.collection import _rotating
from searchengine.backends.postgresql.replacing import Replacement
from searchengine.backends.postgresql.schema import FITTED
from searchengine.errors import BackendUnavailable
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.rotating import Rotation

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
    with collection._connections.borrow() as connection:
        sql = "SELECT to_regclass('passages_next'), to_regclass('passages_done')"
        assert connection.execute(sql).fetchone() == (None, None)


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


def rewrite(engine: SearchEngine) -> None:
    """Write the few passages of a collection again, and swap them."""
    collection: Any = engine.collection
    config, rotation = SegmentConfig(prefix=8), Rotation(np.eye(DIM, dtype=np.float32)[::-1].copy())
    with collection._connections.single() as connection:
        replacement = Replacement(connection, collection.path, collection._spread)
        replacement.begin(DIM)
        write = _rotating(replacement, None, rotation)
        collection.replaced(replacement, write, config, rotation)


def test_a_reader_that_lasts_is_waited_for(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "_PATIENCE", 0.1)
    monkeypatch.setattr(replacing, "_TRIES", 2)
    collection: Any = engine.collection
    collection.upsert(entries(20))
    with collection.reading() as snapshot:
        assert snapshot.rows == 20
        with pytest.raises(BackendUnavailable, match="a transaction of a reader lasts"):
            rewrite(engine)
        assert snapshot.store.counts() == (20, 20)
    assert collection.carried()["rotation"] is None
    rewrite(engine)
    assert collection.carried()["rotation"] is not None
    (hit,) = engine.search(units(20)[6], 1)
    assert hit.key == "k6" and hit.score > 0.998


def test_a_reader_that_began_before_the_swap_begins_again(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot is older than the new tables, of which it would see nothing."""
    engine.collection.upsert(entries(20))
    run, begun = pool.Connection.run, []

    def slow(connection: Any, *statements: Any) -> Any:
        if statements[0][0] != pool.READ or begun:
            return run(connection, *statements)
        begun.append(connection)
        rows = run(connection, statements[0], ("SELECT count(*) FROM pg_class", ()))[:1]
        thread = threading.Thread(target=rewrite, args=(engine,))
        thread.start()
        thread.join(DEADLINE)
        return [*rows, *run(connection, *statements[1:])]

    monkeypatch.setattr(pool.Connection, "run", slow)
    (hit,) = engine.search(units(20)[6], 1)
    assert hit.key == "k6" and hit.score > 0.998 and len(begun) == 1
