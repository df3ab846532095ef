"""Questions to vectors: those asked again from a cache, those asked at once in one batch."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from searchengine.encoding import TextEncoder, as_array, check_questions, check_vectors
from searchengine.errors import QueryError
from searchengine.query import Mode, Query
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


@dataclass(slots=True, eq=False)
class _Request:
    texts: list[str]
    vectors: Vectors | None = None
    woken: Event = field(default_factory=Event)


class QuestionEncoder:
    """Encodes questions for one encoder. Safe to use from several threads, and made for it.

    Who finds nobody encoding does it at once. Who comes meanwhile waits, and one of those who wait
    then encodes for all of them: nobody waits for a batch to fill, and the more ask at once, the
    larger the batches.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._lock = Lock()
        self._cache: OrderedDict[str, Vectors] = OrderedDict()
        self._waiting: list[_Request] = []
        self._busy = False
        self._shallow: dict[int, QuestionEncoder] = {}

    def at(self, layers: int | None) -> "QuestionEncoder":
        """The same with the encoder's first layers alone; None is all. Raises QueryError."""
        if layers is None:
            return self
        with self._lock:
            if layers not in self._shallow:
                if not isinstance(self._encoder, Shallows):
                    raise QueryError("the encoder has no layers to choose from; leave layers out")
                try:
                    encoder = self._encoder.truncate(layers=layers)
                except ModelError as error:
                    raise QueryError(str(error)) from error
                self._shallow[layers] = QuestionEncoder(encoder)
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
            found = dict(zip(missing, self._together(missing), strict=True))
            with self._lock:
                self._cache.update(found)
                while len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
            known |= found
        return np.stack([known[text] for text in questions])

    def _encoded(self, texts: Sequence[str]) -> Vectors:
        vectors = check_vectors(self._encoder.encode(texts, role="query"), self._encoder.dim)
        if len(vectors) != len(texts):
            raise QueryError(f"the encoder gave {len(vectors)} vectors for {len(texts)} questions")
        return vectors

    def _together(self, texts: list[str]) -> Vectors:
        """Vectors of texts, encoded by this thread or by another one for it."""
        request = _Request(texts)
        with self._lock:
            self._waiting.append(request)
            first = not self._busy
            self._busy = True
        if not first:
            request.woken.wait()
        if request.vectors is None:  # woken to encode, or the first
            self._lead(request)
        assert request.vectors is not None
        return request.vectors

    def _lead(self, own: _Request) -> None:
        """Encode for all who wait, then wake one of those who came meanwhile."""
        with self._lock:
            batch = [own, *(request for request in self._waiting if request is not own)]
        try:
            try:
                self._fill(batch)
            except Exception:
                if len(batch) == 1:
                    raise
                self._fill([own])  # whose fault it is shows when each is alone
        finally:
            with self._lock:
                self._waiting = [
                    request
                    for request in self._waiting
                    if request is not own and request.vectors is None
                ]
                self._busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].woken.set()

    def _fill(self, batch: list[_Request]) -> None:
        vectors = self._encoded([text for request in batch for text in request.texts])
        start = 0
        for request in batch:
            request.vectors = vectors[start : start + len(request.texts)]
            start += len(request.texts)
            request.woken.set()


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
