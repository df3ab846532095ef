"""Questions are remembered."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from searchengine.encoders.loading import CACHE_SIZE, QuestionEncoder
from searchengine.errors import QueryError
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


class Short(WordLengths):
    """Loses a vector."""

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        return super().encode(texts, role=role)[1:]


def test_the_oldest_are_forgotten() -> None:
    encoder = WordLengths()
    questions = QuestionEncoder(encoder)
    many = [f"question {'a' * i}" for i in range(CACHE_SIZE + 1)]
    questions.encode(many)
    questions.encode(many[1:])
    questions.encode(many[:1])
    assert encoder.calls == [many, many[:1]]


@pytest.mark.parametrize("count", [1, 2])
def test_an_encoder_that_loses_vectors_is_told(count: int) -> None:
    with pytest.raises(QueryError, match=rf"for {count} questions, got \({count - 1}, 16\)"):
        QuestionEncoder(Short()).encode([f"question {i}" for i in range(count)])
