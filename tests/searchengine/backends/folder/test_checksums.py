"""Checksums of large files are remembered between openings, while the files stay the same."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder import folders
from searchengine.errors import CollectionError


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The names of the files that are read to compute a checksum; all files count as large."""
    names: list[str] = []
    digest = hashlib.file_digest

    def counted(file, algorithm):  # type: ignore[no-untyped-def]
        names.append(Path(file.name).name)
        return digest(file, algorithm)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "_REMEMBERED", 0)
    monkeypatch.setattr(folders, "_SETTLED", -(10**12))
    monkeypatch.setattr(hashlib, "file_digest", counted)
    yield names


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    with SearchEngine.create(tmp_path / "c.index", WordLengths()) as engine:
        engine.add({"_id": str(i), "text": "word " * (i + 1)} for i in range(5))
    return tmp_path / "c.index"


def opened(path: Path) -> None:
    SearchEngine.open(path, WordLengths()).close()


def test_an_altered_file_is_noticed_whatever_its_times_say(
    collection: Path, hashed: list[str]
) -> None:
    opened(collection)
    (coarse,) = collection.glob("segments/*/coarse.faiss")
    before = coarse.stat()
    time.sleep(0.02)  # a tick of the file system's clock
    damaged = bytearray(coarse.read_bytes())
    damaged[-1] ^= 1
    coarse.write_bytes(damaged)
    os.utime(coarse, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CollectionError, match=r"coarse\.faiss does not match its checksum"):
        opened(collection)


def test_verify_reads_what_is_remembered(collection: Path, hashed: list[str]) -> None:
    opened(collection)
    hashed.clear()
    with SearchEngine.open(collection, WordLengths()) as engine:
        engine.verify()
    assert {"coarse.faiss", "words.safetensors"} <= {*hashed}
