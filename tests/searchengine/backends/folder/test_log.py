"""SQLite's log: it stays small beside readers that refresh, and is folded under the write lock."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from concurrent_writers import child
from conftest import WordLengths, during
from scenarios import document

from searchengine import SearchEngine
from searchengine.backends.folder import database
from searchengine.backends.folder.database import FOLDED


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection whose log is overgrown soon, in processes forked from now on."""
    monkeypatch.setattr(database, "OVERGROWN", 2 * FOLDED)
    path = tmp_path / "words.index"
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([document(number) for number in range(8)])
    return path


def log(path: Path) -> int:
    return (path / "documents.db-wal").stat().st_size


@contextmanager
def readers(path: Path, count: int, pause: float) -> Iterator[None]:
    """Processes that refresh, and search what they then show."""

    def read() -> None:
        with SearchEngine.open(path, WordLengths()) as engine:
            while True:
                engine.refresh()
                assert engine.search("one dog")
                time.sleep(pause)

    running = [child(read) for _ in range(count)]
    time.sleep(0.2)
    try:
        yield
        for number in running:
            assert os.waitpid(number, os.WNOHANG) == (0, 0), "a reader has failed"
    finally:
        for number in running:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


def grow(engine: SearchEngine, path: Path, units: int) -> list[int]:
    """Write `units` times FOLDED; the size of the log after each change."""
    sizes = []
    for i in range(3 * units):
        engine.add([{"_id": "big", "text": f"a{i % 7}", "filler": f"{i % 7}" * (FOLDED // 3)}])
        sizes.append(log(path))
    return sizes


def test_the_log_is_bounded_beside_readers_that_refresh(path: Path) -> None:
    with readers(path, 3, pause=0.05), SearchEngine.open(path, WordLengths()) as engine:
        sizes = grow(engine, path, units=5)
        assert max(sizes) < 5 * FOLDED
        assert min(sizes[sizes.index(max(sizes)) :]) < 2 * FOLDED, "it never fell"
        engine.verify()


def test_nobody_writes_while_the_log_is_folded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite before 3.51.3 can lose commits if its log begins again while it is folded."""

    def check() -> None:
        with (
            closing(sqlite3.connect(path / "documents.db", timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")

    folded = during(monkeypatch, database.Database, "_fold", check)
    with SearchEngine.open(path, WordLengths()) as engine:
        grow(engine, path, units=4)
        engine.optimize()
        with engine.collection.open_store() as store:
            assert store.read("PRAGMA wal_autocheckpoint") == [(0,)]
    assert folded()
