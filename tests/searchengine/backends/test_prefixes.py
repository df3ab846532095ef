"""The prefixes of passages on a server, written again beside those in use."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from postgres_server import new_cluster_url, new_url

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Entry
from searchengine.backends.entries import entries as stored_entries
from searchengine.backends.postgresql import collection as collections
from searchengine.backends.postgresql.snapshot import GRAPH, ROTATION
from searchengine.errors import CorpusError

DIM = 32
DEADLINE = 60  # seconds
SERVERS = ["postgresql", pytest.param("citus", marks=pytest.mark.cluster)]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a collection that does not exist yet."""
    return new_url() if request.param == "postgresql" else new_cluster_url()


@pytest.fixture
def engine(url: str) -> Iterator[SearchEngine]:
    with SearchEngine.create(url, None, {"prefix": 8}, dim=DIM, tokenizer="stem:en") as engine:
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
    """Take the rotation and the graph away, and make others."""
    collection: Any = engine.collection

    def remove(connection: Any, _: str) -> None:
        connection.execute(f"DROP INDEX {GRAPH}; DELETE FROM prefixes")
        collections.set_values(connection, {ROTATION: None, GRAPH: None})

    collection._connections.write(remove, alone=True)
    collection.refresh()
    collection.upsert(entries(1), finished=0)


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


# --- vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotation", ["pca", "identity"])
def test_prefixes_are_those_of_the_rotation(url: str, rotation: str) -> None:
    """Of all passages: those before the rotation, added, replaced and deleted after it."""
    config = {"prefix": 8, "rotation": rotation}
    with SearchEngine.create(url, None, config, dim=DIM, tokenizer="stem:en") as engine:
        engine.collection.upsert(entries(700))
        engine.collection.upsert(entries(400, start=700), finished=0)
        engine.collection.upsert(entries(300, seed=1, start=1000))
        engine.delete([f"k{i}" for i in range(0, 40, 3)])
        used: Any = engine.collection._state
        assert (used.rotation is None) == (rotation == "identity")
        matrix = np.eye(8, DIM) if used.rotation is None else used.rotation
        with engine.collection._connections.borrow() as connection:
            rows = connection.execute(
                "SELECT vector, prefix FROM passages JOIN prefixes ON passage = passages.id"
            ).fetchall()
        assert len(rows) == 1300 - 14
        vectors, prefixes = (np.array([row[i].to_list() for row in rows]) for i in (0, 1))
        expected = vectors @ matrix.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(prefixes, expected, atol=1e-3)
        engine.verify()


# --- the rotation ---------------------------------------------------------------------------------


def test_readers_and_writers_go_on(engine: SearchEngine) -> None:
    """While the rotation is fitted four times, writers add, replace and delete."""
    collection: Any = engine.collection
    collection.upsert(entries(1200), finished=0)
    expected = {entry.document.key: entry.vectors[0] for entry in entries(1200)}
    vectors = iter(units(100_000, seed=2))

    def read(rng: np.random.Generator) -> None:
        key = f"k{rng.integers(1, 200)}"
        hits = engine.search(expected[key], 3)
        assert hits[0].key == key and hits[0].score > 0.995
        (entry,) = stored_entries(collection, [key])
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
    for entry in stored_entries(collection, sorted(expected)):
        np.testing.assert_allclose(entry.vectors[0], expected[entry.document.key], atol=2e-3)


@pytest.mark.parametrize("step", ["fit", "build"])
def test_an_interrupted_step_is_done_again(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Others search and write between."""
    engine.collection.upsert(entries(1100), finished=0)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    steps = {"fit": ("pca", interrupted), "build": ("_BUILD", (*collections._BUILD, "SELECT 1/0"))}
    with monkeypatch.context() as context:
        context.setattr(collections, *steps[step])
        with pytest.raises((KeyboardInterrupt, CorpusError)):
            refit(engine)
    engine.collection.refresh()
    assert "not built" in engine.stats().pending[0]
    assert engine.search(units(1100)[6], 1)[0].key == "k6"
    added = entries(3, seed=2, start=5000)
    engine.collection.upsert(added, finished=0)
    assert engine.stats().pending == ()
    (hit,) = engine.search(added[1].vectors[0], 1)
    assert hit.key == added[1].document.key and hit.score > 0.998
