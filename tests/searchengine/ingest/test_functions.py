"""Functions as encoders: by name, and by what they return."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import FunctionEncoder, SearchEngine
from searchengine.encoders.functions import PROBE
from searchengine.errors import CollectionError, QueryError
from searchengine.upkeep.repair import repair

DOCUMENTS = [{"_id": text, "text": text} for text in ("a bee", "the cat sat", "whales sleep")]


def embed(texts: list[str]) -> Any:
    """Not of length 1, and lists instead of an array."""
    return (3 * WordLengths(8).encode(texts)).tolist()


def other(texts: list[str]) -> Any:
    return WordLengths(8).encode([text[::2] + " x" for text in texts])


def test_rounding_is_no_other_function(tmp_path: Path) -> None:
    """bfloat16 keeps 8 bits: the fingerprint still matches, a slightly different model's not."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((len(PROBE), 768)).astype(np.float32)
    exact = FunctionEncoder(lambda texts: table[: len(texts)], "t")
    rounded = (table.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert FunctionEncoder(lambda texts: rounded[: len(texts)], "t").matches(exact.fingerprint)
    for _ in range(20):
        moved = table + 0.2 * rng.standard_normal(table.shape).astype(np.float32)
        assert not FunctionEncoder(lambda texts, m=moved: m[: len(texts)], "t").matches(  # type: ignore[misc]
            exact.fingerprint
        )
    for fingerprint in ("", "t/768/", "none", exact.fingerprint + " 1"):
        assert not exact.matches(fingerprint)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda texts: None, "must return an array of numbers"),
        (lambda texts: texts, "must return an array of numbers"),
        (lambda texts: [[1], [1, 2]], "must return an array of numbers"),
        (
            lambda texts: np.ones(len(texts)),
            r"numbers of shape \(4, D\) for 4 texts",
        ),
        (lambda texts: np.ones((1, 4)), r"got float64 of shape \(1, 4\)"),
        (lambda texts: np.ones((len(texts), 4), complex), "got complex128"),
    ],
)
def test_a_function_that_returns_no_vectors(tmp_path: Path, result: Any, message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        SearchEngine.create(tmp_path / "c", FunctionEncoder(result, "wrong"))
    assert not (tmp_path / "c").exists()


def test_a_function_that_returns_wrong_shapes_later(tmp_path: Path) -> None:
    spoilt: list[Any] = []

    def encode(texts: list[str]) -> Any:
        return spoilt[0](len(texts)) if spoilt else np.ones((len(texts), 4))

    with SearchEngine.create(tmp_path / "c", encode) as engine:
        engine.add(DOCUMENTS[:1])
        for result, message in (
            (
                lambda n: np.ones((n, 5)),
                r"of shape \(2, 4\) for 2 texts, got float64 of shape \(2, 5\)",
            ),
            (lambda n: np.ones((n + 1, 4)), r"must return an array of numbers of shape \(2, 4\)"),
            (lambda n: np.zeros((n, 4)), "the text 'the cat sat'"),
            (lambda n: np.full((n, 4), np.nan), "the text 'the cat sat'"),
        ):
            spoilt[:] = [result]
            with pytest.raises((CollectionError, QueryError), match=message):
                engine.add(DOCUMENTS[1:])
        assert len(engine) == 1
        engine.verify()


@pytest.mark.parametrize("value", [5, b"x", ["a"], {}])
def test_objects_that_are_no_encoder_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CollectionError, match="an encoder must be a model folder, a hub name"):
        SearchEngine.create(tmp_path / "c", value)


def test_a_function_needs_a_name() -> None:
    for function, name in ((lambda texts: texts, None), (embed, " "), (embed, 5)):
        with pytest.raises(CollectionError, match="a function needs a name"):
            FunctionEncoder(function, name)  # type: ignore[arg-type]


def test_repair_encodes_by_the_function(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", embed) as engine:
        engine.add(DOCUMENTS)
    (segment,) = (tmp_path / "c" / "segments").iterdir()
    (segment / "vectors.faiss").write_bytes(b"")
    with pytest.raises(CollectionError, match="built by the encoder embed;"):
        repair(tmp_path / "c")
    assert repair(tmp_path / "c", embed).encoded == 3
