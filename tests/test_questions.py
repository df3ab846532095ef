"""Questions: remembered, encoded together where they come at once, by fewer layers on request."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.questions import CACHED, FEW, QuestionEncoder
from tests.conftest import WordLengths
from trainer.errors import ModelError


class Gated(WordLengths):
    """Encodes when it is let; `begun` tells that it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        self.calls.append(list(texts))
        self.begun.release()
        assert self.let.acquire(timeout=30)
        if "spoilt" in texts:
            raise ValueError("a spoilt text")
        if "stop" in texts:
            raise KeyboardInterrupt
        return WordLengths.encode(WordLengths(self.dim), texts, role=role)


def expected(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    return WordLengths().encode(texts)


def test_a_question_asked_again_is_not_encoded() -> None:
    encoder = WordLengths()
    questions = QuestionEncoder(encoder)
    first = questions.encode(["a bee", "two whales"])
    again = questions.encode(["two whales", "a bee", "a cow", "a cow"])
    np.testing.assert_array_equal(again, expected(["two whales", "a bee", "a cow", "a cow"]))
    np.testing.assert_array_equal(first, expected(["a bee", "two whales"]))
    assert encoder.calls == [["a bee", "two whales"], ["a cow"]]


def test_what_was_asked_longest_ago_is_forgotten() -> None:
    encoder = WordLengths()
    questions = QuestionEncoder(encoder)
    for number in range(CACHED):
        questions.encode([f"question {number}"])
    questions.encode(["question 0"])  # asked again: now 1 is the oldest
    questions.encode(["one more"])
    encoder.calls.clear()
    questions.encode(["question 0"])
    questions.encode(["question 1"])
    assert encoder.calls == [["question 1"]]


def test_many_are_a_batch_of_their_own_and_push_nothing_out() -> None:
    encoder = WordLengths()
    questions = QuestionEncoder(encoder)
    questions.encode(["a bee"])
    many = [f"question {number}" for number in range(FEW)] + ["a bee"]
    np.testing.assert_array_equal(questions.encode(many), expected(many))
    assert encoder.calls[1] == many
    questions.encode(["a bee"])
    assert len(encoder.calls) == 2


def test_those_who_come_meanwhile_are_encoded_together() -> None:
    encoder = Gated()
    questions = QuestionEncoder(encoder)
    texts = ["a", "bb", "ccc ccc", "dddd", "bb"]
    with ThreadPoolExecutor(5) as callers:
        first = callers.submit(questions.encode, texts[:1])
        assert encoder.begun.acquire(timeout=30)
        others = [callers.submit(questions.encode, [text]) for text in texts[1:]]
        waiting(questions, 5)
        encoder.let.release(2)
        found = [one.result(timeout=30)[0] for one in (first, *others)]
    np.testing.assert_array_equal(np.stack(found), expected(texts))
    assert encoder.calls[0] == ["a"] and sorted(encoder.calls[1]) == sorted(texts[1:])
    assert len(encoder.calls) == 2


def waiting(questions: QuestionEncoder, count: int) -> None:
    """Until so many callers wait, the one who encodes included."""
    ends = threading.Event()
    for _ in range(3000):
        with questions._lock:
            if len(questions._waiting) == count:
                return
        ends.wait(0.01)
    raise AssertionError(f"{len(questions._waiting)} callers wait, not {count}")


def test_a_fault_is_its_callers_own() -> None:
    encoder = Gated()
    questions = QuestionEncoder(encoder)
    with ThreadPoolExecutor(4) as callers:
        first = callers.submit(questions.encode, ["a"])
        assert encoder.begun.acquire(timeout=30)
        others = {t: callers.submit(questions.encode, [t]) for t in ("bb", "spoilt", "dddd")}
        waiting(questions, 4)
        encoder.let.release(100)
        np.testing.assert_array_equal(first.result(timeout=30), expected(["a"]))
        with pytest.raises(ValueError, match="a spoilt text"):
            others["spoilt"].result(timeout=30)
        for text in ("bb", "dddd"):
            np.testing.assert_array_equal(others[text].result(timeout=30), expected([text]))
    assert not questions._busy and not questions._waiting
    np.testing.assert_array_equal(questions.encode(["after"]), expected(["after"]))


def test_who_is_interrupted_leaves_the_others_their_turn() -> None:
    encoder = Gated()
    questions = QuestionEncoder(encoder)
    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(questions.encode, ["stop"])
        assert encoder.begun.acquire(timeout=30)
        other = callers.submit(questions.encode, ["bb"])
        waiting(questions, 2)
        encoder.let.release(100)
        with pytest.raises(KeyboardInterrupt):
            first.result(timeout=30)
        np.testing.assert_array_equal(other.result(timeout=30), expected(["bb"]))


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5), max_size=24))
@settings(max_examples=30, deadline=None)
def test_any_callers_get_their_own(asked: list[list[str]]) -> None:
    questions = QuestionEncoder(WordLengths())
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(questions.encode, asked))
    for texts, vectors in zip(asked, found, strict=True):
        np.testing.assert_array_equal(vectors, expected(texts))
    assert not questions._busy and not questions._waiting


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
        assert [hit.key for hit in engine.search(question, layers=1)] == ["first", "all"]
        assert [hit.key for hit in engine.search(question, layers=3)] == ["all", "first"]
        assert [hit.key for hit in engine.search(question, mode="hybrid", layers=1)]
        for options, message in (
            ({"layers": 4}, "layers is 4: expected 1 to 3"),
            ({"layers": 0}, "layers must be a whole number of at least 1, got 0"),
            ({"layers": True}, "layers must be a whole number"),
            ({"layers": 1, "mode": "text"}, "the mode text encodes no question"),
        ):
            with pytest.raises(QueryError, match=message):
                engine.search(question, **options)  # type: ignore[arg-type]
        with pytest.raises(QueryError, match="layers says how questions are encoded"):
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


@pytest.mark.parametrize("count", [2, FEW + 1])
def test_an_encoder_that_loses_vectors_is_told(count: int) -> None:
    with pytest.raises(QueryError, match=f"gave {count - 1} vectors for {count} questions"):
        QuestionEncoder(Short()).encode([f"question {i}" for i in range(count)])
