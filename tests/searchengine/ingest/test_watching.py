"""A watched folder: each change is found, also those made while nobody watched."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from command_line import COMMAND
from conftest import WordLengths, full_disk
from cut_documents import EXACT, Words
from test_mirror import check, write
from tiny_model import write_model2vec

from searchengine import SearchEngine
from searchengine.errors import CollectionError, EncoderMismatch, EndpointError
from searchengine.ingest import folder_sync
from searchengine.ingest.folder_sync import MirrorOptions, Pass

DEADLINE = 60  # seconds; nothing here takes more than one, on a machine with nothing else to do


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    write(folder, {"a.txt": "a", "one/b.txt": "bb a"})
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c.index", Words(), EXACT, wait=DEADLINE) as engine:
        yield engine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_sync, "LOOK", 0.05)
    monkeypatch.setattr(folder_sync, "RECENT", 0.1)


def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def watching(
    engine: SearchEngine, folder: Path, options: MirrorOptions | None = None
) -> Iterator[list[Pass]]:
    """Watch in a thread; yields the list of passes."""
    passes: list[Pass] = []
    stop = Event()

    def run() -> None:
        for each in engine.watch(folder, options, stop=stop):
            passes.append(each)

    thread = Thread(target=run)
    thread.start()
    try:
        until(lambda: passes)
        yield passes
    finally:
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def keys(engine: SearchEngine) -> set[str]:
    return set(engine.keys())


def test_every_change_is_found(engine: SearchEngine, notes: Path) -> None:
    with watching(engine, notes) as passes:
        assert passes[0].changes == {"added": 2}
        write(notes, {"new/c.txt": "ccc"})  # in a new folder
        until(lambda: "new/c.txt" in keys(engine))
        write(notes, {"new/c.txt": "ccc a", "new/deep/d.txt": "dddd"})
        until(lambda: "new/deep/d.txt" in keys(engine))
        until(lambda: engine["new/c.txt"].text == "ccc a")
        (notes / "new").rename(notes / "old")
        until(lambda: keys(engine) == {"a.txt", "one/b.txt", "old/c.txt", "old/deep/d.txt"})
        (notes / "a.txt").unlink()
        write(notes, {"a.txt/x.txt": "a"})  # a folder instead of the file
        until(lambda: "a.txt/x.txt" in keys(engine) and "a.txt" not in keys(engine))
        shutil.rmtree(notes / "one")
        until(lambda: "one/b.txt" not in keys(engine))
    check(engine, notes)


def test_a_folder_that_is_gone_is_waited_for(engine: SearchEngine, notes: Path) -> None:
    with watching(engine, notes) as passes:
        notes.rename(notes.with_name("away"))
        until(lambda: "no such file or folder" in passes[-1].problem)
        assert len(engine) == 2
        notes.with_name("away").rename(notes)
        until(lambda: (passes[-1].problem, passes[-1].changes) == ("", {}))  # as it was
        shutil.rmtree(notes)
        write(notes, {"a.txt": "a", "z.txt": "dddd"})  # another folder in its place
        until(lambda: keys(engine) == {"a.txt", "z.txt"})
        for path in notes.iterdir():
            path.unlink()
        until(lambda: "nothing was removed" in passes[-1].problem)
        assert len(engine)  # one of them may have gone before the other
        write(notes, {"y.txt": "a"})
        until(lambda: keys(engine) == {"y.txt"})
        until(lambda: passes[-1].problem == "")
    check(engine, notes)


@pytest.mark.long
def test_a_broken_file_is_named_once(engine: SearchEngine, notes: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[")
    with watching(engine, notes) as passes:
        (tmp_path / "x.json").rename(notes / "x.json")
        until(lambda: len(passes) > 1)
        assert passes[1].changes == {}
        assert passes[1].unread.failed.first == [
            f"{notes}/x.json: not JSON (Expecting value: line 1 column 2 (char 1))"
        ]
        os.utime(notes / "x.json")  # it is read again
        write(notes, {"c.txt": "ccc"})
        until(lambda: passes[-1].changes == {"added": 1})
    assert [bool(each.changes) for each in passes] == [True, False, True]


class Away(Words):
    """Cannot be reached the first time."""

    def encode(self, texts: Any, **options: Any) -> Any:
        vectors = super().encode(texts, **options)
        if len(self.calls) == 1:
            raise EndpointError("http://e is away")
        return vectors


def test_what_fails_for_a_moment_is_waited_for(notes: Path, tmp_path: Path) -> None:
    """An encoder that is away, and then a full disk."""
    stop = Event()
    with SearchEngine.create(tmp_path / "c.index", Away(), EXACT) as engine:
        passes = engine.watch(notes, stop=stop)
        assert next(passes).problem == "http://e is away"
        with full_disk():
            assert "File too large" in next(passes).problem
        assert next(passes).changes == {"added": 2}
        stop.set()
        assert list(passes) == []
        check(engine, notes)


def test_a_collection_that_is_replaced_gets_the_files_unless_waiting_cannot_help(
    engine: SearchEngine, notes: Path, tmp_path: Path
) -> None:
    passes = engine.watch(notes)
    assert next(passes).changes == {"added": 2}
    path = engine.collection.path
    path.rename(tmp_path / "first")
    SearchEngine.create(path, Words(), EXACT).close()
    assert next(passes).changes == {"added": 2}
    path.rename(tmp_path / "second")
    other = WordLengths(fingerprint="another")
    SearchEngine.create(path, other, EXACT).close()
    with pytest.raises(EncoderMismatch, match="another"):
        next(passes)
    passes = engine.watch(notes)
    engine.close()
    with pytest.raises(CollectionError, match="is closed"):
        next(passes)


# ------------------------------------------------------------------------------------- as a command


def test_a_killed_command_goes_on(tmp_path: Path, notes: Path) -> None:
    model = write_model2vec(tmp_path / "model")
    index = tmp_path / "c.index"
    arguments = ["index", notes, index, "--watch", "--encoder", model]
    command = [COMMAND, *map(str, arguments)]

    @contextmanager
    def started(first: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            try:
                assert any(first in line for line in lines)
                yield process
            finally:
                process.kill()  # else leaving the block waits for it

    write(notes, {"x.png": ""})
    skipped = "1 entry of other kinds skipped: 1 .png\n"
    with started("2 added in") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == skipped
        for name in ("c.txt", "d.txt"):
            write(notes, {name: name})
            assert "1 added" in process.stderr.readline()  # skipped files are named once
        process.kill()
    shutil.rmtree(notes / "one")
    with started("1 removed") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == skipped
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=DEADLINE)
        assert rest.splitlines() == [
            f"Interrupted; {index} has 3 documents, the same command continues from there"
        ]
        assert process.returncode == 130
    with SearchEngine.open(index) as engine:
        assert keys(engine) == {"a.txt", "c.txt", "d.txt"}
        engine.verify()
