"""Verify, info, backup, export, and what older versions have written."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths, during

from searchengine import SearchEngine
from searchengine.backends.filters.parser import moment
from searchengine.errors import CollectionError

DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "threes", "title": "", "text": "the cat sat", "year": 2016, "tags": ["a", "ü"]},
    {"_id": "mixed", "title": "", "text": "the cat slept", "year": 2014},
    {"_id": "fives", "title": "whale", "text": "sleep", "year": 2020},
]


_NO_OBJECT = "1 documents with metadata that are no JSON object"
_SET = "INSERT OR REPLACE INTO settings VALUES"
_WORK, _BY = "INSERT INTO pending VALUES (7,", '{"by": "me", "started": "today"'
_NO_WORK = "pending work must be a reindex"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.index"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(DOCUMENTS[:2])
        engine.add(DOCUMENTS[2:])
        engine.add([{"_id": "gone", "text": "a"}])
        engine.delete(["gone"])
        yield engine


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("DELETE FROM passages WHERE id = 1", "documents without a passage"),
        ("DELETE FROM documents WHERE key = 'mixed'", "passages without a document"),
        ("INSERT INTO tombstones VALUES (1)", "passages that are deleted"),
        ("INSERT INTO passages VALUES (99, 0, 0, 1)", "passages without a row"),
        ("UPDATE passages SET end = 99 WHERE id = 1", "other passages in passages.npy"),
        (
            "UPDATE segments SET rows = rows + 1, base = base + 100 WHERE id = 1",
            "manifest.json is not the committed one",
        ),
        ("UPDATE documents SET text = 'the cat slipt' WHERE key = 'mixed'", "'mixed' differs from"),
        ("UPDATE documents SET digest = x'00' WHERE key = 'mixed'", "'mixed' differs from what"),
        ("UPDATE documents SET metadata = '{\"a\": ' WHERE key = 'mixed'", _NO_OBJECT),
        ("UPDATE documents SET metadata = '[1]' WHERE key = 'mixed'", _NO_OBJECT),
        (f"{_SET} ('mode', '\"nearly\"')", "in its settings: mode: makes no sense: 'nearly'"),
        (f"{_SET} ('tokenizer', '\"x\"')", "in its settings: tokenizer: makes no"),
        (f"{_SET} ('tokenizer', '7')", "in its settings: tokenizer: makes no"),
        (f"{_SET} ('weight', '\"much\"')", "in its settings: weight: makes no sense"),
        (f"{_SET} ('weight', 'NaN')", "in its settings: weight: makes no sense"),
        (f"{_SET} ('passages', '{{\"tokens\": -1}}')", "in its settings: passages: makes no"),
        (f"{_SET} ('query_map', '{{}}')", "in its settings: query_map: makes no"),
        (f"{_SET} ('synonyms', '[]')", "in its settings: synonyms: makes no sense"),
        ("DELETE FROM settings WHERE name = 'tokenizer'", "in its settings: tokenizer: is missing"),
        (f"{_WORK} 'reindex', 'f', '[]')", _NO_WORK),
        (f"{_WORK} 'reindex', 'f', '{_BY}, \"settings\": {{}}}}')", _NO_WORK),
        ("UPDATE ids SET next = 'x' WHERE kind = 'passages'", "next ids that are used already"),
        ("DELETE FROM segments", "it has passages and no segments"),
        ("DELETE FROM segments WHERE id = 1", "passages without a row"),
        ("DELETE FROM field_values", "3 documents with other values in the index of metadata"),
    ],
)
def test_verify_finds_what_does_not_agree(
    engine: SearchEngine, path: Path, damage: str, message: str
) -> None:
    if "metadata" not in damage:  # triggers would refuse them
        engine.index_fields("year")
    engine.verify()
    engine.close()
    with sqlite3.connect(path / "documents.db") as db:
        db.create_function("moment", 1, moment)
        db.executescript(f"PRAGMA foreign_keys = OFF; {damage}")
    db.close()
    with (
        pytest.raises(CollectionError, match=message),
        SearchEngine.open(path, WordLengths()) as again,
    ):
        again.stats()
        again.verify()


def test_a_backup_copies_nothing_damaged_and_nothing_into_itself(
    engine: SearchEngine, path: Path, tmp_path: Path
) -> None:
    for inside in (path / "copy", path / "segments" / "000099"):
        with pytest.raises(CollectionError, match="is inside the collection"):
            engine.backup(inside)
    with pytest.raises(CollectionError, match="is inside the collection"):
        engine.export(path / "export")
    vectors = next((path / "segments").glob("*/vectors.faiss"))
    damaged = bytearray(vectors.read_bytes())
    damaged[-1] ^= 1
    vectors.write_bytes(damaged)
    with pytest.raises(CollectionError, match="does not match its checksum"):
        engine.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_text_may_hold_nul(engine: SearchEngine) -> None:
    engine.add([{"_id": "nul", "text": "ab\0cd ef"}])
    engine.verify()


def test_changes_to_a_frozen_database_are_reported(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.close()
    with monkeypatch.context() as read_only:
        read_only.setattr("os.access", lambda *_, **__: False)
        reader = SearchEngine.open(path, WordLengths())
        assert len(reader.search("one dog")) == 3
    with SearchEngine.open(path, WordLengths()) as owner:
        owner.delete(["threes"])
    with pytest.raises(CollectionError, match="was changed since it was opened"):
        reader.search("one dog")
    reader.close()


def test_a_backup_is_of_one_commit(
    engine: SearchEngine, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SearchEngine.open(path, WordLengths()) as other:

        def write() -> None:  # replaces all segments, and clears the old away
            other.optimize()
            other.update({"threes": {"year": 1}})

        during(monkeypatch, os, "link", write, 2)
        engine.backup(tmp_path / "copy")
        with SearchEngine.open(tmp_path / "copy", WordLengths()) as restored:
            restored.verify()
            assert list(restored.documents()) == list(other.documents())
            assert len(restored.search("one dog")) == 3


@pytest.mark.parametrize("linked", [True, False])
def test_a_backup_links_segments_or_copies_them(
    engine: SearchEngine, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    engine.backup(tmp_path / "copy")
    for file in (path / "segments").rglob("*.faiss"):
        assert (tmp_path / "copy" / file.relative_to(path)).samefile(file) is linked
    with SearchEngine.open(tmp_path / "copy", WordLengths()) as restored:
        restored.verify()
        restored.optimize()
    engine.verify()
