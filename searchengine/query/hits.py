"""Hits of a ranking, each with the passage to show, and why a search finds a document or not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from math import inf
from typing import Any, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from searchengine.backends import limits
from searchengine.backends.contract import Snapshot, Span
from searchengine.backends.entries import Counts, facet, ids_of
from searchengine.backends.lexical import with_added
from searchengine.backends.mode import Mode
from searchengine.corpus.analyzer import DEFAULT, Analyzer
from searchengine.errors import QueryError
from searchengine.query.ranking import MAX_DEPTH, Part, Ranking, Shares, rank
from searchengine.query.request import Query, Question
from searchengine.query.snippets import WIDTH, matched_words, snippet, word_counts


@dataclass(slots=True)
class Hit:
    """A document found.

    Attributes:
        score: hits are sorted by it. By vectors, the full-width cosine of the best passage, between
            −1 and 1; by words, BM25; by both, a weighted sum of at most 1
            (searchengine.query.ranking.Fusion). After `rerank`, the number that it gave.
        key, title, text, metadata: the document.
        start, end: its best passage, as character offsets into the text.
        question: the text of the question, with the words of its synonyms; empty for a vector.
        scores: what `score` is made of: the cosine as "vector", BM25 as "text". After `rerank`
            also "rerank", its number; the score before it is kept under the name of the mode.
        analyzer: finds the words to mark.
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
        snippet = self.snippet  # once: the highlights need it too
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

    __slots__ = ("exact", "facets", "notes", "replaced")

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        *,
        exact: bool = False,
        facets: Mapping[str, Counts] | None = None,
    ) -> None:
        super().__init__(hits)
        self.exact = exact
        self.facets = {} if facets is None else facets
        self.notes: tuple[str, ...] = ()
        self.replaced: Mapping[str, str] = {}

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
    """Three decimals; below 0.001 three significant digits."""
    return f"{score:.2e}" if 0 < abs(score) < 1e-3 else f"{score:.3f}"


def hits(
    snapshot: Snapshot, query: Query, questions: Sequence[Question], rankings: Sequence[Ranking]
) -> list[Hits]:
    """The hits of several questions, with their documents."""
    every = Part(*map(np.concatenate, zip(*[ranking.part for ranking in rankings], strict=True)))
    documents = iter(snapshot.documents(every.documents.tolist()))
    facets = {name: facet(snapshot, name, query.where) for name in query.facets}
    shares_of: list[dict[int, dict[int, float]]] = [{}] * len(rankings)
    if query.mode == Mode.TEXT and snapshot.settings.get("passages") is not None:
        shares_of = [_by_words_alone(snapshot, every)] * len(rankings)
    elif query.mode == Mode.HYBRID:
        shares_of = [each.by_document(part) if each else {} for part, _, each, _ in rankings]
    shown = chain(every.passages.tolist(), *chain.from_iterable(map(dict.values, shares_of)))
    passages = snapshot.passages(np.array([*{*shown} - {-1}], np.int64))
    columns = (passages.ids.tolist(), passages.starts.tolist(), passages.ends.tolist())
    spans = {passage: (start, end) for passage, start, end in zip(*columns, strict=True)}
    answers, analyzer = [], Analyzer.parse(snapshot.settings["tokenizer"])
    for question, (part, exact, *_), shares in zip(questions, rankings, shares_of, strict=True):
        text, answer = question.text, Hits(exact=exact, facets=facets)
        if query.mode != Mode.VECTOR:
            text = with_added(text, snapshot.settings)
        for number, best, score, cosine, bm25 in zip(*map(np.ndarray.tolist, part), strict=True):
            document, scores = next(documents), dict[str, float]()
            if cosine > -inf:
                scores["vector"] = cosine
            if bm25 < inf:
                scores["text"] = bm25
            if number in shares:
                best = _passage(document.text, text, score, shares[number], spans, analyzer)
            start, end = spans[best] if best in spans else (0, len(document.text))
            answer.append(Hit(score, *document, start, end, text, scores, analyzer))
        answers.append(answer)
    return answers


def reranked(answer: Hits, question: str, query: Query) -> Hits:
    """The page, once `query.rerank` has ordered the best candidates; the others stay behind them.

    `answer`: the hits of `query.before_rerank`. `question`: empty for a vector. Raises QueryError
    for what are no scores, and whatever the function raises.
    """
    if query.rerank is None or query.offset >= query.candidates or not answer:
        return answer
    candidates = answer[: query.candidates]
    scores = query.rerank(question, candidates[:])
    limits.check()
    try:
        numbers = np.asarray(scores).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, RuntimeError):
        numbers = np.zeros(0)
    if numbers.shape != (len(candidates),) or not np.isfinite(numbers).all():
        raise QueryError(
            f"rerank must return one finite number for each of {len(candidates)} hits, got "
            f"{scores!r:.80}"
        )
    ordered = [
        replace(
            hit, score=score, scores={**hit.scores, str(query.mode): hit.score, "rerank": score}
        )
        for hit, score in zip(candidates, numbers.tolist(), strict=True)
    ]
    ordered.sort(key=lambda hit: (-hit.score, hit.key))
    answer[:] = [*ordered, *answer[query.candidates :]][query.offset : query.depth]
    answer.exact = False
    return answer


def _by_words_alone(snapshot: Snapshot, part: Part) -> dict[int, dict[int, float]]:
    """As Shares.by_document, with shares of 0."""
    documents, first = part.documents.tolist(), part.passages.tolist()
    known = {i: passage for i, passage in zip(documents, first, strict=True) if passage >= 0}
    ids, owners, *_ = snapshot.passages(of=documents, known=known)
    return Shares(ids, owners, np.zeros(ids.size)).by_document(part)


def _passage(
    text: str,
    question: str,
    score: float,
    shares: Mapping[int, float],
    spans: Mapping[int, Span],
    analyzer: Analyzer,
) -> int:
    """Which passage of a document its score chooses; the first of equals.

    A passage has the share of its own cosine, and of what words added to the score of the document
    as much as it has of their weight, compared with the passage that has most.
    """
    if len(shares) == 1:
        return next(iter(shares))
    limits.check()
    second, first = sorted(shares.values())[-2:]
    words = max(0.0, score - first)
    passages = sorted(shares)
    if first > second + words:  # whatever the words are
        return max(passages, key=shares.__getitem__)
    weights = word_counts(text, question, [spans[passage] for passage in passages], analyzer)
    most = max(weights) or 1.0
    sums = [
        shares[passage] + words * weight / most
        for passage, weight in zip(passages, weights, strict=True)
    ]
    return passages[sums.index(max(sums))]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a document ranks for a question, and whether a search finds it; `str`: in a sentence.

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


def explain(snapshot: Snapshot, query: Query, key: str, question: Question) -> Explanation:
    """Where a document ranks in a search. `query`: with the mode to use. Raises QueryError."""
    where = query.where
    if (document := ids_of(snapshot, [key]).get(key)) is None:
        raise QueryError(f"no document has the key {key!r:.80}; refresh shows newer documents")
    if where is not None and document not in snapshot.ids_after(document - 1, where, 1):
        return Explanation(key, matches=False)

    def place(query: Query) -> int | None:
        (ranking,) = rank(snapshot, query.before_rerank, [question])
        found = (ranking.part.documents == document).tolist()
        if query.rerank is not None:
            (page,) = hits(snapshot, query, [question], [ranking])
            found = [hit.key == key for hit in reranked(page, question.text, query)]
        return found.index(True) + 1 if True in found else None

    whole = replace(query, k=MAX_DEPTH, offset=0, group_by=None, min_score=None, rerank=None)
    ranks = {"fused": place(whole)}
    if question.vector is not None:
        nearest = replace(whole, mode=Mode.VECTOR, exact=True, shortlist=None)
        passages = snapshot.passages(of=[document]).ids
        places = snapshot.prefix_ranks(question.vector, passages, where, query.shortlist)
        ranks |= {"vector": place(nearest), "shortlist": min(places, default=None)}
    if query.mode != Mode.VECTOR:
        ranks["words"] = place(replace(whole, mode=Mode.TEXT))
    at = place(query)
    matches = None if where is None else True
    return Explanation(key, at and at + query.offset, matches, **ranks)
