"""A search request: its options checked, its question encoded, calls that come at once joined.

In the order in which a question passes: Query checks the options, Coalescer answers the questions
of several threads in one call, `parted` tells texts from vectors, QuestionEncoder encodes texts.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Condition, Event, Lock
from time import monotonic
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats
from searchengine.errors import QueryError
from searchengine.ingest.encoding import (
    TextEncoder,
    as_array,
    check_questions,
    check_shape,
    check_vectors,
    unusable,
)
from searchengine.storage.filters.language import parse
from trainer.errors import ModelError


class Mode(StrEnum):
    """What documents are ranked by."""

    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"


class Options(TypedDict, total=False):
    """The keywords of SearchEngine.search; Query says what they mean."""

    shortlist: int | None
    where: str | None
    exact: bool
    mode: Mode | str
    diversity: float
    group_by: str | None
    layers: int | None


@dataclass(frozen=True, slots=True)
class Query:
    """How to search.

    Attributes:
        k: how many documents, at least 1; fewer come only if fewer match.
        shortlist: candidates of each segment scored at full width; None: the segment's own number.
        where: a filter on metadata, see searchengine.storage.filters.language.
        exact: prove that there is nothing nearer. Takes no shortlist, and vectors alone.
        mode: "vector": by meaning; "text": by words (BM25); "hybrid": by both, see
            searchengine.storage.documents.lexical.
        diversity: 0 ranks by the score alone, 1 by how little a hit resembles those before it
            (maximal marginal relevance).
        group_by: a metadata field, of each value of which only the best document is shown; those
            without it stand for themselves.
        layers: how many layers of the encoder's network questions pass, for encoders trained so
            (2-D Matryoshka); None: all. Documents stay as they were encoded.

    Raises QueryError.
    """

    k: int = 10
    shortlist: int | None = None
    where: str | None = None
    exact: bool = False
    mode: Mode | str = Mode.VECTOR
    diversity: float = 0.0
    group_by: str | None = None
    layers: int | None = None

    @classmethod
    def of(cls, k: int, options: Options) -> Self:
        """The query for the keywords of a search. Raises QueryError on one that does not exist."""
        valid = Options.__annotations__
        for name in options:
            if name not in valid:
                raise QueryError(
                    f"a search has no option {name!r}; its options are k, {', '.join(valid)}"
                )
        return cls(k, **options)

    @property
    def by_words(self) -> bool:
        """Whether words alone rank, so that no question is encoded."""
        return self.mode == Mode.TEXT

    def __post_init__(self) -> None:
        self._check_counts()
        for name, text in (("where", self.where), ("group_by", self.group_by)):
            if text is not None and not isinstance(text, str):
                raise QueryError(f"{name} must be a text or None, got {text!r}")
        if self.mode not in list(Mode):
            raise QueryError(f"mode must be one of {', '.join(Mode)}, got {self.mode!r}")
        if type(self.diversity) not in (int, float) or not 0 <= self.diversity <= 1:
            raise QueryError(f"diversity must be a number from 0 to 1, got {self.diversity!r}")
        if self.exact:
            self._check_exact()
        if self.where is not None:
            parse(self.where)  # a mistake is told even where there is nothing to search

    def _check_counts(self) -> None:
        optional = {"shortlist": self.shortlist, "layers": self.layers}
        given = {name: value for name, value in optional.items() if value is not None}
        for name, value in {"k": self.k, **given}.items():
            if type(value) is not int or value < 1:
                raise QueryError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.layers is not None and self.by_words:
            raise QueryError("the mode text encodes no question; leave layers out")

    def _check_exact(self) -> None:
        if self.shortlist is not None:
            raise QueryError(
                f"exact search takes no shortlist, got {self.shortlist}; leave one of the two out"
            )
        if self.mode != Mode.VECTOR:
            raise QueryError(f"exact search ranks by vectors alone, got the mode {self.mode}")


Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH = 256
"""Items done together at most: what comes first should not wait for too many others."""
PATIENCE = 0.1
"""How long is waited for those whose items were done just now, as a share of what that took."""


@dataclass(slots=True, eq=False)
class _Call(Generic[Item, Result]):
    item: Item
    results: list[Result] = field(default_factory=list)  # of one item: empty until it is there
    leads: bool = False  # whether it is its turn to work
    woken: Event = field(default_factory=Event)


class Coalescer(Generic[Item, Result]):
    """Does in one call what several threads ask for at once.

    Who finds nobody at work does it at once. Who comes meanwhile waits, and one of those who wait
    then does it for all of them: the more ask at once, the larger the batches. Who was answered
    together with others is likely to ask again together with them: the first of them to do so
    waits a moment for the others. (Else batches of one and of all the others take turns.)
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]]) -> None:
        """`work` gives a result for each item, in their order."""
        self._work = work
        self._lock = Condition()  # notified when a call arrives
        self._waiting: list[_Call[Item, Result]] = []
        self._busy = False
        self._last, self._patient_until = 1, 0.0

    def __call__(self, item: Item) -> Result:
        """The result of one item. Raises what `work` raises for it alone."""
        call: _Call[Item, Result] = _Call(item)
        try:
            with self._lock:
                self._waiting.append(call)
                self._lock.notify_all()
                if not self._busy:
                    call.leads = self._busy = True
            if not call.leads:
                call.woken.wait()
            if call.leads:
                self._lead(call)
        finally:
            self._leave(call)
        return call.results[0]

    def _lead(self, own: _Call[Item, Result]) -> None:
        """Work for all who wait."""
        with self._lock:
            self._lock.wait_for(self._all_back, max(0.0, self._patient_until - monotonic()))
            others = [call for call in self._waiting if call is not own]
        batch = [own, *others[: MAX_BATCH - 1]]
        begun = monotonic()
        try:
            self._do(batch)
        except Exception:
            if len(batch) == 1:
                raise
            self._do([own])  # whose fault it was shows when each is alone
        finally:
            ended = monotonic()
            self._last = len(batch)
            self._patient_until = ended + PATIENCE * (ended - begun)

    def _all_back(self) -> bool:
        return len(self._waiting) >= self._last

    def _leave(self, own: _Call[Item, Result]) -> None:
        """Have the next one work, if it was this one's turn: done, failed or interrupted."""
        with self._lock:
            self._waiting = [call for call in self._waiting if call is not own and not call.results]
            if own.leads:
                self._busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].leads = True
                    self._waiting[0].woken.set()

    def _do(self, batch: list[_Call[Item, Result]]) -> None:
        results = self._work([call.item for call in batch])
        for call, result in zip(batch, results, strict=True):
            call.results.append(result)
            call.woken.set()


Questions = Sequence[str] | Sequence[npt.ArrayLike] | npt.NDArray[Any]

CACHE_SIZE = 1024
"""Questions remembered: 3 MB of vectors 768 wide."""
MAX_CACHED_BATCH = 64
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
        self._cache: OrderedDict[str, Floats] = OrderedDict()
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

    def encode(self, questions: Sequence[str]) -> Floats:
        """Float32 (q, D). Raises QueryError for vectors that cannot be searched by."""
        if len(questions) > MAX_CACHED_BATCH:
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
                while len(self._cache) > CACHE_SIZE:
                    self._cache.popitem(last=False)
            known |= found
        return np.stack([known[text] for text in questions])

    def _encoded(self, texts: Sequence[str]) -> Floats:
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
) -> tuple[Sequence[str] | None, Floats | None]:
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
