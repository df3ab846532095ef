"""Qdrant: filters, what a reader sees meanwhile, rotation, shards, errors, and `copy`.

Each test says by its parameter what it ran on: see tests/qdrant_server.py.
"""

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_server
from cut_documents import DOCUMENTS, Words
from filter_oracle import holds, records, trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazy import Lazy, needs

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Entry, scan
from searchengine.backends.folder.filters.parser import parse
from searchengine.backends.folder.filters.sql import Filter
from searchengine.backends.opening import name_of
from searchengine.errors import (
    BackendUnavailable,
    CollectionError,
    CorpusError,
    FilterError,
    QueryError,
)
from searchengine.upkeep.copying import copy

pytestmark = needs("qdrant_client", "qdrant")
filters, points, snapshot = (
    Lazy(f"searchengine.backends.qdrant.{name}") for name in ("filters", "points", "snapshot")
)

DIM = 32
KINDS = ["local", "edge"]
CONFIG = {"prefix": 8}


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return qdrant_server.new_url(request.param, monkeypatch)


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> str:
    return qdrant_server.new_url("edge", monkeypatch)


def units(n: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = np.random.default_rng(seed).standard_normal((n, DIM)) * np.arange(1, DIM + 1) ** -0.6
    rows = rows @ np.linalg.qr(np.random.default_rng(9).standard_normal((DIM, DIM)))[0]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def entries(n: int, seed: int = 0) -> list[Entry]:
    return [
        Entry(Document(f"k{i}", f"text {i}", metadata={"n": i}), ((0, 4),), vector[None])
        for i, vector in enumerate(units(n, seed))
    ]


# --- filters --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def select(request: pytest.FixtureRequest) -> Iterator[Any]:
    """(filter, metadata of all documents) → the positions of those that match."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        url = qdrant_server.new_url(request.param, monkeypatch)
        with SearchEngine.create(url, None, {"prefix": 4}, dim=4) as engine:
            server = engine.collection._server

            def found(condition: Any, rows: list[dict[str, Any]]) -> list[int]:
                engine.delete(where="not exists(nothing)")
                stored = [
                    Entry(Document(f"k{i}", "x", metadata=row), (), np.empty((0, 4), np.float32))
                    for i, row in enumerate(rows)
                ]
                if stored:
                    engine.collection.upsert(stored)
                hits, _ = server.call(
                    "scroll", scroll_filter=condition, limit=100, with_payload=["key", "number"]
                )
                keys = [p.payload["key"] for p in hits if "number" in p.payload]
                return sorted(int(key[1:]) for key in keys)

            yield found


def expressible(tree: Filter) -> bool:
    try:
        filters.translated(tree)
    except FilterError:
        return False
    return True


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(trees.filter(expressible), st.lists(records, max_size=5))
def test_a_filter_means_what_its_tree_means(
    select: Any, tree: Filter, rows: list[dict[str, Any]]
) -> None:
    expected = [i for i, row in enumerate(rows) if holds(tree, row)]
    assert select(filters.translated(tree), rows) == expected


ROWS: list[dict[str, Any]] = [
    {
        "big": 2**60 + 1,
        "n": 1,
        "tags": ["a", 1],
        "at": "2020-02-29T23:59:59Z",
        "ü": {"two words": 5},
    },
    {"big": 2**60, "n": 1.0, "tags": "a", "at": ["2020-02-29", "x"], "ok": True},
    {"big": -(2**60) - 1, "n": "1", "tags": [], "at": "9999", "ok": 0, "none": None},
    {"big": 2.0**60, "n": True, "tags": [["a"]], "ok": ""},
]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("big > 1152921504606846976", [0]),
        ("big >= 1152921504606846976", [0, 1, 3]),
        ("big < 1152921504606846977", [1, 2, 3]),
        ("big <= -1152921504606846977", [2]),
        ("big = 1152921504606846976", [1, 3]),
        ("n = 1", [0, 1]),
        ("n = true", [3]),
        ("n between 0 and 1.5", [0, 1]),
        ("tags = 'a'", [1]),
        ("tags contains 'a'", [0]),
        ("tags contains 1.0", [0]),
        ("at = date('2020-02')", [0]),
        ("at contains date('2020')", [1]),
        ("at > date('2020')", [2]),
        ("`ü`.`two words` >= 5", [0]),
        ("exists(none)", [2]),
        ("none = null", [2]),
        ("ok", [1]),
        ("not ok", [0, 2, 3]),
        ("ok in (0, true)", [1, 2]),
        ("not (n = 1 or exists(none))", [3]),
    ],
)
def test_filters(select: Any, source: str, expected: list[int]) -> None:
    assert select(filters.translated(parse(source)), ROWS) == expected


def test_what_qdrant_cannot_express_is_refused(url: str) -> None:
    with SearchEngine.create(url, None, CONFIG, dim=DIM) as engine:
        engine.collection.upsert(entries(2))
        for source in ("s like 'a%'", "s < 'b'", "not (s between 'a' and 'b')"):
            with pytest.raises(FilterError, match=r"Qdrant cannot .* s by =, in or contains"):
                engine.search(units(1)[0], where=source)
            with pytest.raises(FilterError, match="Qdrant cannot"):
                engine.count(source)


def test_fields_are_indexed_and_named(url: str) -> None:
    with SearchEngine.create(url, None, CONFIG, dim=DIM) as engine:
        engine.collection.upsert(entries(9))
        engine.index_fields("n", "a.b")
        assert engine.stats().fields == ("n", "a.b")
        assert engine.count("n >= 4") == 5


# --- what a reader sees ---------------------------------------------------------------------------


class Killed(Exception):
    """The writer is gone."""


def test_a_writer_killed_at_any_request_leaves_each_document_whole(url: str) -> None:
    """Three passages become one, in a writer that is killed before each of its requests."""
    vectors = units(8)
    client = qdrant_server.client_of(url)
    long = [Entry(Document(k, "aa bb cc"), ((0, 2), (3, 5), (6, 8)), vectors[:3]) for k in "de"]
    short = [Entry(Document(k, "dd"), ((0, 2),), vectors[3:4]) for k in "de"]
    with (
        SearchEngine.create(url, None, CONFIG, dim=DIM) as writer,
        SearchEngine.open(url) as reader,
    ):
        seen: list[tuple[int, ...]] = []
        kill_at = 0
        finished = False
        while not finished:
            writer.collection.upsert(long)
            left = [kill_at]

            def before(method: str, _: Any, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed(method)

            client.before = before
            try:
                writer.collection.upsert(short)
                finished = True
            except Killed:
                pass
            client.before = lambda method, _: None
            stored = reader.collection.entries(["d", "e"])
            texts = {e.document.key: e.document.text for e in stored}
            assert [e.checksum for e in stored] in (
                [e.checksum for e in long],
                [e.checksum for e in short],
            )
            hits = reader.search(vectors[0], 5, exact=True)
            assert len(hits) == 2
            assert all(hit.text == texts[hit.key] and hit.end <= len(hit.text) for hit in hits)
            seen.append(tuple(len(e.spans) for e in stored))
            kill_at += 1
        assert seen[0] == (3, 3) and seen[-1] == (1, 1)
        writer.collection.upsert(short)
        assert [e.checksum for e in reader.collection.entries(["d", "e"])] == [
            e.checksum for e in short
        ]


def test_a_faster_writer_takes_the_numbers(url: str) -> None:
    """A second writer adds between the moments when the first one reads and takes its numbers."""
    client = qdrant_server.client_of(url)
    first, second = entries(4), entries(6)[2:]  # two keys are common
    with SearchEngine.create(url, None, CONFIG, dim=DIM) as engine, SearchEngine.open(url) as other:

        def before(method: str, _: Any) -> None:
            if method == "set_payload":
                client.before = lambda method, _: None
                other.collection.upsert(second)

        client.before = before
        engine.collection.upsert(first)
        with engine.collection.reading() as snapshot:
            ids = snapshot.store.ids_after(-1, None, 100)
            assert len(ids) == len(set(ids)) == 6
            assert sorted(snapshot.store.keys_of(ids)) == [f"k{i}" for i in range(6)]
            assert snapshot.store.counts() == (6, 6)


# --- searching ------------------------------------------------------------------------------------


def test_the_graph_of_the_engine_finds_nearly_all(edge: str) -> None:
    """The engine with its graph: the top 10 against exact search; the rotation is fitted first."""
    client = qdrant_server.client_of(edge)
    with SearchEngine.create(edge, None, {"prefix": 16}, dim=DIM) as engine:
        engine.collection.upsert(entries(1100))
        client.optimize(collection_name="papers")
        assert engine.collection.is_indexed()
        assert engine.collection.carried()["rotation"].shape == (DIM, DIM)
        queries = units(30, seed=5)
        for where in (None, "n >= 600"):
            exact = engine.search_batch(queries, 10, where=where, exact=True)
            hits = engine.search_batch(queries, 10, where=where, shortlist=200)
            same = [
                len({h.key for h in a} & {h.key for h in b})
                for a, b in zip(exact, hits, strict=True)
            ]
            assert sum(same) >= 0.95 * 10 * len(queries)
        first = {hit.key: hit.score for hit in exact[0]}
        stored = units(1100)
        for key, score in first.items():
            assert score == pytest.approx(float(stored[int(key[1:])] @ queries[0]), abs=2e-3)


def test_a_graph_that_ends_too_soon_is_made_up_for(url: str) -> None:
    """The prefetch returns a third of what it should; and it is left out where all fit."""
    client = qdrant_server.client_of(url)
    stages: list[bool] = []

    def after(method: str, arguments: Any, result: Any) -> Any:
        if method == "query_batch_points":
            for request, answer in zip(arguments["requests"], result, strict=True):
                stages.append(request.prefetch is not None)
                if request.prefetch is not None:
                    answer.points = answer.points[: len(answer.points) // 3]
        return result

    client.after = after
    with SearchEngine.create(url, None, CONFIG, dim=DIM) as engine:
        engine.collection.upsert(entries(60))
        query = units(1, seed=3)[0]
        for where, shortlist, coarse in (
            (None, 60, False),
            ("n >= 30", 30, False),
            (None, 20, True),
            ("n >= 30", 20, True),
        ):
            stages.clear()
            hits = engine.search(query, 10, where=where, shortlist=shortlist)
            assert any(stages) == coarse and False in stages
            exact = engine.search(query, 10, where=where, exact=True)
            assert [hit.key for hit in hits] == [hit.key for hit in exact]


def test_equal_scores_come_in_the_order_of_numbers(url: str) -> None:
    """Also where the points were written in another order, and most are not returned."""
    vector = units(1)
    stored = [Entry(Document(f"k{i}", "x"), ((0, 1),), vector) for i in range(40)]
    with SearchEngine.create(url, None, CONFIG, dim=DIM) as engine:
        engine.collection.upsert(stored)
        engine.collection.upsert(stored[:20])
        hits = engine.search(vector[0], 5, shortlist=100)
        assert [hit.key for hit in hits] == [f"k{i}" for i in range(5)]


def test_each_shard_ranks_its_part_of_the_shortlist() -> None:
    assert [snapshot.shard_shortlist(1000, shards) for shards in (1, 2, 20)] == [1000, 556, 75]
    assert all(
        snapshot.shard_shortlist(size, shards) * shards >= size
        for size in (1, 7, 100, 1000)
        for shards in (1, 3, 16, 100)
    )


def test_a_document_of_too_many_passages_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("searchengine.backends.qdrant.points._MAX_NUMBERS", 2 * DIM)
    with SearchEngine.create(url, None, CONFIG, dim=DIM) as engine:
        three = Entry(Document("d", "aa bb cc"), ((0, 2), (3, 5), (6, 8)), units(3))
        with pytest.raises(CorpusError, match="'d' has 3 passages, and Qdrant stores at most 2"):
            engine.collection.upsert([three])
        assert len(engine) == 0


def test_large_changes_go_in_several_requests() -> None:
    rows = [points.point_of(entry, i, 8, None) for i, entry in enumerate(entries(50))]
    batches = list(points.batches(rows, 8000))
    assert 5 < len(batches) < 50 and [p for batch in batches for p in batch] == rows


def test_words_are_refused(url: str) -> None:
    with SearchEngine.create(url, Words(), CONFIG) as engine:
        engine.add(DOCUMENTS)
        for ask in ({"mode": "text"}, {"mode": "hybrid"}):
            with pytest.raises(QueryError, match="words"):
                engine.search("bb", 3, **ask)


# --- copying --------------------------------------------------------------------------------------


def test_there_and_back(tmp_path: Path, url: str) -> None:
    source = tmp_path / "source.index"
    n = 60
    rows = units(n)
    documents = [{"_id": str(i), "text": f"text {i}", "x": i / 7} for i in range(n)]
    with SearchEngine.create(source, None, {"prefix": 16, "shortlist": 77}, dim=DIM) as engine:
        engine.add(documents, rows)
        engine.update({"7": {"seen": True}})
        rotation = engine.local.carried()["rotation"]
    there = copy(source, url)
    assert (there.documents, there.passages, there.written) == (n, n, n)
    assert there.farthest < 1e-3
    with SearchEngine.open(url) as engine:
        np.testing.assert_array_equal(engine.collection.carried()["rotation"], rotation)
        assert engine.stats().shortlist == 77
        assert engine["7"].metadata["seen"] is True
        hits = engine.search(rows[7], 3, where="seen")
        assert [hit.key for hit in hits] == ["7"]
    assert copy(source, url).written == 0
    back = copy(url, tmp_path / "back.index")
    assert back.checksum == there.checksum
    with SearchEngine.open(source) as one, SearchEngine.open(tmp_path / "back.index") as other:
        assert [e.checksum for b in scan(one.collection) for e in b] == [
            e.checksum for b in scan(other.collection) for e in b
        ]


# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        "qdrant://:sec%2Fret@h:1/p?shards=2#n",
        "qdrant+https://secret@h:1/p#n",
        "qdrant://a:secret@h",
    ],
)
def test_the_api_key_is_never_shown(given: str) -> None:
    assert "sec" not in name_of(given)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("qdrant://:secret@h:99999#n", "the port must be a number"),
        ("qdrant://:secret@#n", "the host is missing"),
        ("qdrant://:secret@h#a b", "the name of a collection must be"),
        ("qdrant://:secret@h?shards=0#n", "shards must be a whole number"),
        ("qdrant://:secret@h?api_key=secret#n", "the options of the URL are shards and replicas"),
        ("qdrants://:secret@h#n", "no backend has this scheme"),
    ],
)
def test_a_bad_url_is_refused(bad: str, message: str) -> None:
    with pytest.raises(CollectionError, match=message) as caught:
        SearchEngine.open(bad)
    assert "secret" not in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(ImportError, match=r"pip install 'searchengine\[qdrant\]'"):
        SearchEngine.open("qdrant://127.0.0.1:1#n")


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailable, match=r"qdrant://127.0.0.1:1#n cannot be reached"):
        SearchEngine.open("qdrant://127.0.0.1:1#n")


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (401, "Must provide an API key", CollectionError, "refuses the API key"),
        (503, "busy", BackendUnavailable, r"could not answer \(busy\); try again"),
        (
            200,
            '{"title": "qdrant", "version": "1.9.0"}',
            CollectionError,
            "is Qdrant 1.9.0, and 1.12",
        ),
    ],
)
def test_answers_of_a_server_are_explained(
    status: int, body: str, error: type[Exception], message: str
) -> None:
    """By HTTP, from a server that gives one answer to everything. It checks the key's header."""
    keys: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["api-key"])
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with (
            pytest.warns(UserWarning, match="insecure"),
            pytest.raises(error, match=message) as caught,
        ):
            SearchEngine.open(f"qdrant://:secret@127.0.0.1:{server.server_port}#n")
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()
    assert keys[0] == "secret" and "secret" not in str(caught.value)


def test_points_of_others_are_left_alone(url: str) -> None:
    from qdrant_client import models

    SearchEngine.create(url, None, CONFIG, dim=DIM).close()
    with pytest.raises(CollectionError, match="exists already"):
        SearchEngine.create(url, None, CONFIG, dim=DIM)
    client = qdrant_server.client_of(url)
    client.upsert(
        collection_name="papers", points=[models.PointStruct(id=5, vector={}, payload={"a": 1})]
    )
    client.delete(collection_name="papers", points_selector=models.PointIdsList(points=[0]))
    with pytest.raises(CollectionError, match="no such collection"):
        SearchEngine.open(url)
    with pytest.raises(CollectionError, match="holds points that are not of searchengine"):
        SearchEngine.create(url, None, CONFIG, dim=DIM)
