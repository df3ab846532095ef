"""Copies and checks of a commit whose segments another process merges and removes meanwhile."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from concurrent_writers import writer
from conftest import WordLengths
from scenarios import document

from searchengine import SearchEngine
from searchengine.indexer.segment import Segment
from searchengine.upkeep.copies import copy

WAITING: dict[str, tuple[object, str]] = {
    "backup": (os, "link"),
    "verify": (hashlib, "file_digest"),
    "export": (Segment, "verified"),
    "copy": (Segment, "vectors"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "words.index"
    with SearchEngine.create(path, WordLengths()) as engine:
        for number in range(1000, 1007):
            engine.add([document(number)])
    return path


@pytest.fixture
def writing(path: Path, tmp_path: Path) -> Iterator[None]:
    """Another process adds, deletes and merges."""
    with writer(path, tmp_path):
        yield


@pytest.mark.usefixtures("writing")
@pytest.mark.parametrize("name", list(WAITING))
def test_another_process_merges_meanwhile(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read, target = getattr(*WAITING[name]), tmp_path / "target"
    calls = Counter[object]()

    with SearchEngine.open(path, WordLengths()) as engine:
        first = [segment.path for segment in engine.collection.segments.values()]

        def read_after_a_merge(*arguments: Any, **named: Any) -> Any:
            what = arguments[0]  # a path, an open file, or a segment
            calls[what if isinstance(what, Path) else getattr(what, "name", what)] += 1
            until = time.monotonic() + 60
            while all(folder.exists() for folder in first):
                assert time.monotonic() < until, "nothing was merged"
                time.sleep(0.01)
            return read(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(*WAITING[name], read_after_a_merge)
            if name == "copy":
                copy(path, target)
            elif name == "verify":
                engine.verify()
            else:
                getattr(engine, name)(target)
        removed = [s.path for s in engine.collection.segments.values() if not s.path.exists()]
    once = 2 if name in ("verify", "copy") else 1  # times that one pass reads a file
    assert removed and 0 < max(calls.values()) <= once  # it did not begin again
    if name in ("backup", "copy"):
        with SearchEngine.open(target, WordLengths()) as copied:
            copied.verify()
            assert {f"d{number}" for number in range(1000, 1007)} <= set(copied.keys())
    elif name == "export":
        assert len(np.load(target / "vectors.npy")) >= 7
