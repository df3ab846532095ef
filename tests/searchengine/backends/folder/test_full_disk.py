"""Commands on a disk that fills: tests/full_disk.py."""

import errno
import os
import sqlite3
from pathlib import Path

import full_disk
import numpy as np
import pytest
from conftest import use_small_grid
from full_disk import CASES
from small_disk import Case, campaign, missing

from searchengine import SearchEngine
from searchengine.backends.folder.documents import schema
from searchengine.backends.folder.documents.store import Store
from searchengine.corpus import language_traits
from searchengine.errors import CollectionError, CorpusError
from searchengine.indexer.faiss_calls import faiss, write_index

small_disk = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def prepare(folder: Path) -> None:
    """A collection of two segments that needs no encoder."""
    rows = np.random.default_rng(0).normal(size=(300, 256)).astype(np.float32)
    documents = [{"_id": str(i), "text": f"document {i}"} for i in range(300)]
    with SearchEngine.create(folder / "c", None, dim=256) as engine:
        engine.add(documents[:200], rows[:200])
        engine.add(documents[200:], rows[200:])


@small_disk
def test_a_full_disk_ends_commands_by_one_sentence() -> None:
    cases = {name: Case([name, "c", "out"], ["c"], [300]) for name in ("export", "backup")}
    cases["optimize"] = Case(["optimize", "c"], ["c"], [300])
    found = campaign(cases, prepare, points=3)
    for name, each in found.items():
        assert each["problems"] == [], name
        assert each["refused"] >= 2, name


@small_disk
@pytest.mark.long
@pytest.mark.parametrize("name", list(CASES))
def test_every_command_on_a_disk_that_fills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_grid(monkeypatch)
    found = campaign({name: CASES[name]}, full_disk.prepare, points=20)[name]
    assert found["problems"] == []
    assert found["refused"] > 0


def test_faiss_passes_over_no_error_of_a_small_file() -> None:
    """It writes the last 4 KB when it closes the file, and ignores that they found no room."""
    index = faiss.IndexFlatIP(8)
    index.add(np.ones((3, 8), np.float32))
    with pytest.raises(OSError, match="No space left"):
        write_index(index, Path("/dev/full"))


def test_no_room_to_identify_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("py3langid.langid.LanguageIdentifier.from_model_file", full)
    language_traits._identifier.cache_clear()
    with pytest.raises(CorpusError, match="No space left on device; make room for 65 MB"):
        language_traits.traits(["whales sleep with one half of their brain at a time " * 5])


def test_a_database_that_finds_no_room_for_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite may have rolled back by then: that there is nothing to roll back is not the error."""

    def full(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(schema, "catch_up", full)
    with pytest.raises(CollectionError, match="database or disk is full"):
        Store(tmp_path / "documents.db", create=True)
