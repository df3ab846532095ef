"""Damage is never copied under a fresh checksum: merge, rebuild, export and backup refuse it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.errors import CollectionError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.segment import Segment, SegmentConfig

DIM = 24
CONFIG = SegmentConfig(prefix=8, shortlist=40)
DOCUMENTS = [
    {"_id": f"d{i}", "text": "x" * (i % 9 + 1) + " " + "y" * (i % 7 + 1)} for i in range(60)
]


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip a bit of a file where it is: a second name for the file shows it too."""
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1 << bit]))


@contextmanager
def sqlite_page(path: Path, holding: bytes) -> Iterator[bytearray]:
    """The page of a closed database that holds some bytes, to be changed."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    start = data.index(holding) // size * size
    page = data[start : start + size]
    yield page
    assert len(page) == size
    data[start : start + size] = page
    path.write_bytes(data)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


# ------------------------------------------------------------------------------------- segments


@pytest.mark.parametrize("place", [3, 81, 81 + 2 * DIM * 10, -2])
def test_a_merge_refuses_a_flipped_bit(tmp_path: Path, place: int) -> None:
    """In the header, in a row, in a row that is not taken, and in the last number."""
    first = Segment.build(tmp_path / "a", rows(50), CONFIG)
    second = Segment.build(tmp_path / "b", rows(30, 1), CONFIG)
    flip(second.path / "vectors.faiss", place)
    live = np.setdiff1d(np.arange(30), [10])
    with pytest.raises(SegmentError, match=r"b/vectors\.faiss does not match its checksum"):
        Segment.merge(tmp_path / "m", [(first, None), (second, live)], CONFIG)
    assert not (tmp_path / "m").exists()


def test_the_bytes_that_are_hashed_are_the_bytes_that_are_copied(tmp_path: Path) -> None:
    """A bit flips in a block that was read before, and in one that comes later."""
    first = Segment.build(tmp_path / "a", rows(9000), CONFIG)
    path = first.path / "vectors.faiss"
    before = first.vectors(np.arange(9000))
    places = {"read": 81 + 2 * DIM * 5, "to come": path.stat().st_size - 8}

    def merge(name: str) -> Segment:
        pending = [places[name]]

        def progress(doing: str, *_: int) -> None:
            if doing == "Merging" and pending:
                flip(path, pending.pop())

        return Segment.merge(tmp_path / name, [(first, None)], CONFIG, progress=progress)

    with merge("read") as merged:
        list(merged.verified())
        np.testing.assert_array_equal(merged.vectors(np.arange(9000)), before)
    flip(path, places["read"])
    with pytest.raises(SegmentError, match="does not match its checksum"):
        merge("to come")


# ---------------------------------------------------------------------------------- collections


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.index"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    """Two segments, opened after the last commit."""
    with SearchEngine.create(path, WordLengths(), {"prefix": 8}) as result:
        result.add(DOCUMENTS[:40])
        result.add(DOCUMENTS[40:])
    with SearchEngine.open(path, WordLengths()) as engine:
        yield engine


def files(path: Path, name: str) -> list[Path]:
    return sorted((path / "segments").glob(f"*/{name}"))


def committed(engine: SearchEngine) -> tuple[list[SegmentRow], int]:
    with engine.collection.reading(newest=True) as snapshot:
        return list(snapshot.segments), snapshot.settings["commit"]


def rebuild(engine: SearchEngine, _: Path) -> None:
    measured = {row: (segment, None) for row, segment in engine.collection.segments.items()}
    with engine.collection.writing() as writer:
        writer.rebuild(measured, SegmentConfig(prefix=12), {"goal": {}})


ACTS = {
    "optimize": lambda engine, _: engine.optimize(),
    "rebuild": rebuild,
    "export": lambda engine, folder: engine.export(folder),
    "backup": lambda engine, folder: engine.backup(folder),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", ["vectors.faiss", "rotation.npy", "coarse.faiss"])
def test_damage_since_opening_is_refused(
    engine: SearchEngine, path: Path, tmp_path: Path, act: str, name: str
) -> None:
    before, hits = committed(engine), engine.search("xxx yyyy")
    flip(files(path, name)[-1], -2)
    derived = {
        ("optimize", "rotation.npy"),
        ("optimize", "coarse.faiss"),
        ("rebuild", "rotation.npy"),
        ("rebuild", "coarse.faiss"),
    }
    if (act, name) in derived:
        # Not read here: what is written comes from rows that were verified.
        ACTS[act](engine, tmp_path / "folder")
        engine.verify()
        scores = [hit.score for hit in hits]
        assert [hit.score for hit in engine.search("xxx yyyy")] == pytest.approx(scores, abs=1e-3)
        return
    with pytest.raises(CollectionError, match="does not match its checksum"):
        ACTS[act](engine, tmp_path / "folder")
    assert committed(engine) == before
    assert engine.search("xxx yyyy") == hits
    assert not (tmp_path / "folder").exists()
    with pytest.raises(CollectionError, match=rf"{name} does not match its.*searchengine repair"):
        engine.verify()


def test_a_merge_that_comes_by_itself_refuses_damage(
    engine: SearchEngine, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(files(path, "vectors.faiss")[0], -2)
    with caplog.at_level(logging.WARNING):
        for i in range(60):
            engine.add([{"_id": f"more {i}", "text": "more"}])
    assert "segments were not merged" in caplog.text
    assert "vectors.faiss does not match its checksum" in caplog.text
    assert engine.stats().documents == 120
    with pytest.raises(CollectionError, match=r"vectors\.faiss does not match its checksum"):
        engine.verify()


def test_altered_documents_are_not_exported(
    engine: SearchEngine, path: Path, tmp_path: Path
) -> None:
    engine.close()
    path = path.rename(tmp_path / "my words")
    with Store(path / "documents.db") as store, store.transaction():
        store.connection.execute("UPDATE documents SET text = 'z' WHERE key = 'd7'")
    with (
        SearchEngine.open(path, WordLengths()) as other,
        pytest.raises(
            CollectionError, match=r"the text of 'd7' differs from what.*repair '.*my words'$"
        ),
    ):
        other.export(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_backup_checks_the_pages_of_its_copy(
    engine: SearchEngine, path: Path, tmp_path: Path
) -> None:
    engine.add([{"_id": "long", "text": "needle " * 3000}])
    engine.close()
    with sqlite_page(path / "documents.db", b"needle needle") as page:
        page[:] = b"\xff" * len(page)
    with (
        SearchEngine.open(path, WordLengths()) as again,
        pytest.raises(CollectionError, match=r"documents\.db is damaged .*searchengine repair"),
    ):
        again.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
