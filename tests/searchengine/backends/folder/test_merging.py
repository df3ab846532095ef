"""Merges that are built without the write lock: what others do meanwhile, where they are killed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from scenarios import answers_as_brute_force, document, stored, strays

from searchengine import SearchEngine
from searchengine.backends.folder import merging
from searchengine.backends.folder import store as store_module
from searchengine.backends.folder.folders import Owner
from searchengine.backends.folder.merging import Merging
from searchengine.backends.folder.store import Changes, Kind, Store, Work
from searchengine.errors import CollectionBusy
from searchengine.indexer.segment import SegmentConfig

CONFIG = SegmentConfig(prefix=8)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every merge counts as a large one."""
    monkeypatch.setattr(merging, "IN_ONE", 0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", WordLengths(), CONFIG) as engine:
        for first in (0, 5, 10):
            engine.add([document(i) for i in range(first, first + 5)])
        yield engine


def during(
    monkeypatch: pytest.MonkeyPatch, moment: str, act: Callable[[], object], owner: type = Merging
) -> None:
    """Call `act` once before a method, or after it."""
    when, step = moment.split()
    original, done = getattr(owner, step), list[bool]()

    def stepped(self: Any, *arguments: Any) -> Any:
        first = not done
        done.append(True)
        if first and when == "before":
            act()
        result = original(self, *arguments)
        if first and when == "after":
            act()
        return result

    monkeypatch.setattr(owner, step, stepped)


def works(path: Path) -> list[Work]:
    with Store(path / "documents.db", readers=1) as store:
        return store.works()


def check(path: Path, keys: set[str]) -> None:
    """The collection holds these documents, answers by them, and has nothing left over."""
    with SearchEngine.open(path, WordLengths()) as engine:
        held = stored(path)
        assert set(held) == keys
        engine.verify()
        answers_as_brute_force(engine, held)
    assert works(path) == []
    assert strays(path) == []


KEYS = {f"d{i}" for i in range(15)}


def test_a_large_merge_keeps_documents_and_order(engine: SearchEngine) -> None:
    engine.delete(["d3", "d11"])
    engine.optimize()
    assert engine.stats().segments == 1 and engine.stats().tombstones == 0
    with engine.collection.reading() as snapshot:
        assert snapshot.store.keys_of(snapshot.documents_of(np.arange(15, 28))) == [
            f"d{i}" for i in range(15) if i not in (3, 11)
        ]
    check(engine.collection.path, KEYS - {"d3", "d11"})


MOMENTS = ["before _claim", "before _built", "after _built"]
"""When others act: what is to be merged is chosen, claimed, and built."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_others_change_what_is_being_merged(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = engine.collection.path

    def act() -> None:
        with SearchEngine.open(path, WordLengths()) as other:
            answers_as_brute_force(other, stored(path))
            other.delete(["d0", "d7"])
            other.add([document(20), document(1, version=1)])
            other.update({"d2": {"seen": True}})
            answers_as_brute_force(other, stored(path))
            other.verify()

    with monkeypatch.context() as patch:
        during(patch, moment, act)
        engine.optimize()
    engine.refresh()
    assert engine.stats().segments == (1 if moment == "before _claim" else 2)
    engine.add([document(21)])
    check(path, (KEYS - {"d0", "d7"}) | {"d20", "d21"})


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("replace", ["optimize", "tune"])
def test_a_merge_whose_segments_were_replaced_is_dropped(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, moment: str, replace: str
) -> None:
    path = engine.collection.path

    def act() -> None:
        with (
            SearchEngine.open(path, WordLengths()) as other,
            other.collection.open_store() as store,
            other.collection.writing(store) as writer,
        ):
            if replace == "optimize":
                writer.merge(store.segments()[:2])
                return
            segments = other.collection.segments
            measured = {row: (segment, None) for row, segment in segments.items()}
            writer.rebuild(measured, SegmentConfig(prefix=12), {"goal": {"recall": 0.9}})

    with monkeypatch.context() as patch:
        during(patch, moment, act)
        engine.optimize()
    assert engine.stats().segments == 1
    check(path, KEYS)


def test_a_segment_that_is_gone_before_it_is_opened_drops_the_merge(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment of another engine, which this one does not show and so has not open."""
    path = engine.collection.path
    engine.optimize()
    with SearchEngine.open(path, WordLengths()) as other:
        other.add([document(15)])

        def act() -> None:
            with (
                other.collection.open_store() as store,
                other.collection.writing(store) as writer,
            ):
                writer.merge(store.segments())

        with monkeypatch.context() as patch:
            during(patch, "before _built", act)
            engine.optimize()
    assert engine.stats().segments == 1
    check(path, KEYS | {"d15"})


def test_segments_of_a_living_merge_are_left_alone(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others merge what is not taken, and an optimize waits."""
    path = engine.collection.path
    merged: list[int] = []

    def act() -> None:
        with SearchEngine.open(path, WordLengths()) as other:
            for i in range(20, 28):
                other.add([document(i)])
            merged.append(other.stats().segments)

    with monkeypatch.context() as patch:
        during(patch, "before _built", act)
        engine.optimize()
    assert merged == [3 + 2]  # three taken ones, and eight added ones merged by fours
    check(path, KEYS | {f"d{i}" for i in range(20, 28)})


def test_an_optimize_waits_for_another_process(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = engine.collection.path
    monkeypatch.setattr(
        store_module, "this_process", lambda: {"by": "elsewhere:1", "started": "then"}
    )
    owner = Owner.new(path)
    with engine.collection.open_store() as store, store.transaction():
        rows = [[r.id, r.base, r.rows, r.manifest_sha256] for r in store.segments()]
        Changes(store).start_work(Kind.MERGE, owner.name, {"inputs": rows[:2]})
    monkeypatch.undo()
    monkeypatch.setattr(merging, "IN_ONE", 0)
    with pytest.raises(CollectionBusy, match="being merged by another process"):
        engine.optimize()
    assert SearchEngine.repair(path).damage == () and len(works(path)) == 1
    owner.release()
    engine.optimize()
    assert engine.stats().segments == 1
    check(path, KEYS)


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
