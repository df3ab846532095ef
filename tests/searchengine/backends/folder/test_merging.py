"""Merges that are built without the write lock: what others do meanwhile, where they are killed."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from concurrent_writers import killed_after, writers
from conftest import WordLengths
from faults import in_child
from scenarios import answers_as_brute_force, document, stored, strays

from searchengine import SearchEngine
from searchengine.backends.folder import merging
from searchengine.backends.folder import store as store_module
from searchengine.backends.folder.folders import Owner
from searchengine.backends.folder.merging import Merging
from searchengine.backends.folder.store import Changes, Kind, Store, Work
from searchengine.errors import CollectionBusy, CollectionError
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


def test_a_folder_that_is_replaced_after_the_build_is_named(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = engine.collection.path
    engine.backup(tmp_path / "copy")

    def act() -> None:
        path.rename(tmp_path / "former")
        (tmp_path / "copy").rename(path)

    during(monkeypatch, "after _built", act)
    with pytest.raises(CollectionError, match="replaced"):
        engine.optimize()


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


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_backup_during_a_merge_holds_no_pending_work(
    engine: SearchEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    moment: str,
) -> None:
    def act() -> None:
        with SearchEngine.open(engine.collection.path, WordLengths()) as other:
            other.backup(tmp_path / "copy")
            other.export(tmp_path / "export")

    during(monkeypatch, moment, act)
    engine.optimize()
    check(tmp_path / "copy", KEYS)
    assert len(np.load(tmp_path / "export" / "vectors.npy")) == 15


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_merge_that_fails_leaves_nothing(
    engine: SearchEngine,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    error: BaseException,
) -> None:
    def act() -> None:
        raise error

    with monkeypatch.context() as patch:
        during(patch, moment, act)
        with pytest.raises(type(error)):
            engine.optimize()
    engine.add([document(20)])
    check(engine.collection.path, KEYS | {"d20"})


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_next_writer_goes_on_for_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The child is killed; the next writer drops the merge, and may merge the same segments."""
    path = tmp_path / "c"
    abandoned(path, monkeypatch, moment)
    kinds = [work.kind for work in works(path)]
    assert kinds == ([] if moment == "before _claim" else [Kind.MERGE])
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.verify()
        engine.delete(["d1"])
        assert works(path) == [] and strays(path) == []
        engine.optimize()
        assert engine.stats().segments == 1
    check(path, KEYS - {"d1"})


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
    owner.release()
    engine.optimize()
    assert engine.stats().segments == 1
    check(path, KEYS)


def test_a_folder_that_is_replaced_during_a_merge_is_not_touched(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = engine.collection.path

    def act() -> None:
        path.rename(tmp_path / "old")
        with SearchEngine.create(path, WordLengths(), CONFIG) as other:
            other.add([document(30)])

    with monkeypatch.context() as patch:
        during(patch, "before _built", act)
        with pytest.raises((CollectionError, OSError)):
            engine.optimize()
    check(path, {"d30"})
    with SearchEngine.open(tmp_path / "old", WordLengths()) as old:
        old.delete(["d1"])
    check(tmp_path / "old", KEYS - {"d1"})


def test_folders_that_no_row_names_are_removed(engine: SearchEngine) -> None:
    path = engine.collection.path
    owner = Owner.new(path)
    (owner.folder / "ids.npy").write_bytes(b"x")
    engine.delete(["d0"])
    assert owner.folder.exists()  # its process is alive
    owner.release()
    engine.delete(["d1"])
    assert list((path / "pending").iterdir()) == []
    check(path, KEYS - {"d0", "d1"})


def abandoned(path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """A collection of three segments whose merge was killed before a step."""
    with SearchEngine.create(path, WordLengths(), CONFIG) as engine:
        for first in (0, 5, 10):
            engine.add([document(i) for i in range(first, first + 5)])

    def merge(_: Any) -> None:
        with SearchEngine.open(path, WordLengths()) as engine:
            engine.optimize()

    with monkeypatch.context() as patch:
        during(patch, moment, lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert in_child(merge).signal == signal.SIGKILL


def test_info_shows_pending_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned(tmp_path / "c", monkeypatch, "after _built")
    with SearchEngine.open(tmp_path / "c", WordLengths()) as engine:
        (line,) = engine.stats().pending
    assert re.fullmatch(r"merge of 3 segments; started 20.+ by .+:\d+", line)


def test_repair_drops_pending_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    abandoned(path, monkeypatch, "after _built")
    file = path / "segments" / "000002" / "coarse.faiss"
    content = bytearray(file.read_bytes())
    content[39] ^= 0xFF
    file.write_bytes(content)
    repaired = SearchEngine.repair(path, WordLengths())
    assert repaired.whole and not repaired.lost
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.delete(["d1"])
    check(path, KEYS - {"d1"})


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.long)])
def test_two_writers_beside_a_merge_that_is_killed(tmp_path: Path, rounds: int) -> None:
    """At random moments; after each, a reader gets what brute force gives."""
    path, logs, random = tmp_path / "c", tmp_path / "logs", Random(rounds)
    logs.mkdir()
    SearchEngine.create(path, WordLengths(), CONFIG).close()

    def optimize() -> None:
        with SearchEngine.open(path, WordLengths(), wait=60) as engine:
            engine.optimize()

    kills = 0
    with writers(path, logs) as acknowledged:
        for _ in range(rounds):
            kills += killed_after(0.3 * random.random(), optimize)
            with SearchEngine.open(path, WordLengths()) as reader:
                reader.verify()
                held = {each.key: each for each in reader.documents()}
                answers_as_brute_force(reader, held)
    assert kills
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.add([document(0)])
        engine.delete(["d0"])
    check(path, acknowledged())


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
