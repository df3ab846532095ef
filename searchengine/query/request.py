"""A search request: Query checks the options, `split` separates texts from vectors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any, Self, TypedDict

import numpy as np
import numpy.typing as npt

from searchengine.backends.filters.parser import field_named, parse
from searchengine.backends.mode import Mode
from searchengine.backends.quotes import phrases, unquoted
from searchengine.corpus.normalization import normalized
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats, unusable
from searchengine.indexer.config import integer
from searchengine.query.hits import Hit

Rerank = Callable[[str, Sequence[Hit]], Sequence[float] | npt.NDArray[Any]]
"""A question and its hits → a number for each hit; higher is better."""
CANDIDATES = 50
"""Documents that a `rerank` scores, where a caller says nothing."""


class Phrases(StrEnum):
    """What the phrases in quotation marks of a question do, in the modes text and hybrid."""

    SCORED = "scored"  # documents that contain them rank higher
    REQUIRED = "required"  # only documents that contain all of them are found


class Options(TypedDict, total=False):
    """The keywords of SearchEngine.search."""

    shortlist: int | None
    where: str | None
    exact: bool
    rerank: Rerank | None
    candidates: int
    mode: Mode | str
    group_by: str | None
    offset: int
    min_score: float | None
    facets: Sequence[str]
    phrases: Phrases | str
    typo_tolerance: bool
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Query:
    """The options of a search, checked: the arguments of SearchEngine.search, described there.

    Raises QueryError.
    """

    k: int = 10
    shortlist: int | None = None
    where: str | None = None
    exact: bool = False
    rerank: Rerank | None = field(default=None, hash=False)  # which need not be hashable
    candidates: int = CANDIDATES
    mode: Mode | str = Mode.AUTO
    group_by: str | None = None
    offset: int = 0
    min_score: float | None = None
    facets: Sequence[str] = ()
    phrases: Phrases | str = Phrases.SCORED
    typo_tolerance: bool = True
    timeout: float | None = None

    @classmethod
    def from_options(cls, k: int, options: Options) -> Self:
        """The Query for the keywords of a search. Raises QueryError for an unknown keyword."""
        valid = Options.__annotations__
        for name in options:
            if name not in valid:
                raise QueryError(
                    f"a search has no option {name!r}; its options are k, {', '.join(valid)}"
                )
        return cls(k, **options)

    @property
    def depth(self) -> int:
        """How many documents to rank: those to skip, and those to show."""
        return self.offset + self.k

    @property
    def before_rerank(self) -> "Query":
        """The search for what `rerank` scores and the page shows."""
        if self.rerank is None or self.offset >= self.candidates:
            return self
        return replace(self, k=max(self.depth, self.candidates), offset=0)

    @property
    def by_words(self) -> bool:
        """Whether documents are ranked by words only, so that no question is encoded."""
        return self.mode == Mode.TEXT

    def required(self, question: str) -> tuple[str, ...]:
        """The phrases that documents must contain; by vectors none."""
        if self.mode == Mode.VECTOR:
            return ()
        all_required = self.phrases == Phrases.REQUIRED
        return tuple(phrase.text for phrase in phrases(question) if all_required or phrase.required)

    def to_encode(self, questions: Sequence[str]) -> Sequence[str]:
        """The questions, normalized, without the marks around phrases where words count too."""
        questions = [*map(normalized, questions)]
        if self.mode != Mode.HYBRID:
            return questions
        return [unquoted(question) if phrases(question) else question for question in questions]

    @property
    def without_question(self) -> "Query":
        """The query for documents similar to stored ones. Raises QueryError: needs a text."""
        query = self.by(Mode.VECTOR)
        if query.mode != Mode.VECTOR:
            raise QueryError(
                f"similar documents need the mode vector, got {query.mode}; leave mode out"
            )
        return query

    def by(self, mode: Mode) -> "Query":
        """This query with the mode auto replaced: by VECTOR if it is exact, else by `mode`."""
        if self.mode != Mode.AUTO:
            return self
        return replace(self, mode=Mode.VECTOR if self.exact else mode)

    def __post_init__(self) -> None:
        self._check_counts()
        for name in ("where", "group_by"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                hint = '; write "year >= 2015"' if name == "where" else ""
                raise QueryError(f"{name} must be a text or None, got {text!r}{hint}")
        if self.mode not in list(Mode):
            raise QueryError(f"mode must be one of {', '.join(Mode)}, got {self.mode!r}")
        if self.exact:
            self._check_exact()
        if self.where is not None:
            parse(self.where)  # raises even if the collection is empty
        limit = self.timeout
        if limit is not None and (type(limit) not in (int, float) or not 0 < limit < inf):
            raise QueryError(f"timeout must be a number of seconds above 0, or None, got {limit!r}")
        self._check_presentation()

    def _check_counts(self) -> None:
        for name, least in (("k", 1), ("candidates", 1), ("offset", 0), ("shortlist", 1)):
            value = getattr(self, name)
            if value is not None or name != "shortlist":
                object.__setattr__(self, name, check_count(name, value, least))

    def _check_presentation(self) -> None:
        if isinstance(self.facets, Iterable) and not isinstance(self.facets, str):
            object.__setattr__(self, "facets", tuple(self.facets))  # a Query is hashable
        least = self.min_score
        if least is not None and (type(least) not in (int, float) or not isfinite(least)):
            raise QueryError(f"min_score must be a number or None, got {least!r}")
        if self.rerank is not None and not callable(self.rerank):
            raise QueryError(
                f"rerank must be a function of a question and its hits, or None, got "
                f"{self.rerank!r:.80}"
            )
        if type(self.typo_tolerance) is not bool:
            raise QueryError(f"typo_tolerance must be True or False, got {self.typo_tolerance!r}")
        if self.phrases not in list(Phrases):
            raise QueryError(f"phrases must be one of {', '.join(Phrases)}, got {self.phrases!r}")
        self._check_fields()

    def _check_fields(self) -> None:
        if not isinstance(self.facets, tuple) or not all(
            isinstance(name, str) for name in self.facets
        ):
            raise QueryError(
                f"facets must be a list of field names, got {self.facets!r}; "
                "put one name into a list"
            )
        for name in self.facets:
            field_named(name)
        for option in (*self.facets, self.group_by):
            if option in ("_id", "title", "text"):
                raise QueryError(f"facets and group_by take metadata fields, got {option!r}")

    def _check_exact(self) -> None:
        if self.shortlist is not None:
            raise QueryError(
                f"exact search takes no shortlist, got {self.shortlist}; leave one of the two out"
            )
        if self.mode not in (Mode.AUTO, Mode.VECTOR):
            raise QueryError(
                f"exact search needs the mode vector, got {self.mode}; leave one of them out"
            )


Questions = Sequence[str] | Sequence[npt.ArrayLike] | npt.NDArray[Any]


def split(
    queries: Questions, query: Query, settings: Mapping[str, Any], encodes: bool
) -> tuple[Query, Sequence[str] | None, Floats | None]:
    """The query with the mode to use, and the queries as texts or as vectors (q, D); one is None.

    `settings`: of the collection. `encodes`: whether there is an encoder. Raises QueryError.
    """
    if isinstance(queries, str):
        raise QueryError("search_batch takes a list of questions, got one text; use search")
    if queries is None:
        raise QueryError("search_batch takes questions or vectors, got None; use search or similar")
    if len(queries) and all(isinstance(q, list | tuple | np.ndarray) for q in queries):
        queries = as_array(queries)
    if isinstance(queries, np.ndarray):
        if query.mode not in (Mode.AUTO, Mode.VECTOR):
            raise QueryError(f"the mode {query.mode} needs questions as texts, got vectors")
        return query.by(Mode.VECTOR), None, check_vectors(queries, settings["encoder"]["dim"])
    questions: list[str] = list(queries)  # type: ignore[arg-type]
    check_questions(questions)
    stored = Mode(settings.get("mode", Mode.VECTOR))
    return query.by(Mode.TEXT if stored == Mode.HYBRID and not encodes else stored), questions, None


def check_filter(where: str | None) -> None:
    """Raise QueryError or FilterError now, not when an iterator is first used."""
    Query(where=where)


def check_count(name: str, value: object, least: int = 0) -> int:
    """The whole number. Raises QueryError for what is none, or below `least`."""
    if (number := integer(value)) is None or number < least:
        raise QueryError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def check_questions(questions: Sequence[str]) -> None:
    """Raise QueryError for a query that is not text, or empty."""
    if isinstance(questions, str):
        raise QueryError(f"expected a list of texts, got {questions!r:.80}; put it into a list")
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


def check_vectors(vectors: npt.ArrayLike, dim: int) -> Floats:
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
