"""What the state of a folder compares: which files have changed, and which are settled."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_documents import EXACT, Words
from test_mirror import write

from searchengine import SearchEngine
from searchengine.corpus.files import Unread, read_corpus
from searchengine.errors import CorpusError
from searchengine.ingest import folder_sync
from searchengine.ingest.folder_sync import FolderSync, MirrorOptions


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    write(folder, {"a.txt": "a", "one/b.txt": "bb a"})
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c.index", Words(), EXACT) as engine:
        yield engine


def state_of(engine: SearchEngine, notes: Path) -> FolderSync:
    return FolderSync(engine.folder, engine._reader, notes, MirrorOptions())


def test_a_file_with_another_content_of_the_same_size_and_time(
    engine: SearchEngine, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_sync, "RECENT", 0)
    state = state_of(engine, notes)
    state.look(Unread())
    state.settle()
    before = (notes / "a.txt").stat()
    (notes / "a.txt").write_text("b")
    os.utime(notes / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state.look(Unread())
    assert state.changed == {"a.txt"}


def test_what_a_file_loses_while_it_is_written_stays_until_it_is_settled(
    engine: SearchEngine, notes: Path
) -> None:
    engine.mirror(notes)
    (notes / "a.txt").write_text("")  # an editor has emptied it, and is about to write
    state = state_of(engine, notes)
    state.look(Unread())
    assert state.run(Unread(), None).removed == 0
    assert "a.txt" in engine
    state.unsettled = set()
    assert state.run(Unread(), None).removed == 1


def test_a_folder_that_may_not_be_read(
    engine: SearchEngine, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are named, not removed: they may still be there."""
    write(notes, {"two/c.txt": "ccc"})
    engine.mirror(notes)
    before = set(engine.keys())
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if Path(path) == notes / "two":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    unread = Unread()
    assert {d.key for d in read_corpus(notes, unread=unread)} == before - {"two/c.txt"}
    named = f"{notes}/two: this user may not read it; change its owner or its mode"
    assert unread.failed.first == [named]
    for fails in (lambda: list(read_corpus(notes)), lambda: engine.mirror(notes)):
        with pytest.raises(CorpusError, match=re.escape(named)):
            fails()
    assert set(engine.keys()) == before
