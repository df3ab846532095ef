"""Checksums of large files are remembered between openings, while the files stay the same."""

import json
import os
import time
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder import folders
from searchengine.errors import CollectionError


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Path:
    """The file of the checksums that are remembered; all files count as large."""
    monkeypatch.setattr(folders, "_REMEMBERED", 0)
    monkeypatch.setattr(folders, "_SETTLED", -(10**12))
    return own_cache / "checksums.json"


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    with SearchEngine.create(tmp_path / "c.index", WordLengths()) as engine:
        engine.add({"_id": str(i), "text": "word " * (i + 1)} for i in range(5))
    return tmp_path / "c.index"


def opened(path: Path) -> None:
    SearchEngine.open(path, WordLengths()).close()


def test_an_altered_file_is_noticed_whatever_its_times_say(
    collection: Path, remembered: Path
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


def test_verify_reads_what_is_remembered(collection: Path, remembered: Path) -> None:
    with SearchEngine.open(collection, WordLengths()) as engine:
        known = json.loads(remembered.read_bytes())
        assert {"coarse.faiss", "words.safetensors"} <= {Path(name).name for name in known}
        wrong = {name: [*state, "0" * 64] for name, (*state, _) in known.items()}
        remembered.write_text(json.dumps(wrong))
        engine.verify()
    with pytest.raises(CollectionError, match="does not match its checksum"):
        opened(collection)
