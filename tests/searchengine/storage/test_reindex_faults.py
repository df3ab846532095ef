"""A reindex that fails, is damaged or is given something wrong."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths
from scenarios import document

from searchengine import SearchEngine
from searchengine.encoders.functions import FunctionEncoder
from searchengine.errors import EncoderMismatch
from searchengine.storage.collection import Collection


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
def test_an_interruption_after_the_commit_ends_in_an_error(
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
    if not refreshed:
        assert len(engine.search("x", k=5)) == 5  # the former state, by the former encoder
        with pytest.raises(EncoderMismatch, match="was built by the encoder lengths"):
            engine.refresh()
    else:
        with pytest.raises(EncoderMismatch, match="was built by the encoder lengths"):
            engine.search("x", k=5)
