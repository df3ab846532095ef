"""Questions: remembered, and encoded by fewer layers on request."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from searchengine.encoders.questions import MAX_CACHED_BATCH, QuestionEncoder
from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.trainer.errors import ModelError
from tests.conftest import WordLengths


def expected(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    return WordLengths().encode(texts)


def test_a_repeated_question_is_not_encoded() -> None:
    encoder = WordLengths()
    questions = QuestionEncoder(encoder)
    first = questions.encode(["a bee", "two whales"])
    again = questions.encode(["two whales", "a bee", "a cow", "a cow"])
    np.testing.assert_array_equal(again, expected(["two whales", "a bee", "a cow", "a cow"]))
    np.testing.assert_array_equal(first, expected(["a bee", "two whales"]))
    assert encoder.calls == [["a bee", "two whales"], ["a cow"]]


class Cut(WordLengths):
    """One of 3 layers, of which fewer see only the first words."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = layers

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        return super().encode([" ".join(t.split()[: self.layers]) for t in texts], role=role)

    def truncate(self, *, layers: int) -> "Cut":
        if layers > 3:
            raise ModelError(f"layers is {layers}: expected 1 to 3, what it has")
        return Cut(layers)


def test_fewer_layers_for_a_question(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", Cut()) as engine:
        engine.add([{"_id": "first", "text": "a"}, {"_id": "all", "text": "a two four"}])
        question = "a two four"
        assert [hit.key for hit in engine.search(question)] == ["all", "first"]
        assert [hit.key for hit in engine.search(question, layers=1, mode="vector")] == [
            "first",
            "all",
        ]
        assert [hit.key for hit in engine.search(question, layers=3)] == ["all", "first"]
        assert [hit.key for hit in engine.search(question, mode="hybrid", layers=1)]
        for options, message in (
            ({"layers": 4}, "layers is 4: expected 1 to 3"),
            ({"layers": 0}, "layers must be a whole number of at least 1, got 0"),
            ({"layers": True}, "layers must be a whole number"),
            ({"layers": 1, "mode": "text"}, "must be None in the mode text"),
        ):
            with pytest.raises(QueryError, match=message):
                engine.search(question, **options)  # type: ignore[arg-type]
        with pytest.raises(QueryError, match="layers must be None for vectors"):
            engine.search(np.ones(16), layers=1)


def test_an_encoder_without_layers_says_so(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": "1", "text": "a"}])
        with pytest.raises(QueryError, match="has no layers to choose from"):
            engine.search("a", layers=1)


class Short(WordLengths):
    """Loses a vector."""

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        return super().encode(texts, role=role)[1:]


@pytest.mark.parametrize("count", [2, MAX_CACHED_BATCH + 1])
def test_an_encoder_that_loses_vectors_is_told(count: int) -> None:
    with pytest.raises(QueryError, match=rf"for {count} questions, got \({count - 1}, 16\)"):
        QuestionEncoder(Short()).encode([f"question {i}" for i in range(count)])
