"""Questions encoded, and the vectors of the last ones remembered."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from searchengine.encoders.protocol import Role, TextEncoder, Vectors
from searchengine.errors import QueryError, SearchEngineError
from searchengine.indexer.arrays import Floats, unusable
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

CACHE_SIZE = 1024
"""Questions in the cache: 3 MB of vectors with 768 dimensions."""


class QuestionEncoder:
    """Encodes questions with one encoder and caches them. Safe to use from several threads.

    Attributes:
        encoder, runtime: the encoder, and what it was loaded by.
    """

    def __init__(self, encoder: TextEncoder, runtime: RuntimeConfig | None = None) -> None:
        self.encoder, self.runtime = encoder, runtime
        self._lock = Lock()
        self._cache: OrderedDict[str, Floats] = OrderedDict()

    def encode(self, questions: Sequence[str]) -> Floats:
        """Float32 (q, D). Raises QueryError for vectors that are zero or not finite."""
        with self._lock:
            known = {text: self._cache[text] for text in questions if text in self._cache}
        if missing := [text for text in dict.fromkeys(questions) if text not in known]:
            rows = encoded(self.encoder, missing, "query")
            # Copies: a view would keep its whole batch.
            new = dict(zip(missing, map(np.copy, rows), strict=True))
            with self._lock:
                self._cache.update(new)
                while len(self._cache) > CACHE_SIZE:
                    self._cache.popitem(last=False)
            known |= new
        return np.stack([known[text] for text in questions])


def encoded(encoder: TextEncoder, texts: Sequence[str], role: Role) -> Floats:
    """Float32 (n, D). Raises QueryError for another shape, and vectors zero or not finite."""
    what = "question" if role == "query" else "text"
    vectors = np.asarray(encoder.encode(texts, role=role), dtype=np.float32)
    check_shape(vectors, (len(texts), encoder.dim), f"{what}s", QueryError)
    wrong = unusable(vectors)
    if wrong.any():
        raise QueryError(
            f"the encoder returned NaN, infinity or zero for the {what} "
            f"{texts[int(wrong.argmax())]!r:.80}"
        )
    return vectors


def check_shape(
    vectors: Vectors, expected: tuple[int, int], what: str, error: type[SearchEngineError]
) -> None:
    """Raise `error` unless an encoder returned an array of the `expected` shape (n, D)."""
    if vectors.shape != expected:
        raise error(
            f"the encoder must return an array of shape {expected} for {expected[0]} {what}, "
            f"got {vectors.shape}"
        )
