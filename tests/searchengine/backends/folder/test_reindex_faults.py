"""A reindex that fails, is damaged or is given something wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths, during, interrupt
from scenarios import document, leave_pending

from searchengine import SearchEngine
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import Scratch
from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.loading import CollectionEncoder
from searchengine.engine import discard_reindex
from searchengine.errors import CollectionError
from searchengine.upkeep.reindex import FolderPlace


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


@pytest.mark.parametrize(
    "owner, step", [(Collection, "_show_newest"), (Scratch, "clear"), (CollectionEncoder, "settle")]
)
def test_after_an_interruption_behind_the_commit_the_engine_goes_on(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    def swapping() -> None:
        during(monkeypatch, owner, step, interrupt)

    during(monkeypatch, FolderPlace, "replace_by", swapping)
    with pytest.raises(KeyboardInterrupt):
        engine.reindex(other())
    monkeypatch.undo()
    assert (len(engine.search("x", k=5)), engine.stats().dim) == (5, 3)
    engine.add([document(7)])
    engine.reindex(WordLengths(8, "narrow"))
    assert (len(engine.search("x", k=9)), engine.stats().dim) == (6, 8)
    engine.verify()


@pytest.mark.parametrize("name", ["documents.db", "segments/000001/coarse.faiss"])
def test_a_damaged_file_of_a_pending_reindex_is_named(engine: SearchEngine, name: str) -> None:
    leave_pending(engine, other())
    path = engine.collection.path
    (file,) = path.glob(f"pending/*/{name}")
    file.write_bytes(bytes(file.stat().st_size))
    way_out = f"pending reindex of .* is damaged .*searchengine reindex {path} --discard"
    with pytest.raises(CollectionError, match=way_out):
        engine.reindex(other())
    assert engine.stats().pending[0].startswith("reindex by lengths: ")
    assert discard_reindex(engine)
    engine.reindex(other())
    engine.verify()
