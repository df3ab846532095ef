"""The engine with an encoder a human can compute: exact hits, filters, commits, bad input."""

import errno
import os
import re
import resource
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clean_process import clean
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import Hit, SearchEngine
from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.store import Store
from searchengine.encoders.protocol import WrappedEncoder
from searchengine.engine import Hits
from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    EncoderMismatch,
    EncoderMissing,
    FilterError,
    QueryError,
)
from searchengine.indexer.segment import SegmentConfig

DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "threes", "text": "the cat sat", "year": 2016, "lang": "en"},
    {"_id": "mixed", "text": "the cat slept", "year": 2014, "lang": "en"},
    {"_id": "fives", "title": "whale", "text": "sleep", "year": 2020, "lang": "ko"},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.index"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(DOCUMENTS)
        yield engine


def keys(hits: list[Hit]) -> list[str]:
    return [hit.key for hit in hits]


def test_hits_are_exact_and_ordered(engine: SearchEngine) -> None:
    hits = engine.search("one dog", k=3, mode="vector")
    assert keys(hits) == ["threes", "mixed", "fives"]
    # (3,) against (3, 3, 5): 2 / √5
    assert [hit.score for hit in hits] == pytest.approx([1, 2 / 5**0.5, 0], abs=1e-3)
    metadata = {"year": 2020, "lang": "ko"}
    score = hits[2].score
    expected = ("fives", "whale", "sleep", metadata, 0, 5, "one dog", {"vector": score})
    assert hits[2] == Hit(score, *expected)
    assert str(hits[0]) == "1.000  threes\n       the cat sat"


def test_equal_scores_come_in_the_order_added(engine: SearchEngine) -> None:
    engine.add([{"_id": "a", "text": "dog"}, {"_id": "b", "text": "cow"}])
    assert keys(engine.search("pig", k=3)) == ["threes", "a", "b"]


def test_k_larger_than_the_collection_gives_what_there_is(engine: SearchEngine) -> None:
    assert len(engine.search("dog", k=50)) == 3
    assert len(engine.search("dog", k=50, where="year > 2015")) == 2


def test_batch_equals_one_by_one(engine: SearchEngine) -> None:
    questions = ["dog", "whale sleep", "dog sleep"]
    batch = engine.search_batch(questions, k=2, where="lang = 'en'")
    assert batch == [engine.search(q, k=2, where="lang = 'en'") for q in questions]
    assert engine.search_batch([]) == []


def test_filter_is_applied_before_the_shortlist_is_counted(engine: SearchEngine) -> None:
    assert keys(engine.search("dog", k=1, shortlist=1, where="lang = 'ko'")) == ["fives"]
    assert engine.search("dog", where="lang = 'fr'") == []


def test_stats_of_nothing_and_of_what_is_too_small_for_its_recipe(path: Path) -> None:
    with SearchEngine.create(path, WordLengths(), SegmentConfig(16, "hnsw")) as engine:
        assert (engine.stats().hot_row, engine.stats().cold_row) == (None, None)
        engine.add(DOCUMENTS)
        assert (engine.stats().index_config["structure"], engine.stats().scanned) == ("hnsw", 1)
        engine.add({"_id": str(i), "text": "a" * (i % 16 + 1)} for i in range(1000))
        assert (engine.stats().segments, engine.stats().scanned) == (2, 1)


def test_exact_search_is_that_of_an_oracle(path: Path) -> None:
    """With a shortlist too short to find the nearest."""
    rng = np.random.default_rng(0)
    texts = [" ".join("x" * n for n in line) for line in rng.integers(1, 17, (3000, 8))]
    config = SegmentConfig(prefix=4, shortlist=10, storage="float32")
    encoder = WordLengths()
    with SearchEngine.create(path, encoder, config) as engine:
        engine.add({"_id": str(i), "text": t, "n": i} for i, t in enumerate(texts))
        scores = encoder.encode(texts) @ encoder.encode(["a bb ccc sixteen sixteen"])[0]
        for where, allowed in ((None, 3000), ("n < 2000", 2000), ("n < 20", 20)):
            hits = engine.search("a bb ccc sixteen sixteen", exact=True, where=where)
            best = np.lexsort((np.arange(allowed), -scores[:allowed]))[:10]
            assert [hit.score for hit in hits] == pytest.approx(scores[best], abs=1e-5)
            assert hits.exact
        quick = engine.search("a bb ccc sixteen sixteen")
        assert not quick.exact
        for question, batched in zip(
            ("a bb", "ccc"), engine.search_batch(["a bb", "ccc"], exact=True), strict=True
        ):
            # A batch is turned by another matrix product, whose last bits differ.
            alone = [hit.score for hit in engine.search(question, exact=True)]
            assert batched.exact and [h.score for h in batched] == pytest.approx(alone, abs=1e-6)
        with pytest.raises(QueryError, match="takes no shortlist, got 5"):
            engine.search("a", shortlist=5, exact=True)


def test_hits_are_a_list(engine: SearchEngine) -> None:
    hits = engine.search("one dog", k=2, mode="vector")
    assert isinstance(hits, Hits) and isinstance(hits, list)
    assert hits == list(hits) and hits.exact  # three rows: all of them were scored
    (nothing,) = engine.search_batch(["dog"], where="lang = 'fr'", mode="vector")
    assert (nothing, nothing.exact) == ([], True)


def test_reopen_finds_the_same(engine: SearchEngine, path: Path) -> None:
    before = engine.search("one dog")
    engine.close()
    with SearchEngine.open(path, WordLengths()) as again:
        assert again.search("one dog") == before
        again.verify()


def test_stats(engine: SearchEngine, path: Path) -> None:
    stats = engine.stats()
    assert (stats.documents, stats.segments, stats.dim) == (3, 1, 16)
    assert stats.index_config == SegmentConfig(prefix=16, shortlist=0).as_dict()
    assert (stats.shortlist, stats.exact) == (3, True)  # so few rows are searched exactly
    # Two bytes a number; nothing is left out of the prefix here.
    assert (stats.hot_row, stats.cold_row, stats.scanned, stats.tuning) == (32, 32, 0, None)
    assert stats.fingerprint == "word-lengths" and stats.encoder is None
    files = [f for f in path.rglob("*") if f.is_file()]
    assert stats.bytes == sum(f.stat().st_size for f in files)
    assert stats.bytes > 1000


def test_reader_keeps_its_snapshot_until_it_refreshes(engine: SearchEngine, path: Path) -> None:
    with SearchEngine.open(path, WordLengths()) as reader:
        engine.add([{"_id": "new", "text": "dog", "year": 2016}])
        assert keys(engine.search("dog", k=9, where="year = 2016", mode="vector")) == [
            "threes",
            "new",
        ]
        assert keys(reader.search("dog", k=9, where="year = 2016", mode="vector")) == ["threes"]
        reader.refresh()
        assert keys(reader.search("dog", k=9, where="year = 2016", mode="vector")) == [
            "threes",
            "new",
        ]


def test_passage_id_is_base_plus_row(engine: SearchEngine) -> None:
    engine.add([{"_id": "more", "text": "elephants"}])
    segments = engine.collection.segments
    assert [(row.base, row.rows) for row in segments] == [(0, 3), (3, 1)]
    for row, segment in segments.items():
        for i in range(row.rows):
            [passage] = engine.collection.store.passages([row.base + i])
            [document] = engine.collection.store.documents([passage.document])
            vector = WordLengths().encode([document.full_text])
            assert segment.vectors(np.array([i])) == pytest.approx(vector, abs=1e-3)


def test_documents_without_text_are_skipped_and_named(engine: SearchEngine) -> None:
    summary = engine.add(
        [
            {"_id": "blank", "text": " \n"},
            {"_id": "none", "text": None},
            {"_id": "ok", "title": "a"},
        ]
    )
    assert (summary.added, summary.without_text.first) == (1, ["blank", "none"])
    assert keys(engine.search("a", k=1)) == ["ok"]


def test_add_takes_a_stream_in_blocks(path: Path) -> None:
    encoder = WordLengths()
    seen: list[int] = []
    with SearchEngine.create(path, encoder) as engine:
        stream = ({"_id": str(i), "text": "a" * (i % 16 + 1)} for i in range(1100))
        engine.add(stream, progress=lambda documents, _: seen.append(documents))
        assert engine.stats().documents == sum(seen) == 1100
        assert [len(call) for call in encoder.calls] == [512, 588]
        assert keys(engine.search("aaa", k=2)) == ["2", "18"]


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        (
            [{"_id": "n", "text": "x"}, {"_id": "n", "text": "y"}],
            DuplicateKey,
            "'n' occurs twice",
        ),
        ([{"_id": "n", "text": "x"}, {"text": "y"}], CorpusError, "document 2: no _id"),
        ([{"_id": "n", "text": "x"}, {"_id": "m", "text": 3}], CorpusError, "text must be text"),
        ([], EmptyCorpus, "no document to index"),
        ({"_id": "n", "text": "x"}, QueryError, "put one document into a list"),
        (["text"], CorpusError, "document 1: expected a Document or a mapping, .*, got str"),
        ([{"_id": "n", "text": ""}], EmptyCorpus, r"\(1 without text\)"),
    ],
)
def test_bad_documents_change_nothing(
    engine: SearchEngine, documents: Any, error: type[Exception], message: str
) -> None:
    before = engine.search("one dog")
    with pytest.raises(error, match=message):
        engine.add(documents)
    assert engine.search("one dog") == before
    assert [f.name for f in (engine.collection.path / "segments").iterdir()] == ["000001"]
    engine.add([{"_id": "n", "text": "now it works"}])


def test_skip_bad_counts(engine: SearchEngine) -> None:
    documents = [{"_id": "n", "text": "x"}, {"text": "?"}, {"_id": "n", "text": "y"}, *DOCUMENTS]
    summary = engine.add(documents, skip_bad=True)
    assert (summary.added, summary.unchanged, summary.bad.count) == (1, 3, 2)
    assert any("'n' occurs twice" in message for message in summary.bad.first)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_unusable_vectors_are_refused_by_document(engine: SearchEngine, value: float) -> None:
    class Broken(WordLengths):
        def encode(self, texts: Any, *, role: str | None = None) -> Any:
            vectors = super().encode(texts, role=role)
            vectors[-1] = value
            return vectors

    engine._encoder._adopt(WrappedEncoder(Broken()))
    with pytest.raises(CollectionError, match="NaN, infinity or zeros for the document 'bad'"):
        engine.add([{"_id": "good", "text": "x"}, {"_id": "bad", "text": "y"}])
    assert engine.stats().documents == 3


def test_wrong_shape_from_the_encoder_is_refused(engine: SearchEngine) -> None:
    class Short(WordLengths):
        def encode(self, texts: Any, *, role: str | None = None) -> Any:
            return super().encode(texts, role=role)[1:]

    engine._encoder._adopt(WrappedEncoder(Short()))
    with pytest.raises(CollectionError, match=r"\(2, 16\) for 2 passages, got \(1, 16\)"):
        engine.add([{"_id": "x", "text": "x"}, {"_id": "y", "text": "y"}])


@pytest.mark.parametrize(
    ("question", "arguments", "error", "message"),
    [
        ("  \n", {}, QueryError, "the query is empty"),
        ("dog", {"k": 0}, QueryError, "k must be a whole number of at least 1, got 0"),
        ("dog", {"k": "5"}, QueryError, "k must be a whole number of at least 1, got '5'"),
        (5, {}, QueryError, "a vector of numbers, got 5"),
        ("dog", {"where": "a = '\ud800'"}, FilterError, "surrogate"),
        ("dog", {"where": "a = 'x\0y'"}, FilterError, r"U\+0000, which no metadata contains"),
        (
            "dog",
            {"shortlist": 0},
            QueryError,
            "at least 1, got 0",
        ),
        ("dog", {"where": "year >"}, FilterError, "expected a value"),
    ],
)
def test_bad_questions(
    engine: SearchEngine,
    question: Any,
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        engine.search(question, **arguments)


@pytest.mark.parametrize(
    ("patches", "error", "message"),
    [
        ({"threes": {"n": float("nan")}}, CorpusError, "cannot be written as JSON"),
        ({"threes": {"n": object()}}, CorpusError, "update of 'threes': the field 'n'"),
        ({"threes": 5}, QueryError, "update of 'threes' must be a mapping of metadata, got int"),
        ({"threes": {"n": "a\0b"}}, CorpusError, r"update of 'threes': metadata 'n' .* U\+0000"),
        ({"threes": {"n": 1}, "gone": {}}, QueryError, "no document 'gone'; nothing was changed"),
    ],
)
def test_bad_updates_change_nothing(
    engine: SearchEngine, patches: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.update(patches)
    assert engine.search("dog", 1)[0].metadata == {"year": 2016, "lang": "en"}
    engine.update({"threes": {"n": 1}})
    engine.update({})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "either keys or a filter"), ({"keys": "threes"}, "put one key into a list")],
)
def test_bad_deletions(engine: SearchEngine, arguments: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine.delete(**arguments)
    with pytest.raises(FilterError):
        engine.delete(where="year >")
    assert engine.delete(["nobody"]) == 0
    assert engine.stats().documents == 3


def test_batch_of_one_text_is_a_mistake(engine: SearchEngine) -> None:
    with pytest.raises(QueryError, match="takes a list"):
        engine.search_batch("dog")


def test_create_refuses_a_folder_in_use_and_a_wide_prefix(engine: SearchEngine, path: Path) -> None:
    with pytest.raises(CollectionError, match="exists already"):
        SearchEngine.create(path, WordLengths())
    with pytest.raises(CollectionError, match="prefix must be at most 16 wide"):
        SearchEngine.create(path.with_name("other"), WordLengths(), SegmentConfig())
    assert not path.with_name("other").exists()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_other_encoder_is_refused(engine: SearchEngine, path: Path) -> None:
    with pytest.raises(EncoderMismatch, match=r"encoder in memory.*searchengine reindex"):
        SearchEngine.open(path, WordLengths(fingerprint="other"))
    with pytest.raises(EncoderMismatch, match=r"16 wide.*got one of 8"):
        SearchEngine.open(path, WordLengths(dim=8))
    with (
        SearchEngine.open(path) as nameless,
        pytest.raises(CollectionError, match="made in Python; pass it again"),
    ):
        nameless.search("dog")


def test_the_path_of_a_moved_encoder_is_requested(engine: SearchEngine, path: Path) -> None:
    with Store(path / "documents.db") as store, store.transaction():
        gone = {"source": str(path / "gone"), "fingerprint": "word-lengths", "dim": 16}
        Changes(store).set("encoder", gone)
    with (
        SearchEngine.open(path) as moved,
        pytest.raises(EncoderMissing, match=r"gone, which cannot be loaded .*--query-encoder PATH"),
    ):
        moved.search("dog")
    with SearchEngine.open(path, WordLengths()) as found:
        assert keys(found.search("one dog", k=1)) == ["threes"]


def test_opening_a_folder_that_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="no such collection"):
        SearchEngine.open(tmp_path / "gone")
    with pytest.raises(CollectionError, match="is not a collection"):
        SearchEngine.open(tmp_path)


def files_of_a_segment() -> list[str]:
    return ["manifest.json", "vectors.faiss", "rotation.npy", "coarse.faiss"]


@pytest.mark.parametrize("name", files_of_a_segment())
@pytest.mark.parametrize("damage", ["missing", "truncated", "altered"])
def test_damaged_files_are_named(engine: SearchEngine, path: Path, name: str, damage: str) -> None:
    engine.close()
    file = path / "segments" / "000001" / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(content[:-1])
    else:
        content[-2] ^= 1
        file.write_bytes(content)
    with pytest.raises(CollectionError, match=rf"{name}.*the texts are in"):
        # The vectors file is mapped, not read, on opening; verify reads it.
        with SearchEngine.open(path, WordLengths()) as damaged:
            damaged.verify()


def test_a_segment_of_another_commit_is_refused(engine: SearchEngine, path: Path) -> None:
    engine.add([{"_id": str(i), "text": "x" * (i + 1)} for i in range(3)])
    engine.close()
    shutil.rmtree(path / "segments" / "000001")
    shutil.copytree(path / "segments" / "000002", path / "segments" / "000001")
    with pytest.raises(CollectionError, match=r"manifest.json is not the committed one"):
        SearchEngine.open(path, WordLengths())


def _add_with_little_room(path: Path, limit: int) -> None:
    """Try to add more than a file may hold, then to add little; exit 0 if both go as promised."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a failed write, as on a full disk
    with SearchEngine.open(path, WordLengths()) as engine:
        try:
            engine.add({"_id": f"x{i}", "text": "a bee"} for i in range(40_000))
        except CollectionError as error:
            sys.exit(0 if re.search("the change was undone|has room|make room", str(error)) else 1)
    sys.exit(2)


@pytest.mark.parametrize("limit", [200_000, 1_500_000])
def test_full_disk_changes_nothing(engine: SearchEngine, path: Path, limit: int) -> None:
    """The room ends in SQLite's log or in a file of the segment."""
    writer = clean.Process(target=_add_with_little_room, args=(path, limit))
    writer.start()
    writer.join(60)
    assert writer.exitcode == 0
    with SearchEngine.open(path, WordLengths()) as again:
        again.verify()
        assert again.stats().documents == 3
        assert again.add([{"_id": "x1", "text": "x"}]).added == 1


def test_the_callers_own_errors_pass_as_they_are(engine: SearchEngine) -> None:
    def missing() -> Iterator[dict[str, str]]:
        yield {"_id": "x", "text": "x"}
        raise FileNotFoundError(errno.ENOENT, "No such file", "/my/source.csv")

    with pytest.raises(FileNotFoundError, match=r"/my/source\.csv"):
        engine.add(missing())

    def query() -> Iterator[dict[str, str]]:
        sqlite3.connect(":memory:").execute("SELECT * FROM nope")
        yield {}

    with pytest.raises(sqlite3.OperationalError, match="no such table: nope"):
        engine.add(query())
    assert engine.stats().documents == 3
    assert engine.add([{"_id": "x", "text": "x"}]).added == 1


def test_a_closed_engine_says_so_and_writes_nothing(engine: SearchEngine, path: Path) -> None:
    engine.close()
    engine.close()
    for use in (
        lambda: engine.search("dog"),
        lambda: engine.add([{"_id": "x", "text": "x"}]),
        engine.stats,
        engine.refresh,
        engine.verify,
    ):
        with pytest.raises(CollectionError, match="is closed; open it again"):
            use()
    with SearchEngine.open(path, WordLengths()) as again:
        assert again.stats().documents == 3


@pytest.mark.parametrize("adds", [8, pytest.param(30, marks=pytest.mark.long)])
def test_threads_search_while_one_adds(engine: SearchEngine, adds: int) -> None:
    done = threading.Event()
    failures: list[BaseException] = []

    def search() -> None:
        try:
            while not done.is_set():
                hits = engine.search("one dog", k=50)
                assert hits[0].key == "threes"
                assert len(hits) == len({hit.key for hit in hits}) >= 3
                engine.refresh()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(adds):
        engine.add([{"_id": f"new{i}", "text": "elephants"}])
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert engine.stats().documents == 3 + adds


def test_strangers_among_the_segments_are_left_alone(engine: SearchEngine, path: Path) -> None:
    stray = path / "segments" / ".DS_Store"
    stray.touch()
    left_behind = path / "segments" / "000007"
    left_behind.mkdir()
    engine.add([{"_id": "x", "text": "x"}])
    assert stray.exists() and not left_behind.exists()


def test_a_read_only_folder_can_be_searched(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.close()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may write anywhere
    before = sorted(path.iterdir())
    with SearchEngine.open(path, WordLengths()) as reader:
        assert keys(reader.search("one dog", k=1)) == ["threes"]
        with pytest.raises(CollectionError, match=r"readonly|read-only"):
            reader.add([{"_id": "x", "text": "x"}])
    assert sorted(path.iterdir()) == before


def test_huge_k_and_shortlist_give_what_there_is(engine: SearchEngine) -> None:
    assert len(engine.search("dog", k=2**62, shortlist=2**62)) == 3


def test_a_long_text_is_shown_by_its_beginning() -> None:
    shown = str(Hit(1, "k", "題", "字" * 400, {}, 0, 400))
    assert shown.endswith("字…")
    assert len(shown) < 250
    assert str(Hit(1, "k", "", "two\n  lines", {}, 0, 12)).endswith(" two lines")


def test_small_scores_are_shown_by_their_digits() -> None:
    """A word of most documents has hardly any weight, and still orders."""
    scores = {1.0: "1.000", 0.0: "0.000", -0.25: "-0.250", 0.001: "0.001"}
    scores |= {1.364e-6: "1.36e-06", 1.358e-6: "1.36e-06", 1.35e-6: "1.35e-06", -4e-4: "-4.00e-04"}
    for score, text in scores.items():
        hit = Hit(score, "k", "", "x", {}, 0, 1)
        assert str(hit).split()[0] == text and f">{text}<" in hit._repr_html_()


def test_second_writer_is_refused_at_once(engine: SearchEngine, path: Path) -> None:
    with SearchEngine.open(path, WordLengths()) as other:
        with Store(path / "documents.db") as store, store.transaction():
            with pytest.raises(CollectionBusy, match="being written to"):
                other.add([{"_id": "y", "text": "y"}])
            assert keys(other.search("one dog", k=1)) == ["threes"]
        assert other.add([{"_id": "y", "text": "y"}]).added == 1


def _add_and_die(path: Path) -> None:
    """A writer that is killed when its segment lies complete on disk, before the commit."""
    engine = SearchEngine.open(path, WordLengths())
    Changes.add_segment = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    engine.add([{"_id": "lost", "text": "lost"}])


def test_a_killed_writer_leaves_the_last_commit(engine: SearchEngine, path: Path) -> None:
    writer = clean.Process(target=_add_and_die, args=(path,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    folders = path / "segments"
    assert sorted(f.name for f in folders.iterdir()) == ["000001", "000002"]
    with SearchEngine.open(path, WordLengths()) as survivor:
        assert keys(survivor.search("lost", k=9)) == keys(engine.search("lost", k=9))
        survivor.verify()
        survivor.add([{"_id": "kept", "text": "kept"}])  # removes what was left behind
        assert keys(survivor.search("kept", k=1)) == ["kept"]
        assert survivor.stats().documents == 4
    assert sorted(f.name for f in folders.iterdir()) == ["000001", "000003"]


words = st.lists(st.integers(1, 16).map(lambda n: "a" * n), min_size=1, max_size=6).map(" ".join)


@given(
    texts=st.lists(words, min_size=1, max_size=40),
    question=words,
    cut=st.integers(0, 39),
    k=st.integers(1, 12),
    below=st.integers(0, 40),
)
def test_wide_shortlist_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    question: str,
    cut: int,
    k: int,
    below: int,
) -> None:
    """Invariants 5, 6 and 7 over one or two segments: exact scores, exact filter, (−score, id)."""
    encoder = WordLengths()
    path = tmp_path_factory.mktemp("brute") / "c"
    documents = [{"_id": str(i), "text": t, "n": i} for i, t in enumerate(texts)]
    with SearchEngine.create(path, encoder, SegmentConfig(prefix=4, storage="float32")) as engine:
        for part in (documents[:cut], documents[cut:]):
            if part:
                engine.add(part)
        hits = engine.search(question, k, shortlist=len(texts), where=f"n < {below}", mode="vector")
    scores = encoder.encode(texts[:below] or ["a"]) @ encoder.encode([question])[0]
    expected = np.sort(scores[: len(texts[:below])])[::-1][:k]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-5)
    for hit in hits:
        assert hit.score == pytest.approx(scores[int(hit.key)], abs=1e-5)
    ranked = [(-hit.score, int(hit.key)) for hit in hits]
    assert ranked == sorted(ranked)


def test_the_encoder_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as writer:
        writer.add([{"_id": "1", "text": "a bee"}])
    loaded: list[WordLengths] = []

    def load(*_: object) -> WrappedEncoder:
        loaded.append(WordLengths())
        threading.Event().wait(0.05)
        return WrappedEncoder(loaded[-1])

    monkeypatch.setattr("searchengine.encoders.loading.load_built_by", load)
    with SearchEngine.open(tmp_path / "c") as engine, ThreadPoolExecutor(8) as callers:
        searches = [callers.submit(engine.search, f"a bee {i}", 1, mode="hybrid") for i in range(8)]
        searches += [callers.submit(engine.search, "a bee", k) for k in range(1, 9)]
        assert all(one.result(timeout=30)[0].key == "1" for one in searches)
    assert len(loaded) == 1
