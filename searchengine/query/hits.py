"""Hits, as a search returns them, and the ranks that explain why it finds a document or not."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any, Self, SupportsIndex, overload

import numpy.typing as npt

from searchengine.backends.entries import Counts
from searchengine.corpus.analyzer import DEFAULT, Analyzer
from searchengine.query.snippets import WIDTH, matched_words, snippet


@dataclass(slots=True)
class Hit:
    """A document found.

    Attributes:
        score: hits are sorted by it. By vectors, the full-width cosine of the best passage, between
            −1 and 1; by words, BM25; by both, a weighted sum of at most 1
            (searchengine.query.ranking.Fusion). Of the candidates of `rerank`, its number.
        key, title, text, metadata: the document.
        start, end: its best passage, as character offsets into the text.
        question: the text of the question, with the words of its synonyms; empty for a vector.
        scores: what `score` is made of: the cosine as "vector", BM25 as "text". After `rerank`
            its number as "rerank" too, and the score before under its mode.
        analyzer: tells the words to mark.
    """

    score: float
    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]
    start: int
    end: int
    question: str = field(default="", repr=False)
    scores: Mapping[str, float] = field(default_factory=dict)
    analyzer: Analyzer = field(default=DEFAULT, repr=False, compare=False)

    @property
    def passage(self) -> str:
        """The text of the best passage."""
        return self.text[self.start : self.end]

    @property
    def snippet(self) -> str:
        """The part of the passage with most words of the question; code keeps its lines."""
        return snippet(self.text, self.question, self.start, self.end, WIDTH, self.analyzer)

    @property
    def highlights(self) -> list[str]:
        """The words of title and snippet that the question asks for, to mark them; lower case.

        Of Korean, and of scripts without spaces, parts of words: two letters or three.
        """
        return matched_words(f"{self.title}\n{self.snippet}", self.question, self.analyzer)

    def as_dict(self) -> dict[str, Any]:
        """The fields to show, for JSON."""
        snippet = self.snippet  # which the highlights are of
        return {
            "score": self.score,
            "key": self.key,
            "title": self.title,
            "text": self.text,
            "metadata": self.metadata,
            "start": self.start,
            "end": self.end,
            "snippet": snippet,
            "highlights": matched_words(f"{self.title}\n{snippet}", self.question, self.analyzer),
            "scores": self.scores,
        }

    def __str__(self) -> str:
        title = f"  {self.title}" if self.title else ""
        snippet = self.snippet.replace("\n", "\n       ")
        return f"{_shown(self.score)}  {self.key}{title}\n       {snippet}"


class Hits(list[Hit]):
    """The hits of one question, best first.

    Attributes:
        exact: whether these are certainly the true nearest documents.
        facets: field → value → number of documents that match the filter, most frequent first,
            for the fields in the option `facets`. Of a list each element counts.
        notes: sentences on why there are no hits: fields of the filter that no document has.
        replaced: unknown words of the question → the words searched for instead.
    """

    exact: bool = False
    facets: Mapping[str, Counts] = {}
    notes: tuple[str, ...] = ()
    replaced: Mapping[str, str] = {}

    @overload
    def __getitem__(self, place: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Hit | Self:
        """A hit, or some of the hits as Hits with the same attributes."""
        if not isinstance(place, slice):
            return super().__getitem__(place)
        part = copy(self)
        part[:] = super().__getitem__(place)
        return part

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict for each hit, as `Hit.as_dict`."""
        return [hit.as_dict() for hit in self]


Rerank = Callable[[str, Sequence[Hit]], Sequence[float] | npt.NDArray[Any]]
"""A question and its hits → a number for each hit; higher is better."""


def _shown(score: float) -> str:
    """Three decimals; three significant digits of a score below, which would be shown as 0.000."""
    return f"{score:.2e}" if 0 < abs(score) < 1e-3 else f"{score:.3f}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a document ranks for a question, and whether a search finds it; a sentence as text.

    Ranks begin with 1; None: the mode has no such rank, or the document has none.

    Attributes:
        key: of the document.
        rank: its rank in the search; None: the search does not find it.
        matches: whether the filter holds for it; None: there is no filter.
        vector: its rank by the full-width cosine of its best passage, among all that match.
        words: its rank by BM25, among all that match.
        shortlist: the best rank of its passages by the prefix, in their segments; None too where
            all passages are compared at full width.
        fused: its rank in the mode of the search, before group_by, min_score and rerank.
    """

    key: str
    rank: int | None = None
    matches: bool | None = None
    vector: int | None = None
    words: int | None = None
    shortlist: int | None = None
    fused: int | None = None

    @property
    def found(self) -> bool:
        """Whether the search finds it."""
        return self.rank is not None

    def as_dict(self) -> dict[str, Any]:
        """The fields, and the sentence as `text`, for JSON."""
        return {**asdict(self), "text": str(self)}

    def __str__(self) -> str:
        if self.matches is False:
            return "Not found: the filter does not hold for it."
        names = {"fused": "search", "vector": "vectors", "words": "words", "shortlist": "prefix"}
        ranks = [(getattr(self, field), name) for field, name in names.items()]
        listed = [f"{rank:,} by {name}" for rank, name in ranks if rank]
        verdict = f"Found at rank {self.rank:,}" if self.rank else "Not found"
        return f"{verdict}: rank {', '.join(listed)}." if listed else f"{verdict}: it has no rank."
