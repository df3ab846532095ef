"""A reindex that fails, is damaged or is given something wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from pending import leave_pending
from scenarios import document
from test_reindex import during

from searchengine import Document, SearchEngine
from searchengine.backends.folder.collection import Collection
from searchengine.encoders.functions import FunctionEncoder
from searchengine.errors import CollectionError
from searchengine.ingest import pipeline
from searchengine.upkeep.reindex import Blocks, Reindexing


def lengths(texts: Sequence[str]) -> np.ndarray:
    """The length of each text, in another width than that of WordLengths."""
    return np.array([[1.0, len(text), 1.0] for text in texts])


def other() -> FunctionEncoder:
    return FunctionEncoder(lengths)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([document(i) for i in range(5)])
        yield engine


@pytest.mark.parametrize("refreshed", [False, True])
def test_after_an_interruption_behind_the_commit_the_engine_goes_on(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, refreshed: bool
) -> None:
    refresh = Collection.refresh

    def interrupted(self: Collection) -> None:
        if refreshed:
            refresh(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "refresh", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.reindex(other())
    assert len(engine.search("x", k=5)) == 5  # unless refreshed, the former state
    assert engine.stats().dim == (3 if refreshed else 16)
    engine.refresh()
    assert (len(engine.search("x", k=5)), engine.stats().dim) == (5, 3)
    engine.add([document(7)])
    engine.reindex(WordLengths(8, "narrow"))
    assert (len(engine.search("x", k=9)), engine.stats().dim) == (6, 8)
    engine.verify()


def test_a_full_disk_is_an_error_and_what_is_encoded_stays(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, mode: str = "r", **options: Any) -> Any:
        file = original(self, mode, **options)
        if mode == "wb" and "pending" in self.parts:
            file.close()
            return Path("/dev/full").open("wb")
        return file

    original = Path.open
    monkeypatch.setattr(pipeline, "LARGEST_BLOCK", (2, 1 << 19))
    with monkeypatch.context() as patch:
        during(patch, Blocks, "_written", lambda: patch.setattr(Path, "open", full), 2)
        with pytest.raises(CollectionError, match=r"c: No space left on device"):
            engine.reindex(other())
    assert engine.stats().pending[0].startswith("reindex by lengths: 2 passages encoded")
    engine.reindex(other())
    engine.verify()


@pytest.mark.parametrize("suffix", Blocks.FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_of_a_pending_reindex_is_named(
    engine: SearchEngine, suffix: str, damage: str
) -> None:
    leave_pending(engine, other())
    path = engine.collection.path
    (file,) = path.glob(f"pending/*/{'[0-9a-f]' * 32}{suffix}")
    data = bytearray(file.read_bytes())
    data[-4] ^= 1
    file.write_bytes(data if damage == "flip" else data[:-4])
    if damage == "remove":
        file.unlink()
    way_out = f"{file} of the pending reindex is .*searchengine reindex {path} --discard"
    with pytest.raises(CollectionError, match=way_out):
        engine.reindex(other())
    assert engine.discard_reindex()
    engine.reindex(other())
    engine.verify()


def test_a_block_that_is_damaged_while_others_are_encoded_is_not_built(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage() -> None:
        (file,) = engine.collection.path.glob(f"pending/*/{'[0-9a-f]' * 32}.npy")
        file.write_bytes(file.read_bytes()[:-4] + bytes(4))

    during(monkeypatch, Reindexing, "_build", damage, 1)
    with pytest.raises(CollectionError, match="of the pending reindex is damaged"):
        engine.reindex(other())


def test_a_repair_of_a_whole_collection_keeps_the_pending_reindex(engine: SearchEngine) -> None:
    leave_pending(engine, other())
    repaired = SearchEngine.repair(engine.collection.path)
    assert repaired.whole and repaired.lost == () and repaired.damage == ()
    assert len(engine.stats().pending) == 1


def test_blank_texts_are_refused_before_anything_is_encoded(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", None, dim=3) as engine:
        engine.add([document(1), Document("blank", "\n\t\u3000")], np.eye(2, 3))
        with pytest.raises(CollectionError, match="the document 'blank' came with vectors"):
            engine.reindex(other())
        assert engine.stats().pending == ()


def test_an_error_of_the_encoder_names_the_reindex(engine: SearchEngine) -> None:
    def zeros(texts: Sequence[str]) -> np.ndarray:
        return lengths(texts) * [["x" not in text] for text in texts]

    with pytest.raises(CollectionError, match=r"^reindex: the encoder returned NaN"):
        engine.reindex(FunctionEncoder(zeros))
