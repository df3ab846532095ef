"""A search request: check the options, join concurrent calls, encode the questions.

In the order in which a question passes: Query checks the options, Coalescer joins the questions of
several threads into one call, `split` separates texts from vectors, QuestionEncoder encodes
texts.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Event, Lock
from time import monotonic
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats
from indexer.config import integer
from searchengine.encoders import (
    TextEncoder,
    as_array,
    check_questions,
    check_shape,
    check_vectors,
    unusable,
)
from searchengine.errors import QueryError
from searchengine.query.mode import Mode
from searchengine.storage.filters.parser import parse
from trainer.errors import ModelError


class Options(TypedDict, total=False):
    """The keywords of SearchEngine.search; Query describes them."""

    shortlist: int | None
    where: str | None
    exact: bool
    mode: Mode | str
    diversity: float
    group_by: str | None
    layers: int | None


@dataclass(frozen=True, slots=True)
class Query:
    """The options of a search, checked.

    Attributes:
        k: number of documents, at least 1; fewer are returned only if fewer match.
        shortlist: candidates of each segment that are scored at full width; None: the number that
            the segment is configured with.
        where: a filter on metadata, see searchengine.storage.filters.parser.
        exact: return the true nearest documents. Only by vectors, and without a shortlist.
        mode: rank by meaning ("vector"), by words ("text", BM25) or by both ("hybrid"), see
            searchengine.storage.documents.lexical.
        diversity: 0 ranks by the score only, 1 by the difference from the hits before (maximal
            marginal relevance).
        group_by: a metadata field; return only the best document for each of its values, and all
            documents without the field.
        layers: layers of the encoder's network that encode the question, for encoders trained for
            it (2-D Matryoshka); None: all. Documents are not encoded again.

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
        """The Query for the keywords of a search. Raises QueryError for an unknown keyword."""
        valid = Options.__annotations__
        for name in options:
            if name not in valid:
                raise QueryError(
                    f"a search has no option {name!r}; its options are k, {', '.join(valid)}"
                )
        return cls(k, **options)

    @property
    def by_words(self) -> bool:
        """Whether documents are ranked by words only, so that no question is encoded."""
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
            parse(self.where)  # raises even if the collection is empty

    def _check_counts(self) -> None:
        for name in ("k", "shortlist", "layers"):
            value = getattr(self, name)
            if value is None and name != "k":
                continue
            number = integer(value)
            if number is None or number < 1:
                raise QueryError(f"{name} must be a whole number of at least 1, got {value!r}")
            object.__setattr__(self, name, number)
        if self.layers is not None and self.by_words:
            raise QueryError("layers must be None in the mode text, which encodes no question")

    def _check_exact(self) -> None:
        if self.shortlist is not None:
            raise QueryError(
                f"exact search takes no shortlist, got {self.shortlist}; leave one of the two out"
            )
        if self.mode != Mode.VECTOR:
            raise QueryError(
                f"exact search needs the mode vector, got {self.mode}; leave one of them out"
            )


Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH = 256
"""Maximum items in one call, so that the first does not wait for too many others."""
PATIENCE = 0.1
"""Time to wait for the callers of the last batch, as a fraction of the time that batch took."""


@dataclass(slots=True, eq=False)
class _Call(Generic[Item, Result]):
    item: Item
    results: list[Result] = field(default_factory=list)  # one result, or empty until it is there
    leads: bool = False  # whether this caller runs the next batch
    woken: Event = field(default_factory=Event)


class Coalescer(Generic[Item, Result]):
    """Joins the items of several threads into one call.

    If no call is running, the caller runs it immediately. Otherwise it waits, and one of the
    waiting callers then runs a batch for all of them: more callers make larger batches. Callers of
    one batch are likely to call again together, so the first of them to return waits a moment for
    the others.
    (Otherwise batches of one alternate with batches of all the others.)
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]]) -> None:
        """`work` returns a result for each item, in their order."""
        self._work = work
        self._lock = Condition()  # notified when a call arrives
        self._waiting: list[_Call[Item, Result]] = []
        self._busy = False
        self._last, self._patient_until = 1, 0.0

    def __call__(self, item: Item) -> Result:
        """The result of one item. Raises what `work` raises for this item."""
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

    def _lead(self, leader: _Call[Item, Result]) -> None:
        """Run one batch for all waiting calls."""
        with self._lock:
            self._lock.wait_for(self._all_back, max(0.0, self._patient_until - monotonic()))
            others = [call for call in self._waiting if call is not leader]
        batch = [leader, *others[: MAX_BATCH - 1]]
        start = monotonic()
        try:
            self._run(batch)
        except Exception:
            if len(batch) == 1:
                raise
            self._run([leader])  # alone, the failing item raises for its caller only
        finally:
            ended = monotonic()
            self._last = len(batch)
            self._patient_until = ended + PATIENCE * (ended - start)

    def _all_back(self) -> bool:
        return len(self._waiting) >= self._last

    def _leave(self, leaving: _Call[Item, Result]) -> None:
        """Hand the lead to the next call, if this one is done, failed or interrupted."""
        with self._lock:
            self._waiting = [
                call for call in self._waiting if call is not leaving and not call.results
            ]
            if leaving.leads:
                self._busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].leads = True
                    self._waiting[0].woken.set()

    def _run(self, batch: list[_Call[Item, Result]]) -> None:
        results = self._work([call.item for call in batch])
        for call, result in zip(batch, results, strict=True):
            call.results.append(result)
            call.woken.set()


Questions = Sequence[str] | Sequence[npt.ArrayLike] | npt.NDArray[Any]

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
    """Encodes questions with one encoder and caches them. Safe to use from several threads."""

    def __init__(self, encoder: TextEncoder) -> None:
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
            return self._encoded(questions)
        with self._lock:
            known = {text: self._cache[text] for text in questions if text in self._cache}
            for text in known:
                self._cache.move_to_end(text)
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


def split(queries: Questions, query: Query, dim: int) -> tuple[Sequence[str] | None, Floats | None]:
    """The queries as texts, or as vectors (q, D); the other is None. Raises QueryError."""
    if isinstance(queries, str):
        raise QueryError("search_batch takes a list of questions, got one text; use search")
    if len(queries) and all(isinstance(q, list | tuple | np.ndarray) for q in queries):
        queries = as_array(queries)
    if isinstance(queries, np.ndarray):
        if query.mode != Mode.VECTOR:
            raise QueryError(f"the mode {query.mode} needs questions as texts, got vectors")
        if query.layers is not None:
            raise QueryError("layers must be None for vectors, which are not encoded")
        return None, check_vectors(queries, dim)
    questions: list[str] = list(queries)  # type: ignore[arg-type]
    check_questions(questions)
    return questions, None
