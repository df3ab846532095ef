"""The prefixes of passages on a server, written again beside those in use."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from postgres_server import new_cluster_url, new_url

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Entry
from searchengine.backends.entries import entries as stored_entries
from searchengine.backends.postgresql import prefixes, schema
from searchengine.backends.postgresql.prefixes import Prefixes
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


def table(engine: SearchEngine) -> Prefixes:
    """The one that searches use."""
    used: Prefixes = engine.collection._state.in_use  # type: ignore[attr-defined]
    return used


def refit(engine: SearchEngine) -> None:
    """Let the rotation be outgrown, and fit another."""
    collection: Any = engine.collection
    with collection._connections.borrow() as connection, connection.transaction():
        stored = schema.read_settings(connection, "")[prefixes.IN_USE]
        schema.set_value(connection, prefixes.IN_USE, stored | {"passages": 1})
    collection.refresh()
    collection.wait_ready(DEADLINE)


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


# --- vectors --------------------------------------------------------------------------------------


def test_vectors_are_stored_as_given(engine: SearchEngine) -> None:
    """Of length one, rounded to float16, before and after a rotation is fitted."""
    stored = entries(1100)
    engine.collection.upsert([replace(each, vectors=3 * each.vectors) for each in stored])
    expected = units(1100).astype(np.float16)
    for _ in range(2):
        back = stored_entries(engine.collection, [entry.document.key for entry in stored])
        vectors = np.concatenate([entry.vectors for entry in back])
        np.testing.assert_allclose(vectors, expected.astype(np.float32), rtol=1e-3, atol=1e-7)
        assert (vectors == expected).mean() > 0.99  # but where float32 rounds another way
        engine.collection.wait_ready(DEADLINE)
    assert (table(engine).rotation @ table(engine).rotation.T).round(5).tolist() == np.eye(
        8
    ).tolist()


@pytest.mark.parametrize("rotation", ["pca", "identity"])
def test_prefixes_are_those_of_the_rotation(url: str, rotation: str) -> None:
    """Of all passages: those before the rotation, added, replaced and deleted after it."""
    config = {"prefix": 8, "rotation": rotation}
    with SearchEngine.create(url, None, config, dim=DIM, tokenizer="stem:en") as engine:
        engine.collection.upsert(entries(1100))
        engine.collection.wait_ready(DEADLINE)
        engine.collection.upsert(entries(300, seed=1, start=1000))
        engine.delete([f"k{i}" for i in range(0, 40, 3)])
        used: Any = table(engine)
        assert (used.rotation is None) == (rotation == "identity")
        matrix = np.eye(8, DIM) if used.rotation is None else used.rotation
        with engine.collection._connections.borrow() as connection:
            sql = f"SELECT vector, prefix, p.document = q.document FROM {used.table} p "
            sql += "FULL JOIN passages q USING (id)"
            rows = connection.execute(sql).fetchall()
        assert len(rows) == 1300 - 14 and all(same for *_, same in rows)
        vectors, prefixes = (np.array([row[i].to_list() for row in rows]) for i in (0, 1))
        expected = vectors @ matrix.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(prefixes, expected, atol=1e-3)


# --- the rotation ---------------------------------------------------------------------------------


def test_a_collection_that_has_grown_gets_another_rotation(engine: SearchEngine) -> None:
    collection: Any = engine.collection
    collection.upsert(entries(FLAT_BELOW))
    collection.wait_ready(DEADLINE)
    first = table(engine)
    assert first.passages == FLAT_BELOW
    stored = entries(7 * FLAT_BELOW - 1, seed=1, start=FLAT_BELOW)
    collection.upsert(stored)
    collection.wait_ready(DEADLINE)
    assert table(engine).table == first.table  # not eight times as many yet
    queries = units(20, seed=1)
    before = found(engine, queries)
    collection.upsert(entries(1001, seed=1, start=8 * FLAT_BELOW - 1))
    sql = "SELECT ctid::text, xmin::text FROM passages ORDER BY id"
    with collection._connections.borrow() as connection:
        written = connection.execute(sql).fetchall()
        collection.wait_ready(DEADLINE)
        assert connection.execute(sql).fetchall() == written  # no vector is written again
    assert table(engine).passages == 9 * FLAT_BELOW
    assert not (table(engine).rotation == first.rotation).all()
    assert found(engine, queries) > before + 0.1
    assert collection.is_indexed() and engine.stats().passages == 9 * FLAT_BELOW
    (entry,) = stored_entries(collection, [stored[7].document.key])
    np.testing.assert_allclose(entry.vectors, stored[7].vectors, atol=1e-3)
    collection.wait_ready(DEADLINE)
    with collection._connections.borrow() as connection:
        assert schema.prefix_tables(connection) == [table(engine).table]


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


def test_rights_of_others_are_kept(engine: SearchEngine) -> None:
    engine.collection.upsert(entries(1100))
    collection: Any = engine.collection
    with collection._connections.borrow() as connection:
        connection.execute("GRANT SELECT ON passages TO PUBLIC")
    collection.wait_ready(DEADLINE)
    with collection._connections.borrow() as connection:
        sql = "SELECT relacl::text FROM pg_class WHERE oid = to_regclass(%s)"
        assert ",=r/" in connection.execute(sql, (table(engine).table,)).fetchone()[0]


@pytest.mark.parametrize("step", ["fill", "build_index", "replace", "drop_former"])
def test_an_interrupted_build_goes_on(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Others search and write between; nothing is fitted twice."""
    engine.collection.upsert(entries(1100))
    engine.collection.wait_ready(DEADLINE)
    former, work = table(engine), getattr(prefixes, step)

    def interrupted(*arguments: Any) -> None:
        if step == "build_index":
            connection, following, _ = arguments
            sql = f"CREATE INDEX {following.index} ON {following.table} (document)"
            connection.execute(sql)
            sql = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass(%s)"
            connection.execute(sql, (following.index,))
        raise KeyboardInterrupt

    monkeypatch.setattr(prefixes, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        refit(engine)
    engine.collection.refresh()
    following = engine.collection._state.following
    assert (following is None) == (step == "drop_former")
    assert (table(engine).table == former.table) == (step != "drop_former")
    added = entries(3, seed=2, start=5000)
    engine.collection.upsert(added)
    engine.delete(["k3"])
    monkeypatch.setattr(prefixes, step, work)
    refit(engine)
    if following is not None:
        assert table(engine).table == following.table
    with engine.collection._connections.borrow() as connection:
        assert schema.prefix_tables(connection) == [table(engine).table]
        sql = f"SELECT count(*), count(prefix) FROM passages LEFT JOIN {table(engine).table} USING "
        assert connection.execute(sql + "(id)").fetchone() == (1102, 1102)
    (hit,) = engine.search(added[1].vectors[0], 1)
    assert hit.key == added[1].document.key and hit.score > 0.998


def test_a_reader_that_lasts_is_not_disturbed(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "_PATIENCE", "100ms")
    monkeypatch.setattr(prefixes, "_TRIES", 2)
    engine.collection.upsert(entries(1200))
    engine.collection.wait_ready(DEADLINE)
    query, replace_table = units(1200)[7:8], prefixes.replace
    with ExitStack() as lasting:
        readers = []

        def begin_before(*arguments: Any) -> None:
            readers.append(lasting.enter_context(engine.collection.reading()))
            assert readers[0].count() == 1200
            replace_table(*arguments)

        monkeypatch.setattr(prefixes, "replace", begin_before)
        refit(engine)
        engine.collection.upsert(entries(1, start=7, seed=3))
        result = readers[0].search(query, 1)
        assert result.scores[0, 0] > 0.998 and not result.exact
        (hit,) = engine.search(query[0], 1)
        assert hit.key != "k7"
        with engine.collection._connections.borrow() as connection:
            assert len(schema.prefix_tables(connection)) == 2
    monkeypatch.setattr(prefixes, "replace", replace_table)
    refit(engine)
    with engine.collection._connections.borrow() as connection:
        assert schema.prefix_tables(connection) == [table(engine).table]


def test_a_search_that_names_a_former_table_begins_again(engine: SearchEngine, url: str) -> None:
    engine.collection.upsert(entries(1100))
    engine.collection.wait_ready(DEADLINE)
    with SearchEngine.open(url) as other:
        former = table(other)
        refit(engine)
        (hit,) = other.search(units(1100)[6], 1)
        assert hit.key == "k6" and table(other).table != former.table
