"""A search request: Query checks the options, `split` and `corrected` read the questions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Snapshot
from searchengine.backends.filters.parser import field_named, parse
from searchengine.backends.lexical import phrases, unquoted
from searchengine.backends.mode import Mode
from searchengine.corpus.analyzer import normalized
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats, integer, unusable

CANDIDATES = 50
"""Documents that a `rerank` scores, where a caller says nothing."""

_KINDS: Mapping[str, tuple[Any, str]] = {
    "where": (str | None, 'a text or None; write "year >= 2015"'),
    "group_by": (str | None, "a text or None"),
    "facets": (tuple, "a list of field names"),
    "exact": (bool, "True or False"),
    "typo_tolerance": (bool, "True or False"),
    "rerank": (Callable | None, "a function of a question and its hits, or None"),
}
"""Option → its types, and their description in error messages."""


class Phrases(StrEnum):
    """What the phrases in quotation marks of a question do, in the modes text and hybrid."""

    SCORED = "scored"  # their words count as any others
    REQUIRED = "required"  # only documents that contain all of them are found


@dataclass(frozen=True)
class Query:
    """The options of a search, checked: the arguments of SearchEngine.search, described there.

    Those with a sentence are options of other doors too. Raises QueryError.
    """

    k: Annotated[int, "Number of hits."] = 10
    shortlist: Annotated[int | None, "Candidates of each segment to rerank at full width."] = None
    where: Annotated[str | None, "Metadata filter: year >= 2015 and lang in ('en', 'ko')"] = None
    exact: Annotated[bool, "Return the true nearest documents; slower."] = False
    rerank: Callable[..., Any] | None = field(default=None, hash=False)  # a Rerank
    candidates: int = CANDIDATES
    mode: Annotated[Mode | str, "Rank by vectors, words or both; auto: as stored."] = Mode.AUTO
    group_by: Annotated[str | None, "Metadata field: one hit per value."] = None
    offset: Annotated[int, "Hits to skip."] = 0
    min_score: Annotated[float | None, "Minimum score of a hit."] = None
    facets: Annotated[Sequence[str], "Metadata fields whose values are counted."] = ()
    phrases: Annotated[
        Phrases | str,
        "Find only documents with all phrases in quotation marks; else read them as words.",
    ] = Phrases.SCORED
    typo_tolerance: Annotated[bool, "Replace unknown words by the nearest known ones."] = True
    timeout: Annotated[float | None, "Seconds that the search may take."] = None

    @classmethod
    def from_options(cls, k: int, options: Mapping[str, Any]) -> Self:
        """The Query for the keywords of a search. Raises QueryError for an unknown keyword."""
        for name in options.keys() - cls.__dataclass_fields__.keys():
            valid = ", ".join(cls.__dataclass_fields__)
            raise QueryError(f"a search has no option {name!r}; its options are {valid}")
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
        return self._with(k=max(self.depth, self.candidates), offset=0)

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

    def by(self, mode: Mode) -> "Query":
        """This query with the mode auto replaced: by VECTOR if it is exact, else by `mode`."""
        if self.mode != Mode.AUTO:
            return self
        return self._with(mode=Mode.VECTOR if self.exact else mode)

    def _with(self, **options: Any) -> "Query":
        """This query with other options, which need no check."""
        changed = object.__new__(Query)
        changed.__dict__.update(self.__dict__, **options)
        return changed

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("candidates", 1), ("offset", 0), ("shortlist", 1)):
            value = getattr(self, name)
            if value is not None or name != "shortlist":
                object.__setattr__(self, name, check_count(name, value, least))
        if isinstance(self.facets, Iterable) and not isinstance(self.facets, str):
            object.__setattr__(self, "facets", tuple(self.facets))  # a Query is hashable
        for fault in self._faults():
            raise QueryError(fault)
        if self.where is not None:
            parse(self.where)  # raises even if the collection is empty
        for name in self.facets:
            field_named(name)
        for name in {"_id", "title", "text"}.intersection([*self.facets, self.group_by]):
            raise QueryError(f"facets and group_by take metadata fields, got {name!r}")

    def _faults(self) -> Iterator[str]:
        """What is wrong with the options but for whole numbers."""
        for name, (types, kind) in _KINDS.items():
            if not isinstance(value := getattr(self, name), types):
                yield f"{name} must be {kind}, got {value!r:.80}"
        if not set(map(type, self.facets)) <= {str}:
            yield f"facets must be a list of field names, got {self.facets!r:.80}"
        for name, low in (("timeout", 0), ("min_score", -inf)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and low < value < 1e300):
                kind = "a number of seconds above 0 and" if name == "timeout" else "a number"
                yield f"{name} must be {kind} below 1e300, or None, got {value!r}"
        for name, choices in (("mode", Mode), ("phrases", Phrases)):
            if str(getattr(self, name)) not in [*choices]:
                yield f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
        if self.exact and (self.shortlist is not None or self.mode not in (Mode.AUTO, Mode.VECTOR)):
            yield "exact search needs the mode vector and takes no shortlist; leave one of them out"


Questions = Sequence[str] | Sequence[npt.ArrayLike] | npt.NDArray[Any]


class Question(NamedTuple):
    """A question as a search reads it.

    Attributes:
        text: with unknown words replaced; empty for a vector.
        vector: (D,) float32; None by words.
        replaced: unknown words → the nearest that documents have.
    """

    text: str = ""
    vector: Floats | None = None
    replaced: Mapping[str, str] = {}


def split(
    queries: Questions, query: Query, settings: Mapping[str, Any], encodes: bool
) -> tuple[Query, list[Question]]:
    """The query with the mode to use, and the questions: texts or vectors (q, D).

    `settings`: of the collection. `encodes`: whether there is an encoder. Raises QueryError.
    """
    if isinstance(queries, str | Set) or not hasattr(queries, "__len__"):
        raise QueryError(f"search_batch takes a list, got {queries!r:.60}; use search or similar")
    rows = len(queries) and all(isinstance(q, list | tuple | np.ndarray) for q in queries)
    if rows or isinstance(queries, np.ndarray):
        if query.mode not in (Mode.AUTO, Mode.VECTOR):
            raise QueryError(
                f"the mode {query.mode} needs questions as texts, got vectors; leave mode out"
            )
        vectors = check_vectors(queries, settings["encoder"]["dim"])
        return query.by(Mode.VECTOR), [Question(vector=row) for row in vectors]
    texts: list[str] = list(queries)  # type: ignore[arg-type]
    check_questions(texts)
    stored = Mode(settings.get("mode", Mode.VECTOR))
    mode = Mode.TEXT if stored == Mode.HYBRID and not encodes else stored
    return query.by(mode), [*map(Question, texts)]


def corrected(
    snapshot: Snapshot, query: Query, question: Question, knows: Callable[[str], bool]
) -> Question:
    """A question with words that no document has replaced by the nearest that documents have.

    Not by vectors alone. `knows`: whether the encoder knows a word, so that it is no error.
    """
    if not query.typo_tolerance or query.mode == Mode.VECTOR:
        return question
    text, read, end, words = question.text, "", 0, dict[str, str]()
    for (start, after), new in snapshot.replacements(text).items():
        if not knows(word := text[start:after]):
            words[word], read, end = new, f"{read}{text[end:start]}{new}", after
    return Question(read + text[end:], None, words)


def check_count(name: str, value: object, least: int = 0) -> int:
    """The value as an int. Raises QueryError unless it is a whole number from `least` on."""
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
            raise QueryError(f"{name} is empty; ask for at least one word")


def as_vector(query: object) -> npt.NDArray[Any]:
    """A query that is no text, as an array (D,). Raises QueryError."""
    try:
        array = np.asarray(query)
    except ValueError:  # rows of several lengths
        array = np.zeros(0)
    if array.ndim == 1 and array.size and array.dtype.kind in "fiu":
        return array
    raise QueryError(
        f"a query must be a text or a vector of numbers, got {query!r:.80}; use search_batch for "
        "several"
    )


def check_vectors(vectors: Any, dim: int) -> Floats:
    """Query vectors as float32 (q, D). Raises QueryError."""
    try:
        array = np.asarray(vectors)
        got = f"{array.dtype} of shape {array.shape}"
    except ValueError:
        array, got = np.zeros(0), "lists of several lengths"
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        if array.ndim == 2 and array.dtype.kind in "fiu":
            got = str(array.shape[1])
        raise QueryError(f"each query vector must have {dim} numbers, got {got}")
    with np.errstate(over="ignore"):  # values beyond float32 become infinity, reported below
        single = array.astype(np.float32)
    wrong = unusable(single)
    if wrong.any():
        raise QueryError(
            f"query vectors must be finite and not all zeros in float32; "
            f"vector {int(wrong.argmax()) + 1} is not"
        )
    return single
