"""Checks of questions and vectors: what callers pass and what encoders return."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.encoders.protocol import Vectors
from searchengine.errors import QueryError, SearchEngineError


def check_shape(
    vectors: Vectors, expected: tuple[int, int], what: str, error: type[SearchEngineError]
) -> None:
    """Raise `error` unless an encoder returned an array of the `expected` shape (n, D)."""
    if vectors.shape != expected:
        raise error(
            f"the encoder must return an array of shape {expected} for {expected[0]} {what}, "
            f"got {vectors.shape}"
        )


def unusable(vectors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Rows with NaN or infinity, or with zeros only: bool (n,)."""
    usable: npt.NDArray[np.bool_] = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    return ~usable


def check_questions(questions: Sequence[str]) -> None:
    """Raise QueryError for a query that is not text, or empty."""
    for position, question in enumerate(questions, start=1):
        name = "the query" if len(questions) == 1 else f"query {position}"
        if not isinstance(question, str):
            raise QueryError(f"{name} must be text, got {type(question).__name__}")
        if not question.strip():
            raise QueryError(f"{name} is empty")


def as_array(vectors: object) -> npt.NDArray[Any]:
    """Numbers as an array. Raises QueryError."""
    try:
        return np.asarray(vectors)
    except ValueError as error:
        raise QueryError(f"a query must be text or a vector of numbers ({error})") from error


def check_vectors(vectors: npt.ArrayLike, dim: int) -> Vectors:
    """Query vectors as float32 (q, D). Raises QueryError."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        raise QueryError(
            f"query vectors must be numbers of shape (q, {dim}), "
            f"got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):  # values beyond float32 become infinity, reported below
        single = array.astype(np.float32)
    wrong = unusable(single)
    if wrong.any():
        raise QueryError(
            f"query vectors must be finite and not all zeros in float32; "
            f"vector {int(wrong.argmax()) + 1} is not"
        )
    return single
