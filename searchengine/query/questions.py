"""Questions to vectors, those asked again from a cache."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from searchengine.errors import QueryError
from searchengine.ingest.encoding import (
    TextEncoder,
    as_array,
    check_questions,
    check_shape,
    check_vectors,
    unusable,
)
from searchengine.query.request import Mode, Query
from trainer.errors import ModelError

Vectors = npt.NDArray[np.float32]
Questions = Sequence[str] | Sequence[npt.ArrayLike] | npt.NDArray[Any]

CACHED = 1024
"""Questions remembered: 3 MB of vectors 768 wide."""
FEW = 64
"""More than so many are a batch of their own, and not remembered."""


@runtime_checkable
class Shallows(Protocol):
    """An encoder that can do with its first layers."""

    def truncate(self, *, layers: int) -> TextEncoder:
        """The same encoder with fewer layers. Raises ModelError."""


class QuestionEncoder:
    """Encodes questions for one encoder, and remembers them. Safe to use from several threads."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._lock = Lock()
        self._cache: OrderedDict[str, Vectors] = OrderedDict()
        self._shallow: dict[int, QuestionEncoder] = {}

    def at(self, layers: int | None) -> "QuestionEncoder":
        """The same with the encoder's first layers alone; None is all. Raises QueryError."""
        if layers is None:
            return self
        if layers not in self._shallow:
            if not isinstance(self._encoder, Shallows):
                raise QueryError("the encoder has no layers to choose from; leave layers out")
            try:
                encoder = self._encoder.truncate(layers=layers)
            except ModelError as error:
                raise QueryError(str(error)) from error
            self._shallow.setdefault(layers, QuestionEncoder(encoder))
        return self._shallow[layers]

    def encode(self, questions: Sequence[str]) -> Vectors:
        """Float32 (q, D). Raises QueryError for vectors that cannot be searched by."""
        if len(questions) > FEW:
            return self._encoded(questions)
        with self._lock:
            known = {text: self._cache[text] for text in questions if text in self._cache}
            for text in known:
                self._cache.move_to_end(text)
        if missing := [text for text in dict.fromkeys(questions) if text not in known]:
            # Copies: a view would keep its whole batch.
            found = dict(zip(missing, map(np.copy, self._encoded(missing)), strict=True))
            with self._lock:
                self._cache.update(found)
                while len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
            known |= found
        return np.stack([known[text] for text in questions])

    def _encoded(self, texts: Sequence[str]) -> Vectors:
        vectors = np.asarray(self._encoder.encode(texts, role="query"), dtype=np.float32)
        check_shape(vectors, (len(texts), self._encoder.dim), "questions", QueryError)
        wrong = unusable(vectors)
        if wrong.any():
            text = texts[int(wrong.argmax())]
            raise QueryError(
                f"the encoder gave NaN, infinity or zero for the question {text!r:.80}"
            )
        return vectors


def parted(
    queries: Questions, query: Query, dim: int
) -> tuple[Sequence[str] | None, Vectors | None]:
    """What was asked as texts, or as vectors (q, D); the other one is None. Raises QueryError."""
    if isinstance(queries, str):
        raise QueryError("search_batch takes a list of questions, got one text; use search")
    if len(queries) and all(isinstance(q, list | tuple | np.ndarray) for q in queries):
        queries = as_array(queries)
    if isinstance(queries, np.ndarray):
        if query.mode != Mode.VECTOR:
            raise QueryError(f"the mode {query.mode} needs questions in words, got vectors")
        if query.layers is not None:
            raise QueryError("layers says how questions are encoded, and vectors are; leave it out")
        return None, check_vectors(queries, dim)
    questions: list[str] = list(queries)  # type: ignore[arg-type]
    check_questions(questions)
    return questions, None
