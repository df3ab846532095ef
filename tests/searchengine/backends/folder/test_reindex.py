"""Changing the encoder of a living collection."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths, commits_of, during
from cut_documents import Words
from faults import in_child
from scenarios import document, leave_pending, stored, strays

from searchengine import Document, SearchEngine
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import Scratch
from searchengine.backends.folder.store import Store, Work
from searchengine.backends.folder.writer import Writer
from searchengine.encoders.functions import PROBE, FunctionEncoder
from searchengine.engine import discard_reindex
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch
from searchengine.indexer.segment import SegmentConfig
from searchengine.upkeep.reindex import FolderPlace

CONFIG = SegmentConfig(prefix=8)
COUNT = 30
KEYS = {f"d{i}" for i in range(COUNT)}


def letters(texts: Sequence[str]) -> np.ndarray:
    """Counts of x at each position of 24: another width, and another order of the documents."""
    vectors = np.full((len(texts), 24), 0.01)
    for row, text in zip(vectors, texts, strict=True):
        for position, letter in enumerate(text):
            row[position % 24] += letter == "x"
    return vectors


def other() -> FunctionEncoder:
    return FunctionEncoder(letters)


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    with commits_of(4, ahead=2):
        yield


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with filled(tmp_path / "c") as engine:
        yield engine


def filled(path: Path) -> SearchEngine:
    engine = SearchEngine.create(path, WordLengths(), CONFIG)
    for first in range(0, COUNT, 10):
        engine.add([document(i) for i in range(first, first + 10)])
    return engine


def works(path: Path) -> list[Work]:
    with Store(path / "documents.db", readers=1) as store:
        return store.works()


def as_fresh(path: Path, keys: set[str], encoder: Any = None) -> None:
    """The collection equals one that was made with the new encoder: documents, scores, order."""
    encoder = encoder or other()
    held = stored(path)
    assert set(held) == keys
    with (
        SearchEngine.open(path, encoder) as engine,
        SearchEngine.create(path.with_name("fresh"), encoder, CONFIG) as fresh,
    ):
        engine.verify()
        order = list(engine.documents())
        fresh.add(order)
        assert engine.stats().passages == fresh.stats().passages
        questions = ["x xx", "xxxx", "xxx x xxxxx", *(each.text for each in order[::5])]
        for mode in ("vector", "text", "hybrid"):
            expected = fresh.search_batch(questions, k=len(order), mode=mode)
            got = engine.search_batch(questions, k=len(order), mode=mode)
            for mine, its in zip(got, expected, strict=True):
                assert _ranked(mine) == pytest.approx(_ranked(its), abs=2e-3)
                assert [h.text for h in mine] == [held[h.key].text for h in mine]
    assert works(path) == []
    assert strays(path) == []


def _ranked(hits: Any) -> dict[str, float]:
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    return {hit.key: hit.score for hit in hits}


MOMENTS: list[tuple[type, str, int]] = [
    (Collection, "upsert", 1),
    (Collection, "upsert", 4),
    (FolderPlace, "differing", 2),
    (FolderPlace, "replace_by", 1),
    (Scratch, "clear", 2),  # the first one is that of the new folder
]


def test_a_reindex_equals_a_fresh_index(engine: SearchEngine) -> None:
    engine.delete(["d3", "d11"])
    engine.update({"d4": {"seen": True}})
    reported: list[tuple[str, int, int]] = []
    engine.reindex(other(), progress=lambda *step: reported.append(step))
    encoded = [done for step, done, _ in reported if step == "Encoding"]
    assert sum(encoded) == COUNT - 2
    stats = engine.stats()
    assert (stats.dim, stats.encoder, stats.segments, stats.tombstones) == (24, "letters", 1, 0)
    assert stats.index_config["prefix"] == 8 and stats.index_config["shortlist"] == 100
    hits = engine.search("xxx", k=40)  # by the new encoder
    assert len(hits) == COUNT - 2
    engine.add([document(40)])
    as_fresh(engine.collection.path, KEYS - {"d3", "d11"} | {"d40"})


@pytest.mark.parametrize(("owner", "step", "when"), MOMENTS)
def test_others_read_and_write_meanwhile(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, when: int
) -> None:
    path = engine.collection.path
    swapped = step == "clear"
    encoder = other() if swapped else WordLengths()
    before = [hit.key for hit in engine.search("x xx", k=50)]
    versions = {20: 1, 1: 1, 9: 1, 40: 0}  # 9 is in the third block
    changed = [document(number, version) for number, version in versions.items()]

    def act() -> None:
        if not swapped:
            assert [hit.key for hit in engine.search("x xx", k=50)] == before
        with SearchEngine.open(path, encoder) as also:
            also.verify()
            also.delete(["d0", "d29", "d17"])  # the last id is used again
            also.add(changed)
            also.optimize()
            assert len(also.search("x", k=50)) == COUNT - 2

    with monkeypatch.context() as patch:
        during(patch, owner, step, act, when)
        engine.reindex(other())
    as_fresh(path, KEYS - {"d0", "d29", "d17"} | {"d40"})


@pytest.mark.parametrize(
    ("owner", "step", "when"),
    [*MOMENTS, (FolderPlace, "_adopt", 1), (Writer, "append_built", 1)],
)
def test_a_killed_reindex_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, when: int
) -> None:
    """Killed three times; no text is encoded twice."""
    path = tmp_path / "c"
    filled(path).close()

    def reindex(_: Any) -> None:
        with SearchEngine.open(path, WordLengths()) as engine:
            engine.reindex(other())

    killed = 0
    keys = set(KEYS)
    while killed < 3:
        with monkeypatch.context() as patch:
            during(patch, owner, step, lambda: os.kill(os.getpid(), signal.SIGKILL), when)
            ended = in_child(reindex)
            assert ended.error is None
        if not ended.signal:
            break
        killed += 1
        encoder = other() if step == "clear" else WordLengths()
        with SearchEngine.open(path, encoder) as engine:
            engine.verify()
            engine.delete([f"d{killed}"])
            engine.add([document(10 + killed, version=1), document(40 + killed)])
        keys = keys - {f"d{killed}"} | {f"d{40 + killed}"}
        if step == "clear":  # the swap is committed
            break
    assert killed == (1 if step == "clear" else 3)
    if killed == 3:
        encoded: list[str] = []
        with Store(path / "pending" / works(path)[0].folder / "documents.db", readers=1) as store:
            done = store.count()

        def counted(texts: Sequence[str]) -> np.ndarray:
            encoded.extend(texts)
            return letters(texts)

        with SearchEngine.open(path, WordLengths()) as engine:
            engine.reindex(FunctionEncoder(counted, "letters"))
        assert len(encoded) <= len(PROBE) + COUNT + 3 * 2 - done + 3
    as_fresh(path, keys)


def test_readers_keep_their_commit_until_they_have_the_new_encoder(engine: SearchEngine) -> None:
    path = engine.collection.path
    with SearchEngine.open(path, WordLengths()) as reader, SearchEngine.open(path) as lazy:
        before = reader.search("x xx", k=5)
        engine.reindex(other())
        assert reader.search("x xx", k=5) == before
        for act in (
            reader.refresh,
            lambda: reader.add([document(50)]),
            lambda: reader.delete(["d1"]),
        ):
            with pytest.raises(
                EncoderMismatch, match=r"was built by the encoder letters .*, got one of 16"
            ):
                act()
        assert reader.search("x xx", k=5) == before
        lazy.delete(["d1"])  # has loaded no encoder, and needs none
        assert lazy.stats().encoder == "letters"
    as_fresh(path, KEYS - {"d1"})


def test_a_pending_reindex_can_be_discarded(engine: SearchEngine) -> None:
    path = engine.collection.path
    assert not discard_reindex(engine)
    leave_pending(engine, other())
    with pytest.raises(
        EncoderMismatch, match=r"by the encoder letters is pending, got the encoder words"
    ):
        engine.reindex(FunctionEncoder(letters, "words"))
    assert discard_reindex(engine)
    assert works(path) == [] and strays(path) == []
    engine.reindex(FunctionEncoder(letters, "words"))
    as_fresh(path, KEYS, FunctionEncoder(letters, "words"))


def test_only_one_process_reindexes(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    path = engine.collection.path

    def act() -> None:
        with SearchEngine.open(path, WordLengths()) as also:
            with pytest.raises(CollectionBusy, match="being reindexed by another process"):
                also.reindex(other())
            with pytest.raises(CollectionBusy, match="being reindexed by another process"):
                discard_reindex(also)

    with monkeypatch.context() as patch:
        during(patch, Collection, "upsert", act, 2)
        engine.reindex(other())
    as_fresh(path, KEYS)


def test_vectors_without_text_are_refused_by_key(tmp_path: Path) -> None:
    path = tmp_path / "c"
    rng = np.random.default_rng(0)
    with SearchEngine.create(path, None, dim=12) as engine:
        engine.add([document(1), Document("bare", "\n\t\u3000")], rng.standard_normal((2, 12)))
        engine.add([document(2)], rng.standard_normal((1, 12)))
        with pytest.raises(CollectionError, match="the document 'bare' came with vectors and"):
            engine.reindex(other())
        assert works(path) == []
        engine.delete(["bare"])
        engine.reindex(other())
        assert engine.add([document(1)]).unchanged == 1
    with SearchEngine.open(path, other()) as engine:
        assert {hit.key for hit in engine.search("x", k=5, mode="vector")} == {"d1", "d2"}


def test_a_backup_leaves_a_pending_reindex_out_and_a_repair_keeps_it(
    engine: SearchEngine, tmp_path: Path
) -> None:
    path = engine.collection.path
    leave_pending(engine, other())
    engine.backup(tmp_path / "copy")
    assert works(tmp_path / "copy") == []
    with SearchEngine.open(tmp_path / "copy", WordLengths()) as copy:
        copy.verify()
        copy.add([document(50)])
    next((path / "segments").glob("*/coarse.faiss")).unlink()
    repaired = SearchEngine.repair(path, WordLengths())
    assert repaired.whole and repaired.lost == () and len(works(path)) == 1
    with SearchEngine.open(path, WordLengths()) as mended:
        mended.delete(["d1"])
        mended.reindex(other())
    as_fresh(path, KEYS - {"d1"})


def test_a_tuned_index_loses_its_operating_point(engine: SearchEngine) -> None:
    with engine.collection.writing() as writer:
        config = SegmentConfig(prefix=12, shortlist=70)
        segments = engine.collection.segments
        measured = {row: (segment, None) for row, segment in segments.items()}
        writer.rebuild(measured, config, {"goal": {"recall": 0.9}})
    engine.reindex(other())
    stats = engine.stats()
    assert stats.tuning is None
    assert (stats.index_config["prefix"], stats.index_config["shortlist"]) == (12, 0)
    engine.verify()


def test_passages_are_cut_for_the_new_encoder(tmp_path: Path) -> None:
    path = tmp_path / "c"
    long = [
        Document(f"l{i}", " ".join("x" * (1 + (i + j) % 7) for j in range(30))) for i in range(9)
    ]
    with SearchEngine.create(path, WordLengths(), CONFIG) as engine:
        engine.add(long)
        engine.reindex(Words(8, "cutting"), passages=True)
        assert engine.stats().passages > 9 * 4
    as_fresh(path, {each.key for each in long}, Words(8, "cutting"))
