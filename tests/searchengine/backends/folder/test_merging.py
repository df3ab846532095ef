"""Merges, each a transaction: what others see and do meanwhile, where they fail and are killed."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths, during, fill_disk
from faults import in_child
from scenarios import answers_as_brute_force, document, stored, strays

from searchengine import SearchEngine
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.store import Store
from searchengine.errors import CollectionBusy
from searchengine.indexer.segment import Segment, SegmentConfig

CONFIG = SegmentConfig(prefix=8)
KEYS = {f"d{i}" for i in range(15)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths(), CONFIG) as engine:
        for first in (0, 5, 10):
            engine.add([document(i) for i in range(first, first + 5)])
        yield engine


def check(path: Path, keys: set[str]) -> None:
    """The collection holds these documents, answers by them, and has nothing left over."""
    with SearchEngine.open(path, WordLengths()) as engine:
        held = stored(path)
        assert set(held) == keys
        engine.verify()
        answers_as_brute_force(engine, held)
    assert strays(path) == []


def test_a_merge_keeps_documents_and_order(engine: SearchEngine, path: Path) -> None:
    engine.delete(["d3", "d11"])
    engine.optimize()
    assert engine.stats().segments == 1 and engine.stats().tombstones == 0
    with engine.collection.reading() as snapshot:
        assert snapshot.store.keys_of(snapshot.documents_of(np.arange(15, 28))) == [
            f"d{i}" for i in range(15) if i not in (3, 11)
        ]
    check(path, KEYS - {"d3", "d11"})


def test_others_read_during_a_merge_and_write_after_it(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        with SearchEngine.open(path, WordLengths()) as other:
            for reader in (engine, other):
                assert reader.stats().segments == 3
                answers_as_brute_force(reader, stored(path))
            other.verify()
            with pytest.raises(CollectionBusy, match="is being written to by another process"):
                other.delete(["d0"])

    with monkeypatch.context() as patch, SearchEngine.open(path, WordLengths()) as reader:
        during(patch, Segment, "open", act)  # when it is built
        engine.optimize()
        assert (engine.stats().segments, reader.stats().segments) == (1, 3)
        answers_as_brute_force(reader, stored(path))
        reader.delete(["d0"])
    check(path, KEYS - {"d0"})


def test_a_merge_waits_for_another_writer(engine: SearchEngine, path: Path) -> None:
    with Store(path / "documents.db") as store, store.transaction():
        with pytest.raises(CollectionBusy, match="is being written to by another process"):
            engine.optimize()
    engine.optimize()
    check(path, KEYS)


def test_segments_are_merged_once(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer merges what was to be merged, before this one has the lock."""

    def act() -> None:
        with SearchEngine.open(path, WordLengths()) as other:
            other.update({"d2": {"seen": True}})
            assert other.stats().segments == 1

    with monkeypatch.context() as patch:
        during(patch, Collection, "writing", act, 2)
        engine.add([document(20)])
    (row,) = engine.collection.segments
    assert row.id == 5
    check(path, KEYS | {"d20"})


@pytest.mark.parametrize("moment", ["merge", "open"], ids=["before", "built"])
def test_a_process_killed_in_a_merge_leaves_nothing(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def optimize(_: Any) -> None:
        with SearchEngine.open(path, WordLengths()) as other:
            during(monkeypatch, Segment, moment, lambda: os.kill(os.getpid(), signal.SIGKILL))
            other.optimize()

    assert in_child(optimize).signal == signal.SIGKILL
    engine.add([document(15)])  # merges as well
    assert engine.stats().segments == 1
    check(path, KEYS | {"d15"})


def test_a_full_disk_leaves_a_merge_to_the_next_change(
    engine: SearchEngine,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        during(patch, Segment, "merge", fill_disk)
        engine.add([document(15)])
    assert "segments were not merged" in caplog.text and "No space left" in caplog.text
    assert engine.stats().segments == 4
    with SearchEngine.open(path, WordLengths()) as other:
        other.delete(["d3"])
        assert other.stats().segments == 1
    check(path, (KEYS | {"d15"}) - {"d3"})


def test_a_small_commit_takes_the_rotation_of_the_largest_segment_if_it_suits(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1500, 24)) * np.arange(1, 25) ** -1.0
    with SearchEngine.create(tmp_path / "c", None, {"prefix": 8}, dim=24) as engine:
        for name, some in (("a", rows[:1200]), ("b", rows[1200:]), ("c", rows[1200:, ::-1])):
            engine.add([{"_id": f"{name}{i}"} for i in range(len(some))], some.astype(np.float32))
        first, second, third = (
            (s.path / "rotation.npy").read_bytes() for s in engine.collection.segments.values()
        )
    assert first == second != third
