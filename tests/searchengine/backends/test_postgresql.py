"""PostgreSQL: filters, the index of vectors, errors, concurrent writers, a killed server."""

import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import postgres_server
import pytest
from conftest import WordLengths, during, stored_states
from postgres_server import new_cluster_url, new_url, plan

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Changed, Entry
from searchengine.backends.entries import entries as stored_entries
from searchengine.backends.limits import Deadline, limited
from searchengine.backends.postgresql import collection as collections
from searchengine.backends.postgresql import shown
from searchengine.backends.postgresql.connections import run
from searchengine.backends.postgresql.snapshot import GRAPH
from searchengine.errors import (
    BackendUnavailable,
    CollectionError,
    CorpusError,
    SearchTimeout,
)

DIM = 32
DEADLINE = 30  # seconds


@pytest.fixture
def url() -> str:
    return new_url()


@pytest.fixture
def engine(url: str) -> Iterator[SearchEngine]:
    with SearchEngine.create(url, None, {"prefix": 8}, dim=DIM, tokenizer="stem:en") as engine:
        yield engine


def units(n: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = np.random.default_rng(seed).standard_normal((n, DIM)) * np.arange(1, DIM + 1) ** -0.6
    rows = rows @ np.linalg.qr(np.random.default_rng(9).standard_normal((DIM, DIM)))[0]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def entries(n: int, seed: int = 0) -> list[Entry]:
    return [
        Entry(Document(f"k{i}", f"text {i}", metadata={"n": i}), ((0, 4),), vector[None])
        for i, vector in enumerate(units(n, seed))
    ]


# --- the index of vectors -------------------------------------------------------------------------


def test_the_index_serves_and_agrees_with_exact_search(url: str) -> None:
    forced = url.replace("#", "&options=-c%20enable_seqscan%3Doff%20-c%20enable_sort%3Doff#")
    config = {"prefix": 16, "shortlist": 60}
    with SearchEngine.create(forced, None, config, dim=DIM) as engine:
        stored = entries(1500)
        engine.collection.upsert(stored[:900])
        engine.collection.upsert((), finished=0)
        query = units(1, seed=5)[0]
        assert GRAPH not in plan(engine, query)  # FLAT_BELOW
        assert "not built" in engine.stats().pending[0]
        assert engine.stats().exact and engine.search(query, 1).exact
        engine.collection.upsert(stored[900:])
        engine.collection.upsert((), finished=0)
        planned = plan(engine, query, 10, "n >= 700")
        assert GRAPH in planned and "Seq Scan" not in planned
        assert engine.stats().pending == () and not engine.stats().exact
        queries = units(40, seed=6)
        agreed = filtered = 0
        for query in queries:
            true = {hit.key for hit in engine.search(query, 10, exact=True)}
            agreed += len(true & {hit.key for hit in engine.search(query, 10)})
            true = {hit.key for hit in engine.search(query, 10, exact=True, where="n >= 700")}
            hits = engine.search(query, 10, where="n >= 700")
            assert len(hits) == 10 and all(hit.metadata["n"] >= 700 for hit in hits)
            filtered += len(true & {hit.key for hit in hits})
        assert agreed >= 0.95 * 400 and filtered >= 0.95 * 400
        for where, count in (("n = 3", 1), ("n in (3, 4, 1499)", 3), ("n < 12", 10)):
            assert len(engine.search(queries[0], 10, where=where)) == count
        every = engine.search(queries[0], 10, shortlist=1500)
        assert [h.key for h in every] == [h.key for h in engine.search(queries[0], 10, exact=True)]
    # A scan that gives up soon is completed by comparing all rows that match.
    soon = forced.replace("#", "%20-c%20hnsw.max_scan_tuples%3D1%20-c%20hnsw.ef_search%3D1#")
    with SearchEngine.open(soon) as engine:
        assert GRAPH in plan(engine, queries[0], 10, "n in (3, 4, 1499)")
        for where, count in (("n in (3, 4, 1499)", 3), ("n < 12", 10), ("n >= 1400", 10)):
            assert len(engine.search(queries[0], 10, where=where)) == count


@pytest.mark.long
def test_filters_that_many_documents_match_use_the_index(url: str) -> None:
    """Nothing is forced: the planner must expect what these filters match."""
    rows = 30_000
    stored = [
        replace(
            entry,
            document=replace(
                entry.document,
                metadata={
                    "n": i,
                    "lang": ("en", "ko", "de", "fr")[i * 7919 % 10_007 % 4],
                    "by": {"year": 2000 + i % 20},
                    "at": f"{2000 + i % 20}-05",
                },
            ),
        )
        for i, entry in enumerate(entries(rows))
    ]
    with SearchEngine.create(url, None, {"prefix": 16, "shortlist": 60}, dim=DIM) as engine:
        engine.index_fields("n", "at")
        engine.collection.upsert(stored)
        engine.collection.upsert((), finished=0)
        query = units(1, seed=5)[0]
        for where in (
            "n >= 15000",
            "n < 15000",
            "n between 5000 and 20000",
            "n >= 5000 and n <= 20000",
            "by.year >= 2010",
            "lang = 'ko'",
            "lang in ('ko', 'de')",
            f"by.year in ({', '.join(map(str, range(2005, 2015)))})",
            "lang >= 'fr'",
            "at >= date('2010')",
            "not (n < 15000)",
            "n >= 15000 and lang != 'ko'",
        ):
            planned = plan(engine, query, 10, where)
            assert GRAPH in planned, where
            true = {hit.key for hit in engine.search(query, 10, exact=True, where=where)}
            found = {hit.key for hit in engine.search(query, 10, where=where)}
            assert len(found) == 10 and len(found & true) >= 8, where
        # Texts have an index for equality alone.
        assert engine.stats().fields == ("n", "at")
        for where, index in (
            ("n >= 29950", '"field n"'),
            ("n >= 27600", '"field n"'),
            ("n between 100 and 130", '"field n"'),
            ("at < date('1999')", '"date at"'),
            ("lang = 'no'", "documents_fields"),
            ("n in (1, 2, 3)", "documents"),
        ):
            planned = plan(engine, query, 10, where)
            assert index in planned and GRAPH not in planned, where
        with engine.collection._connections.borrow() as connection:
            connection.execute("CHECKPOINT")  # else a test that kills the server waits for it


@pytest.mark.parametrize("rotation", ["pca", "identity"])
def test_prefixes_are_those_of_the_rotation(url: str, rotation: str) -> None:
    """Of all passages: those before the rotation, added, replaced and deleted after it."""
    config = {"prefix": 8, "rotation": rotation}
    with SearchEngine.create(url, None, config, dim=DIM) as engine:
        engine.collection.upsert(entries(1100), finished=0)
        engine.collection.upsert(entries(1400, seed=1)[1000:])
        engine.delete([f"k{i}" for i in range(0, 40, 3)])
        used: Any = engine.collection
        matrix = np.eye(8, DIM) if rotation == "identity" else used._state.rotation
        with used._connections.borrow() as connection:
            rows = connection.execute(
                "SELECT vector, prefix FROM passages JOIN prefixes ON passage = passages.id"
            ).fetchall()
        assert len(rows) == 1400 - 14
        vectors, prefixes = (np.array([row[i].to_list() for row in rows]) for i in (0, 1))
        expected = vectors @ matrix.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(prefixes, expected, atol=1e-3)
        engine.verify()


def test_a_graph_that_could_not_be_built_is_built_later(engine: SearchEngine) -> None:
    """Others search and write between."""
    used: Any = engine.collection
    with used._connections.borrow() as connection:
        connection.execute(f"CREATE TABLE {GRAPH} ()")  # takes its name
        with pytest.raises(CollectionError, match="already exists"):
            engine.collection.upsert(entries(1100), finished=0)
        connection.execute(f"DROP TABLE {GRAPH}")
    engine.collection.refresh()
    assert "not built" in engine.stats().pending[0]
    assert engine.search(units(1100)[6], 1)[0].key == "k6"
    engine.collection.upsert(entries(1103)[1100:], finished=0)
    assert engine.stats().pending == ()
    assert engine.search(units(1103)[1101], 1)[0].key == "k1101"


def test_an_index_refuses_long_values(engine: SearchEngine) -> None:
    """PostgreSQL's has values of 2,700 bytes at most."""
    engine.index_fields("n", "by.day")
    assert engine.stats().fields == ("n", "by.day")
    word = "".join(map(chr, np.random.default_rng(0).integers(97, 123, 5000)))
    late = Document("late", "x", metadata={"n": word})
    with pytest.raises(CorpusError, match=r'"field n".*may have about 2,700 bytes.*drop the index'):
        engine.collection.upsert([Entry(late, (), units(0))])
    engine.collection.upsert(
        [replace(Entry(late, (), units(0)), document=replace(late, metadata={"m": word}))]
    )
    with pytest.raises(CorpusError, match=r'"field m".*may have about 2,700 bytes'):
        engine.index_fields("m")
    long = replace(late, key="later", metadata={"m": word[::-1]})
    engine.collection.upsert([Entry(long, (), units(0))])
    engine.delete(["late", "later"])
    engine.index_fields("m", "n")
    assert engine.stats().fields == ("n", "by.day", "m")
    with engine.collection._connections.borrow() as connection:
        sql = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'documents'::regclass"
        assert connection.execute(sql).fetchone() == (True,)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:secret@host/db#c", "postgresql://me@host/db#c"),
        ("postgresql://me:se/cr@et?@host/db", "postgresql://me@host/db"),
        ("postgresql://me@host:5432/db?password=secret&x=1", "postgresql://me@host:5432/db?x=1"),
        ("postgresql://me@host/db?sslpassword=secret#c", "postgresql://me@host/db?#c"),
        ("postgresql://host:5432/db#c", "postgresql://host:5432/db#c"),
    ],
)
def test_the_password_is_never_shown(url: str, expected: str) -> None:
    assert shown(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:QQ%zQQ@host/db#c", "percent-encoded token.*write % as %25"),
        ("postgresql://me:QQ QQ@host/db#c", "spaces found.*a space as %20"),
        ("postgresql://me@host/db?password=QQ%zQQ#c", "percent-encoded token"),
        ("postgresql://me:QQ#QQ@host/db#c", "must be a word.*write # in a password as %23"),
        ("postgresql://me:QQ@host/db?no_parameter=1", "no_parameter"),
        ("postgresql://me:QQ@host/db#" + "\u00e4" * 32, "at most 55 bytes"),
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(CollectionError, match=message) as caught:
        SearchEngine.open(url)
    assert not isinstance(caught.value, BackendUnavailable)  # which would be tried again
    assert "QQ" not in "".join(traceback.format_exception(caught.value))


def test_servers_that_cannot_be_reached_or_entered(url: str) -> None:
    with pytest.raises(BackendUnavailable, match=r"me@127.0.0.1:1/db.*cannot be reached.*refused"):
        SearchEngine.open("postgresql://me:secret@127.0.0.1:1/db#x")
    with pytest.raises(CollectionError, match="refuses the user, the password"):
        SearchEngine.open(url.replace("postgres:@", "nobody:wrong@"))
    with pytest.raises(CollectionError, match="createdb"):
        SearchEngine.open(url.replace("/postgres?", "/nothing?"))
    with pytest.raises(CollectionError, match="no such collection"):
        SearchEngine.open(url)
    with pytest.raises(CollectionError, match="must be a word"):
        SearchEngine.open(url.partition("#")[0] + "#two words")
    with pytest.raises(CollectionError, match="no backend has this scheme"):
        SearchEngine.open("mysql://host/db")
    with pytest.raises(CollectionError, match="leave the device out"):
        SearchEngine.open(url, device="gpu")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("99", "version 99.*upgrade searchengine if that is older; else index .* again"),
        ("5", "version 5,.*to a folder by the older one"),  # fields: in comments alone
    ],
)
def test_tables_of_another_version_are_refused(
    engine: SearchEngine, url: str, version: str, message: str
) -> None:
    with engine.collection._connections.borrow() as connection:
        connection.execute("UPDATE settings SET value = %s WHERE name = 'version'", (version,))
    with pytest.raises(CollectionError, match=message):
        SearchEngine.open(url)


def test_what_cannot_be_stored_is_named(engine: SearchEngine) -> None:
    vector = units(1)
    ok, bad = Document("ok", "x"), Document("a", "x\0y")
    with pytest.raises(CorpusError, match=r"U\+0000"):
        engine.collection.upsert([Entry(ok, ((0, 1),), vector), Entry(bad, (), vector[:0])])
    with pytest.raises(CorpusError, match="cannot store"):
        noise = np.random.default_rng(0).bytes(4000).hex()
        engine.collection.upsert([Entry(Document(noise, "x"), (), vector[:0])])
    assert len(engine) == 0
    engine.collection.upsert([Entry(Document("d", "x", metadata={"m": "\\u0000"}), (), vector[:0])])
    long = " ".join(f"word{i}" for i in range(300_000))
    engine.collection.upsert([Entry(Document("long", long), ((0, 1),), vector)])
    assert engine.search("word17", mode="text")[0].key == "long"


def test_a_statement_may_not_run_for_ever(url: str) -> None:
    SearchEngine.create(url, None, dim=DIM).close()
    short = url.replace("#", "&options=-c%20statement_timeout%3D50#")
    with SearchEngine.open(short) as engine:
        with engine.collection.reading() as snapshot:
            with pytest.raises(Exception, match="statement timeout"):
                snapshot.read("SELECT pg_sleep(30)")
        with pytest.raises(CollectionError, match="statement_timeout%3DMILLISECONDS"):
            with engine.collection.reading() as snapshot:
                snapshot.read("SELECT pg_sleep(30)")
        with limited(Deadline.after(1e12)), engine.collection.reading() as snapshot:
            snapshot.read("SELECT pg_sleep(0.2)")  # the call's own limit holds
    with SearchEngine.open(url) as engine:
        with limited(Deadline.after(0.02)), pytest.raises(SearchTimeout):
            with engine.collection.reading() as snapshot:
                snapshot.read("SELECT pg_sleep(30)")
    start = time.monotonic()
    with SearchEngine.open(url) as engine, engine.collection._connections.transaction("EXCLUSIVE"):
        with limited(Deadline.after(0.2)), pytest.raises(SearchTimeout):
            engine.delete(["a"])  # waits for the other
    assert time.monotonic() - start < DEADLINE


def test_scripts_without_spaces_have_words(url: str) -> None:
    with SearchEngine.create(url, WordLengths(DIM), tokenizer="stem:ja") as engine:
        engine.add([{"_id": "a", "text": "鯨は眠る"}, {"_id": "b", "text": "眠る鯨"}])
        assert {hit.key for hit in engine.search("鯨", mode="text")} == {"a", "b"}
        assert [hit.key for hit in engine.search('+"鯨は眠る"', mode="text")] == ["a"]


def test_words_rank_as_in_a_folder(engine: SearchEngine, tmp_path: Path) -> None:
    """The same scores, after documents were replaced and deleted."""
    rng = np.random.default_rng(0)
    vocabulary = "whales whaling sleep sleeping deep the of sea it's owls naïve 7 x-ray".split()

    def made(count: int) -> list[Entry]:
        texts = (" ".join(rng.choice(vocabulary, rng.integers(1, 30))) for _ in range(count))
        return [
            Entry(
                Document(f"k{i}", text, str(rng.choice(vocabulary)), {"n": i}), ((0, 1),), units(1)
            )
            for i, text in enumerate(texts)
        ]

    first, second = made(120), made(60)
    with SearchEngine.create(tmp_path / "c", None, dim=DIM, tokenizer="stem:en") as folder:
        for each in (folder, engine):
            each.collection.upsert(first)
            each.collection.upsert(second[::2])
            each.delete([f"k{i}" for i in range(0, 120, 7)])
            each.delete(where="n >= 110")
        questions = [" ".join(rng.choice(vocabulary, n)) for n in (1, 2, 3, 5, 9) for _ in range(8)]
        for question in [*questions, "sl", "the sle", "sl ", "🙂", "'", "it's s", "whal", "nobody"]:
            for options in ({}, {"where": "n < 50"}):
                expected = folder.search(question, 10, mode="text", **options)
                found = engine.search(question, 10, mode="text", **options)
                scores = [hit.score for hit in expected]
                assert [hit.score for hit in found] == pytest.approx(scores, rel=1e-5), question
                assert [hit.key for hit in found if hit.score > found[-1].score * 1.0001] == [
                    hit.key for hit in expected if hit.score > expected[-1].score * 1.0001
                ]
        sql = "SELECT sum(documents), sum(tokens) FROM word_totals"
        with engine.collection._connections.borrow() as connection:
            assert (
                connection.execute(sql).fetchone()
                == connection.execute("SELECT count(*), sum(tokens) FROM documents").fetchone()
            )


def test_a_hybrid_search_scores_as_in_a_folder(url: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vocabulary = "whales whaling sleep sleeping deep the of sea it's owls naïve 7 x-ray".split()
    texts = [" ".join(rng.choice(vocabulary, rng.integers(1, 30))) for _ in range(200)]
    documents = [{"_id": str(i), "text": text} for i, text in enumerate(texts)]
    with (
        SearchEngine.create(tmp_path / "c", WordLengths(DIM), tokenizer="stem:en") as folder,
        SearchEngine.create(url, WordLengths(DIM), tokenizer="stem:en") as engine,
    ):
        folder.add(documents)
        engine.add(documents)
        with folder.collection.reading() as snapshot:
            assert snapshot.unrelated.mean > 0.2
        for question in ("whales sleep", "deep sea", "owls of the sea", "7 naïve"):
            expected = folder.search(question, 20, mode="hybrid")
            found = engine.search(question, 20, mode="hybrid")
            scores = {hit.key: hit.score for hit in expected}
            assert [hit.score for hit in found] == pytest.approx([*scores.values()], abs=1e-3)
            assert {hit.key for hit in found if hit.score > found[-1].score + 2e-3} <= {*scores}


# --- several at a time ----------------------------------------------------------------------------


def test_two_creators(url: str) -> None:
    outcomes: list[str] = []

    def create() -> None:
        try:
            SearchEngine.create(url, None, dim=DIM).close()
            outcomes.append("created")
        except CollectionError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join(DEADLINE) for thread in threads]
    assert outcomes.count("created") == 1
    assert all("exists already" in outcome for outcome in outcomes if outcome != "created")


def test_writers_of_the_same_documents_take_turns(engine: SearchEngine, url: str) -> None:
    errors: list[BaseException] = []

    def write(seed: int) -> None:
        try:
            with SearchEngine.open(url) as mine:
                for _ in range(8):
                    order = entries(12, seed)
                    mine.collection.upsert(order if seed % 2 else order[::-1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    [thread.start() for thread in threads]
    [thread.join(DEADLINE) for thread in threads]
    assert errors == []
    with engine.collection.reading() as snapshot:
        assert (snapshot.count(), snapshot.sizes()["passages"]) == (12, 12)
    stored = [
        entry.vectors for entry in stored_entries(engine.collection, [f"k{i}" for i in range(12)])
    ]
    assert any(
        np.allclose(np.concatenate(stored), units(12, seed), atol=2e-3) for seed in range(3)
    )  # all of one writer's


def test_a_connection_that_the_server_has_ended_is_not_used(engine: SearchEngine) -> None:
    borrow = engine.collection._connections.borrow
    with borrow() as ended, borrow() as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (ended.info.backend_pid,))
    for _ in range(3):
        assert len(engine) == 0


def test_questions_that_no_text_can_answer(engine: SearchEngine) -> None:
    engine.add([{"_id": "a", "text": "whales sing"}], units(1))
    for question in ("whales\0", "\ud800 whales", '"whales\0sing"'):
        assert [hit.key for hit in engine.search(question, mode="text")] == ["a"]
    assert engine.search("\0", mode="text") == []
    assert len(engine.search(units(1)[0], shortlist=1 << 70)) == 1


def test_what_is_written_during_a_transaction_is_not_overwritten(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits after a transaction has read what is stored."""
    stored = entries(3)
    engine.collection.upsert(stored)
    step = collections, "check_made_by"
    during(monkeypatch, *step, lambda: engine.update({"k0": {"seen": True}}))
    changed = replace(stored[0], document=replace(stored[0].document, title="new"))
    with pytest.raises(Changed):
        engine.collection.upsert([changed], stored_states(engine, ["k0"]))
    assert engine["k0"].metadata == {"n": 0, "seen": True}
    during(monkeypatch, *step, lambda: engine.delete(["k1"]))
    engine.collection.upsert([stored[1]])  # begins again, and adds it
    assert len(engine) == 3 and len(engine.search(units(3)[1], 3)) == 3


class Load:
    """A writer and readers, until `stop`; what was acknowledged, and what failed."""

    def __init__(self, engine: SearchEngine, readers: int) -> None:
        self.engine = engine
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self.unexpected: list[BaseException] = []
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(work,))
            for work in (self._write, *[self._read] * readers)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        number = len(self.acknowledged)
        document = Document(f"w{number}", "x")
        self.engine.collection.upsert([Entry(document, ((0, 1),), units(1, number))])
        self.acknowledged.append(document.key)

    def _read(self) -> None:
        self.engine.search(units(1)[0], 5)

    def _repeat(self, work: Any) -> None:
        while not self._done.is_set():
            try:
                work()
            except BackendUnavailable as error:
                self.failures.append(str(error))
                time.sleep(0.02)  # the server needs the processor to start
            except BaseException as error:
                self.unexpected.append(error)
                return

    def wait_for(self, condition: Any) -> None:
        deadline = time.monotonic() + 2 * DEADLINE
        while not condition() and not self.unexpected:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE)


def test_readers_and_writers_go_on_while_the_graph_is_built(engine: SearchEngine) -> None:
    engine.collection.upsert(entries(1500))
    load = Load(engine, 2)
    try:
        load.wait_for(lambda: load.acknowledged)
        engine.collection.upsert((), finished=0)
        before = len(load.acknowledged)
        load.wait_for(lambda: len(load.acknowledged) > before + 1)
    finally:
        load.stop()
    assert load.unexpected == [] and load.failures == [] and engine.stats().pending == ()
    assert len(engine) == 1500 + len(load.acknowledged)
    with engine.collection._connections.borrow() as connection:
        sql = "SELECT count(*) FROM passages JOIN prefixes ON passage = passages.id"
        assert connection.execute(sql).fetchone() == (len(engine),)


@pytest.mark.parametrize(("readers", "kills"), [(2, 1), pytest.param(8, 4, marks=pytest.mark.long)])
def test_a_killed_server_is_used_again_and_has_lost_nothing(
    engine: SearchEngine, readers: int, kills: int
) -> None:
    load = Load(engine, readers)
    try:
        load.wait_for(lambda: len(load.acknowledged) >= 20)
        server = postgres_server._server()
        for _ in range(kills):
            failures = len(load.failures)
            postgres_server.kill(server)
            load.wait_for(lambda known=failures: len(load.failures) > known)
            postgres_server.restart(server)
            before = len(load.acknowledged)
            load.wait_for(lambda known=before: len(load.acknowledged) >= known + 20)
    finally:
        load.stop()
    assert load.unexpected == []
    assert all("again" in each or "cannot be reached" in each for each in load.failures)
    assert set(load.acknowledged) <= set(engine.keys())
    assert len(engine.search(units(1)[0], 5)) == 5


# --- replicas -------------------------------------------------------------------------------------


def test_searches_ask_a_replica_and_writes_go_to_the_primary(url: str) -> None:
    with SearchEngine.create(url, None, dim=DIM) as engine:
        engine.collection.upsert(entries(20))
    server = postgres_server._server()
    with postgres_server.replica(server) as folder:
        uri, _, name = url.partition("#")
        both = uri.replace("host=", f"host={folder},") + f"#{name}"
        alone = uri.replace(str(server.pgdata), folder) + f"#{name}"
        query = units(1)[0]
        with SearchEngine.open(both) as engine, SearchEngine.open(alone) as reader:

            def wait_for_replica() -> None:
                deadline = time.monotonic() + DEADLINE
                while len(reader) != len(stored_states(engine, [f"k{i}" for i in range(99)])):
                    assert time.monotonic() < deadline
                    time.sleep(0.02)

            wait_for_replica()
            on_replica = ("SELECT pg_is_in_recovery()", ())
            with engine.collection.reading() as snapshot:
                assert snapshot.read(*on_replica) == [(True,)]
            with engine.collection._connections.borrow() as connection:
                assert run(connection, on_replica) == [[(False,)]]
            engine.collection.upsert(entries(30))  # the stored ones are read from the primary
            engine.add([{"_id": "k3", "text": "new"}], units(1))
            wait_for_replica()
            assert len(engine.search(query, 40)) == len(reader.search(query, 40)) == 30
            with pytest.raises(BackendUnavailable, match="this server is a replica"):
                reader.delete(["k1"])
            with engine.collection.reading() as snapshot:
                assert snapshot.read(*on_replica) == [(True,)]
        # Without the replica, the primary answers.
    with SearchEngine.open(both) as engine:
        assert len(engine.search(query, 40)) == 30


# --- a cluster ------------------------------------------------------------------------------------


@pytest.fixture
def spread() -> Iterator[SearchEngine]:
    """An empty collection on a cluster."""
    with SearchEngine.create(new_cluster_url(), None, {"prefix": 8}, dim=DIM) as engine:
        yield engine


@pytest.mark.cluster
def test_passages_are_on_all_nodes(spread: SearchEngine) -> None:
    spread.collection.upsert(entries(1500), finished=0)
    with spread.collection._connections.borrow() as connection:
        sql = (
            "SELECT count(DISTINCT nodename || nodeport) FROM citus_shards "
            "WHERE table_name = 'passages'::regclass AND shard_size > 0"
        )
        (nodes,) = connection.execute(sql).fetchone() or (0,)
        sql = "SELECT count(*) FROM pg_dist_node WHERE shouldhaveshards AND noderole = 'primary'"
        assert (nodes,) == connection.execute(sql).fetchone()
    query = units(1, seed=5)[0]
    planned = plan(spread, query, 10, "n >= 100")
    assert "Custom Scan (Citus Adaptive)" in planned and "Could not" not in planned
    exact = [hit.key for hit in spread.search(query, 10, exact=True)]
    assert [hit.key for hit in spread.search(query, 10, shortlist=1500)] == exact
