"""A writer waits for another process, if it is asked to."""

import time
from pathlib import Path
from typing import Any

import pytest
from clean_process import clean
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import CollectionBusy


def test_a_second_writer_waits_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    begun = clean.Event()
    with (
        SearchEngine.create(path, WordLengths()) as patient,
        SearchEngine.open(path, WordLengths()) as hasty,
    ):
        patient.collection.wait = 60
        writer = clean.Process(target=_write_slowly, args=(path, begun))
        writer.start()
        assert begun.wait(60)
        with pytest.raises(CollectionBusy, match="try again when it has finished"):
            hasty.add([{"_id": "4", "text": "aaaa"}])
        patient.add([{"_id": "3", "text": "aaa"}])
        writer.join(60)
        patient.refresh()
        assert {hit.key for hit in patient.search("a", 9)} == {"1", "3"}


def _write_slowly(path: Path, begun: Any) -> None:
    """Add a document by a commit that takes a while."""

    def slow(what: str, done: int, total: int) -> None:
        begun.set()
        time.sleep(0.5)

    with SearchEngine.open(path, WordLengths()) as engine:
        engine.add([{"_id": "1", "text": "a"}], building=slow)
