"""Encodes questions, and remembers the last ones."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Protocol, runtime_checkable

import numpy as np

from indexer.arrays import Floats
from searchengine.encoders.checks import check_shape, unusable
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import QueryError
from trainer.errors import ModelError

CACHE_SIZE = 1024
"""Questions in the cache: 3 MB of vectors with 768 dimensions."""
MAX_CACHED_BATCH = 64
"""A longer list of questions is encoded without the cache."""


@runtime_checkable
class TruncatesLayers(Protocol):
    """An encoder that can run with its first layers only."""

    def truncate(self, *, layers: int) -> TextEncoder:
        """The same encoder with fewer layers. Raises ModelError."""


class QuestionEncoder:
    """Encodes questions with one encoder and caches them. Safe to use from several threads.

    Attributes:
        cached, encoded: how many questions came from the cache, and how many were encoded.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self.cached = self.encoded = 0
        self._encoder = encoder
        self._lock = Lock()
        self._cache: OrderedDict[str, Floats] = OrderedDict()
        self._truncated: dict[int, QuestionEncoder] = {}

    def at(self, layers: int | None) -> "QuestionEncoder":
        """This for the encoder's first layers; None: all layers. Raises QueryError."""
        if layers is None:
            return self
        if layers not in self._truncated:
            if not isinstance(self._encoder, TruncatesLayers):
                raise QueryError("the encoder has no layers to choose from; leave layers out")
            try:
                encoder = self._encoder.truncate(layers=layers)
            except ModelError as error:
                raise QueryError(str(error)) from error
            self._truncated.setdefault(layers, QuestionEncoder(encoder))
        return self._truncated[layers]

    def encode(self, questions: Sequence[str]) -> Floats:
        """Float32 (q, D). Raises QueryError for vectors that are zero or not finite."""
        if len(questions) > MAX_CACHED_BATCH:
            self.encoded += len(questions)
            return self._encoded(questions)
        with self._lock:
            known = {text: self._cache[text] for text in questions if text in self._cache}
            for text in known:
                self._cache.move_to_end(text)
            self.cached += len(known)
            self.encoded += len(set(questions)) - len(known)
        if missing := [text for text in dict.fromkeys(questions) if text not in known]:
            # Copies: a view would keep its whole batch.
            encoded = dict(zip(missing, map(np.copy, self._encoded(missing)), strict=True))
            with self._lock:
                self._cache.update(encoded)
                while len(self._cache) > CACHE_SIZE:
                    self._cache.popitem(last=False)
            known |= encoded
        return np.stack([known[text] for text in questions])

    def _encoded(self, texts: Sequence[str]) -> Floats:
        vectors = np.asarray(self._encoder.encode(texts, role="query"), dtype=np.float32)
        check_shape(vectors, (len(texts), self._encoder.dim), "questions", QueryError)
        wrong = unusable(vectors)
        if wrong.any():
            text = texts[int(wrong.argmax())]
            raise QueryError(
                f"the encoder returned NaN, infinity or zero for the question {text!r:.80}"
            )
        return vectors
