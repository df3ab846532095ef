"""One collection, several processes: forks, folders that are replaced, locks that must not go."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clean_process import clean
from conftest import REPOSITORY, WordLengths, during
from faults import in_child

from searchengine import Document, SearchEngine
from searchengine.backends.folder.database import Connection
from searchengine.backends.folder.store import Store
from searchengine.errors import (
    BackendUnavailable,
    CollectionBusy,
    CollectionError,
    DuplicateKey,
    EncoderMismatch,
)
from searchengine.indexer.native.library import faiss
from searchengine.indexer.tuning.tune import Goal

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
FLAT = {"prefix": 4}


def documents(numbers: range, **metadata: Any) -> list[dict[str, Any]]:
    return [
        {"_id": f"k{i}", "text": "a" * (i % 16 + 1) + " bb" * (i % 3), "n": i, **metadata}
        for i in numbers
    ]


def keys(engine: SearchEngine, where: str | None = None) -> set[str]:
    return {hit.key for hit in engine.search("a bb", 10_000, where=where)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.index"
    with SearchEngine.create(path, WordLengths(), FLAT) as engine:
        engine.add(documents(range(40)))
    return path


def in_another_process(work: Callable[..., None], *arguments: Any) -> None:
    """Run in a process started afresh, and expect it to succeed."""
    process = clean.Process(target=work, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode == 0


def _add(path: Path, start: int, stop: int) -> None:
    with SearchEngine.open(path, WordLengths(), wait=60) as engine:
        engine.add(documents(range(start, stop)))


# --- only SQLite opens documents.db ---------------------------------------------------------------

OPENS = """
import sys
from pathlib import Path
opened = []
def note(event, arguments):
    if event == "open" and "documents.db" in str(arguments[0]):
        opened.append(str(arguments[0]))
sys.addaudithook(note)
sys.path.insert(0, "tests")
from conftest import REPOSITORY, WordLengths
from searchengine import SearchEngine
from searchengine.cli import cli
path = Path(sys.argv[1])
with SearchEngine.open(path, WordLengths()) as engine:
    engine.encode(["warm"])
    engine.add([{"_id": "x", "text": "x"}])
    engine.update({"x": {"n": 1}})
    engine.search("x", mode="hybrid", where="n = 1")
    engine.delete(["x"])
    engine.index_fields("n")
    engine.optimize()
    engine.refresh()
    engine.stats()
    engine.verify()
    engine.backup(path.with_name("copy"))
    engine.export(path.with_name("export"))
for command in ("info", "verify"):
    cli.main([command, str(path)], standalone_mode=False)
assert not opened, opened
open(path / "documents.db").close()
assert opened, "the hook sees nothing"
"""


def test_nothing_but_sqlite_opens_the_database(path: Path) -> None:
    """Closing any descriptor of a file drops every lock that the process holds on it (POSIX)."""
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(path)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_threads_write_in_turn_without_a_wait(path: Path) -> None:
    """Those of other processes find the collection busy; those of this one queue."""

    def write(queue: bool) -> None:
        with Store(path / "documents.db") as store, store.transaction(queue=queue):
            store.execute("DELETE FROM documents WHERE id < 0")

    with Store(path / "documents.db") as store, ThreadPoolExecutor() as pool:
        with store.transaction():
            with pytest.raises(CollectionBusy, match="by another thread"):
                pool.submit(write, False).result(60)
            queued = [pool.submit(write, True) for _ in range(3)]
            with pytest.raises(TimeoutError):
                queued[0].result(0.2)
        for each in queued:
            each.result(60)


# --- forks ----------------------------------------------------------------------------------------


@FORKS
def test_a_forked_child_cannot_use_what_its_parent_opened(path: Path) -> None:
    with SearchEngine.open(path, WordLengths()) as engine:
        uses: list[Callable[[], Any]] = [
            lambda: engine.search("a bee"),
            lambda: asyncio.run(engine.asearch("a bee")),
            lambda: engine.add(documents(range(40, 50))),
            lambda: engine.delete(["k1"]),
            lambda: engine.encode(["a bee"]),
            engine.stats,
            engine.refresh,
        ]

        def child(say: Callable[[Any], None]) -> None:
            for use in uses:
                with pytest.raises(CollectionError, match="was opened before this process was"):
                    use()
            engine.close()
            say("refused")

        ended = in_child(child)
        assert (ended.problem, ended.said) == (None, ["refused"])
        assert engine.stats().documents == 40


@FORKS
@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_child_that_closes_takes_no_lock_from_its_parent(path: Path, first: str) -> None:
    with SearchEngine.open(path, WordLengths()) as engine:
        if first == "child":
            ended = in_child(lambda say: engine.close())
        else:
            ended = in_child(lambda say: say(_opened_and_counted(path)))
        assert ended.problem is None
        for start in (40, 60):  # another folds the log if it can, and starts it again
            in_another_process(_add, path, start, start + 20)
        assert keys(engine, "n >= 0") == {f"k{i}" for i in range(40)}
        engine.add(documents(range(80, 90)))
        assert keys(engine, "n >= 0") == {f"k{i}" for i in range(90)}
        engine.verify()


@FORKS
def test_a_child_forked_while_its_parent_writes_is_refused(path: Path) -> None:
    """The parent's locks are counted in the child's memory, so nothing there can be trusted."""
    with SearchEngine.open(path, WordLengths()) as engine:
        with Store(path / "documents.db") as store, store.transaction():

            def child(say: Callable[[Any], None]) -> None:
                with pytest.raises(CollectionError, match="was being written when this"):
                    SearchEngine.open(path, WordLengths())
                say("refused")

            ended = in_child(child)
        assert (ended.problem, ended.said) == (None, ["refused"])
        engine.add(documents(range(40, 50)))
        engine.verify()
        # Not for ever: a child of now is fine again.
        assert in_child(lambda say: say(_opened_and_counted(path))).said == [50]


def _count(engine: SearchEngine) -> int:
    return len(keys(engine, "n >= 0"))


def _opened_and_counted(path: Path) -> int:
    with SearchEngine.open(path, WordLengths()) as engine:
        return _count(engine)


@FORKS
def test_native_calls_end_in_a_child(tmp_path: Path) -> None:
    """OpenMP's threads do not come along: a parallel call in the child would wait for them."""
    with SearchEngine.create(tmp_path / "x.index", WordLengths(), FLAT) as engine:
        engine.add(documents(range(3000)))
        vectors = np.random.default_rng(0).random((512, 16), np.float32)
        expected = [hit.key for hits in engine.search_batch(vectors, 3) for hit in hits]

        def child(say: Callable[[Any], None]) -> None:
            with SearchEngine.open(tmp_path / "x.index", WordLengths()) as own:
                hits = own.search_batch(vectors, 3)
                say([hit.key for each in hits for hit in each] == expected)
                own.add(documents(range(3000, 4500)))
                own.optimize()
                say(own.stats().documents)

        ended = in_child(child, seconds=60)
        assert (ended.problem, ended.said) == (None, [True, 4500])


# --- a folder that is replaced --------------------------------------------------------------------


def replace(path: Path, by: Path) -> None:
    """Give another folder the name of this one, as a restore does."""
    path.rename(path.with_name(f"away-{time.monotonic_ns()}"))
    shutil.copytree(by, path)


@pytest.mark.parametrize("writes", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_what_is_added_after_a_restore_is_found(path: Path, tmp_path: Path, writes: int) -> None:
    """With two writes both histories have a commit of the same number."""
    copy = tmp_path / "copy"
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.backup(copy)
        engine.add(documents(range(40, 60)))
        engine.add(documents(range(60, 70)))
        replace(path, copy)
        for i in range(writes):
            in_another_process(_add, path, 100 + i, 101 + i)
        engine.add(documents(range(200, 210)))
        expected = {f"k{i}" for i in [*range(40), *range(100, 100 + writes), *range(200, 210)]}
        assert keys(engine, "n >= 0") == expected
        engine.verify()


def test_a_commit_of_the_same_file_is_told_by_its_id(path: Path, tmp_path: Path) -> None:
    """SQLite's own restore writes an older state into the same file."""
    copy = tmp_path / "copy"
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.backup(copy)
        engine.update({"k1": {"n": 1000}})
        before = engine.stats().commit
        with SearchEngine.open(copy, WordLengths()) as other:
            other.update({"k2": {"n": 2000}})
        engine.close()
        source, target = (sqlite3.connect(p / "documents.db") for p in (copy, path))
        with SearchEngine.open(path, WordLengths()) as reader:
            source.backup(target)
            source.close()
            target.close()
            reader.refresh()
            assert reader.stats().commit == before
            assert {hit.key for hit in reader.search("a", 50, where="n >= 1000")} == {"k2"}


@pytest.mark.parametrize("change", ["add", "optimize", "tune", "interrupted"])
def test_a_writer_writes_over_nothing_of_another_collection(
    path: Path, tmp_path: Path, change: str
) -> None:
    """The collection that takes the place has segments of the same numbers."""
    other = tmp_path / "other"
    with SearchEngine.create(other, WordLengths(), FLAT) as engine:
        for start in (0, 500, 700):
            engine.add(documents(range(start, start + 300)))
        engine.optimize()
        engine.add(documents(range(1000, 1005)))
        numbers = {folder.name for folder in (other / "segments").iterdir()}
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.add(documents(range(40, 640)))
        engine.delete([f"k{i}" for i in range(5)])
        wanted = f"{max(row.id for row in engine.collection.segments) + 1:06d}"
        if wanted not in numbers:  # give the other the number that is next here
            (name,) = [folder for folder in sorted(numbers)][-1:]
            (other / "segments" / name).rename(other / "segments" / wanted)
            with closing(sqlite3.connect(other / "documents.db")) as connection:
                sql = "UPDATE segments SET id = ? WHERE id = ?"
                connection.execute(sql, (int(wanted), int(name)))
                connection.commit()
        done: list[bool] = []

        def building(what: str, rows: int, total: int) -> None:
            if not done:
                done.append(True)
                replace(path, other)
                if change == "interrupted":
                    raise KeyboardInterrupt

        changes: dict[str, Callable[[], object]] = {
            "add": lambda: engine.add(documents(range(5000, 5010)), building=building),
            "optimize": lambda: engine.optimize(progress=building),
            "tune": lambda: engine.tune(goal=Goal(k=5, recall=0.5), building=building),
            "interrupted": lambda: engine.add(documents(range(5000, 5010)), building=building),
        }
        error = KeyboardInterrupt if change == "interrupted" else CollectionError
        with pytest.raises(error):
            changes[change]()
        assert done
    with SearchEngine.open(path, WordLengths()) as again:
        again.verify()
        assert again.stats().documents == 905 - 100


def test_a_collection_that_another_process_fills_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "new.index"
    engine = SearchEngine.create(path, WordLengths(), FLAT)
    with SearchEngine.open(path, WordLengths()) as filling:
        engine.collection.remove_if_empty()  # as an index that failed does
        filling.add(documents(range(3)))
    with SearchEngine.open(path, WordLengths()) as again:
        again.collection.remove_if_empty()
        assert path.exists()
    with closing(sqlite3.connect(path / "documents.db")) as db:  # as one that is killed there
        db.execute("PRAGMA journal_mode = delete")
    with SearchEngine.open(path, WordLengths()) as again:
        again.delete(["0"])
    assert (path / "documents.db").read_bytes()[18:20] == b"\2\2"  # SQLite's log is back
    empty = SearchEngine.create(tmp_path / "empty.index", WordLengths(), FLAT)
    empty.collection.remove_if_empty()
    assert not (tmp_path / "empty.index").exists()


def test_a_replaced_folder_of_another_encoder_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with SearchEngine.create(other, WordLengths(fingerprint="another"), FLAT) as engine:
        engine.add(documents(range(3)))
    with SearchEngine.open(path, WordLengths()) as engine:
        replace(path, other)
        for change in (
            engine.refresh,
            lambda: engine.add(documents(range(50, 51))),
            lambda: engine.delete(["k1"]),
        ):
            with pytest.raises(EncoderMismatch, match="fingerprint another"):
                change()
            assert len(keys(engine)) == 40
    with SearchEngine.open(other, WordLengths(fingerprint="another")) as engine:
        assert engine.stats().documents == 3


def test_a_folder_that_is_gone(path: Path) -> None:
    with SearchEngine.open(path, WordLengths()) as engine:
        path.rename(path.with_name("elsewhere"))
        for change in (engine.refresh, lambda: engine.add(documents(range(1)))):
            with pytest.raises(CollectionError, match="is missing"):
                change()
        assert len(keys(engine, "n >= 0")) == 40
        path.with_name("elsewhere").rename(path)
        accepts, calls = engine.collection.accepts, list[object]()

        def move_away(settings: object) -> None:
            calls.append(settings)
            if len(calls) == 2:  # to read, and then to write: no other can any more
                path.rename(path.with_name("elsewhere"))

        engine.collection.accepts = move_away
        with pytest.raises(CollectionError, match="was replaced"):
            engine.add(documents(range(40, 50)))
        assert not path.exists()  # so that another collection can be moved there
        engine.collection.accepts = accepts
        path.with_name("elsewhere").rename(path)
        assert engine.add(documents(range(40, 50))).added == 10


@pytest.mark.parametrize("statement", ["PRAGMA journal_mode = wal", "COMMIT"])
def test_a_folder_that_is_replaced_between_two_statements(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """While the database is opened, and between a commit and showing it: try again."""
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.backup(tmp_path / "copy")
        real = Connection.execute

        def execute(connection: Connection, sql: str, *parameters: Any) -> Any:
            result = real(connection, sql, *parameters)
            if sql == statement and path.exists():
                path.rename(tmp_path / "former")
                if statement != "COMMIT":
                    (tmp_path / "copy").rename(path)
                    raise sqlite3.OperationalError("disk I/O error")  # there is no log any more
            return result

        monkeypatch.setattr(Connection, "execute", execute)
        with pytest.raises(BackendUnavailable, match=r"was replaced|is committed, but"):
            engine.delete(["k1"])


# --- writers --------------------------------------------------------------------------------------


def _make_and_add(path: Path, start: int, ready: Any) -> None:
    ready.wait()
    with SearchEngine.open_or_create(path, WordLengths(), FLAT, wait=60) as engine:
        engine.add(documents(range(start, start + 3)))


@pytest.mark.parametrize("is_there", [False, True], ids=["no folder", "an empty folder"])
def test_processes_that_make_a_collection_at_once(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "new.index"
    if is_there:
        path.mkdir()
    ready = clean.Barrier(3)
    processes = [
        clean.Process(target=_make_and_add, args=(path, start, ready)) for start in (0, 3, 6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 3
    with SearchEngine.open(path, WordLengths()) as engine:
        assert engine.stats().documents == 9


def test_connections_of_one_snapshot_show_one_commit(path: Path) -> None:
    """They are begun one after the other: those that a commit came between are let go of."""
    from searchengine.backends.folder import database as module

    with pytest.MonkeyPatch.context() as patch:
        during(patch, module, "_begin_reading", lambda: _add(path, 40, 50), 2)
        with Store(path / "documents.db", readers=4) as store:
            store.hold()
            counts = {store.counts()[0] for _ in range(10)}
            assert counts == {50}
            assert len(store.connections) == 3


def test_two_folders_with_a_file_of_one_name(path: Path, tmp_path: Path) -> None:

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "readme.md").write_text(f"of {name}")

    def readme(name: str, text: str = "") -> Document:
        root = tmp_path / name
        text = text or f"of {name}"
        return Document("readme.md", text, origin=name, root=str(root), file="readme.md")

    with SearchEngine.open(path, WordLengths()) as engine:
        engine.add([readme("one")])
        commit = engine.stats().commit
        assert engine.add([readme("one")]).unchanged == 1
        assert engine.stats().commit == commit
        with pytest.raises(DuplicateKey, match=r"is that of a file of .*one; .*--key-prefix NAME/"):
            engine.add([readme("two")])
        summary = engine.add([readme("two"), *documents(range(40, 41))], skip_bad=True)
        assert (summary.added, summary.bad.count) == (1, 1)
        assert engine.add([readme("one", "new words")]).changed == 1
        (tmp_path / "one").rename(tmp_path / "moved")  # the folder itself, then, not another
        assert engine.add([readme("moved", "new words")]).unchanged == 1
        with pytest.raises(DuplicateKey, match=r"is that of a file of .*moved"):
            engine.add([readme("two")])
        (tmp_path / "moved" / "readme.md").unlink()  # nothing is left that it could be mistaken for
        assert engine.add([readme("two")]).changed == 1


@pytest.mark.skipif(not faiss.get_num_gpus(), reason="faiss sees no GPU here")
def test_a_collection_on_a_gpu_finds_what_the_cpu_finds(path: Path) -> None:
    with (
        SearchEngine.open(path, WordLengths()) as cpu,
        SearchEngine.open(path, WordLengths(), device="gpu") as gpu,
    ):
        gpu.add(documents(range(40, 60)))
        cpu.refresh()
        assert keys(gpu) == keys(cpu) and len(keys(gpu)) == 60
        assert gpu.search("a bb", 5)[0].score == pytest.approx(cpu.search("a bb", 5)[0].score)
        assert in_child(lambda say: say(len(keys(gpu)))).said == [60]  # on the CPU
