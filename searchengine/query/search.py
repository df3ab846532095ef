"""A checked request to hits: documents are ranked by vectors, by words or by both, then fetched."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from indexer.arrays import Floats
from searchengine.corpus.files import Document
from searchengine.errors import QueryError
from searchengine.query.diversity import mmr
from searchengine.query.request import Mode, Query
from searchengine.query.snippets import best_passage, snippet
from searchengine.storage.documents import lexical
from searchengine.storage.documents.store import Passage
from searchengine.storage.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        score: what hits are sorted by. By vectors the full-width cosine of the best passage,
            between −1 and 1; by words BM25; by both, the fused score.
        key, title, text, metadata: the document.
        start, end: its best passage, as character offsets into the text.
        question: what was asked; empty for a vector.
    """

    score: float
    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]
    start: int
    end: int
    question: str = field(default="", repr=False)

    @property
    def passage(self) -> str:
        """The text of the best passage."""
        return self.text[self.start : self.end]

    @property
    def snippet(self) -> str:
        """The part of the passage that has most words of the question, to show."""
        return snippet(self.text, self.question, self.start, self.end)

    def as_dict(self) -> dict[str, Any]:
        """All there is to show, for JSON."""
        names = ("score", "key", "title", "text", "metadata", "start", "end", "snippet")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return f"{self.score:.3f}  {self.key}  {self.title}\n       {self.snippet}"


class Hits(list[Hit]):
    """The hits of one question, best first.

    Attributes:
        proven: whether these are the true nearest, beyond doubt.
        read: the share of all rows that were read at full width; None where that was not counted.
    """

    __slots__ = ("proven", "read")

    def __init__(
        self, hits: Iterable[Hit] = (), *, proven: bool = False, read: float | None = None
    ) -> None:
        super().__init__(hits)
        self.proven = proven
        self.read = read


FUSED = 100
"""Documents of each ranking that are fused, or k if that is more."""
WEIGHTS = (0.5, 0.5)
"""Of vectors and words, where both rank; chosen on training questions, see docs/hybrid.md."""
_CANDIDATES_PER_DOCUMENT = 4  # candidates for each document that is fused
_MIN_DIVERSE = 50  # candidates among which diversity chooses, or 4 k if that is more


class Found(NamedTuple):
    """A document of an answer: its score, and the passage that it was found by."""

    score: float
    passage: Passage


@dataclass(frozen=True, slots=True)
class Ranking:
    """An answer, best first; `proven` and `read` as in Hits."""

    found: Sequence[Found]
    proven: bool = False
    read: float | None = None


Label = Callable[[Iterable[int]], Mapping[int, Hashable]]
"""Document ids → what makes two of them the same in an answer."""


def rank(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str] | None,
    vectors: Floats | None,
    *,
    without: int | None = None,
) -> list[Ranking]:
    """The answers to some questions.

    Args:
        snapshot: where to look.
        query: how to.
        questions: their texts; needed by the modes text and hybrid.
        vectors: (q, D) float32; needed by the modes vector and hybrid.
        without: a document that is no answer; by vectors only.
    """
    depth = query.k
    if query.diversity:
        depth = max(_MIN_DIVERSE, 4 * depth)
    depth = min(depth, snapshot.rows)  # nothing has more, and SQLite's numbers end at 2⁶³
    if query.mode == Mode.VECTOR:
        assert vectors is not None
        rankings = _by_vector(snapshot, query, vectors, depth, without)
    elif query.by_words:
        assert questions is not None
        rankings = [_by_text(snapshot, query, question, depth) for question in questions]
    else:
        assert questions is not None and vectors is not None
        rankings = _by_both(snapshot, query, questions, vectors, depth)
    if query.diversity:
        return [_diverse(snapshot, query, ranking) for ranking in rankings]
    return rankings


def nearest_to(snapshot: Snapshot, query: Query, key: str) -> list[Ranking]:
    """The answer to a stored document, itself left out; by the mean of its passages.

    Raises QueryError where there is none of that key, and for what needs a question.
    """
    if query.mode != Mode.VECTOR:
        raise QueryError(f"what is similar is found by vectors, got the mode {query.mode}")
    if query.layers is not None:
        raise QueryError("nothing is encoded to find what is similar; leave layers out")
    document = snapshot.store.ids_of([key]).get(key)
    if document is None:
        raise QueryError(f"{snapshot.path} has no document {key!r}")
    passages = snapshot.store.passages_of([document])
    vectors = snapshot.vectors(np.array([passage.id for passage in passages]))
    return rank(snapshot, query, None, vectors.mean(axis=0, keepdims=True), without=document)


def _by_vector(
    snapshot: Snapshot, query: Query, vectors: Floats, depth: int, without: int | None = None
) -> list[Ranking]:
    """The `depth` best documents for every vector, each by its best passage."""
    label, several = _label(snapshot, query)
    rankings = [Ranking(())] * len(vectors)
    left = np.arange(len(vectors))
    ask = (2 * depth if several else depth) + (without is not None)
    while left.size:
        result = snapshot.search(
            vectors[left],
            ask,
            shortlist=query.shortlist,
            where=query.where,
            exact=query.exact,
        )
        there = result.rows >= 0
        passages = snapshot.store.passages(result.rows[there])
        labels = label({passage.document for passage in passages})
        ends = np.cumsum(there.sum(axis=1))
        short = []
        for i, (end, inside) in enumerate(zip(ends, there, strict=True)):
            mine = passages[end - inside.sum() : end]
            nearest = {passage.document: passage for passage in reversed(mine)}
            # Stored rows are rounded, so that a computed cosine can exceed 1 by a little. The order
            # is already settled, and stays that of the scores as they were computed.
            cosines = result.scores[i][inside].clip(-1, 1)
            scored = [
                (passage.document, float(score))
                for passage, score in zip(mine, cosines, strict=True)
                if passage.document != without
            ]
            best = _distinct(scored, labels, depth)
            found = [Found(score, nearest[document]) for document, score in best]
            share = None if result.read is None else float(result.read[i] / max(1, snapshot.rows))
            rankings[left[i]] = Ranking(found, result.proven, share)
            short.append(len(found) < depth and bool(inside.all()) and inside.size >= ask)
        left, ask = left[np.array(short)], 4 * ask
    return rankings


def _by_text(snapshot: Snapshot, query: Query, question: str, depth: int) -> Ranking:
    """The `depth` best documents by BM25, each by its first passage; `hits` finds
    the one that has most of the question's words, when it has the texts."""
    best = _worded(snapshot, query, question, depth)
    passages = snapshot.store.passages_of(document for document, _ in best)
    first = {passage.document: passage for passage in reversed(passages)}
    return Ranking([Found(score, first[document]) for document, score in best])


def _worded(snapshot: Snapshot, query: Query, question: str, depth: int) -> lexical.Scored:
    """The `depth` best documents by BM25."""
    condition, parameters = snapshot.store.condition(query.where)
    label, _ = _label(snapshot, query)
    ask = depth if query.group_by is None else 4 * depth
    while True:
        scored = lexical.search(snapshot.store.scan, question, ask, condition, parameters)
        labels = label(document for document, _ in scored)
        best = _distinct(scored, labels, depth)
        if len(best) == depth or len(scored) < ask:
            return best
        ask *= 4


def _by_both(
    snapshot: Snapshot, query: Query, questions: Sequence[str], vectors: Floats, depth: int
) -> list[Ranking]:
    """Both rankings fused, see documents.lexical; of more documents where these make too few
    groups."""
    label, _ = _label(snapshot, query)
    rankings = [Ranking(())] * len(questions)
    left, each = list(range(len(questions))), max(FUSED, depth)
    while left:
        # Scores are scaled by the least of them, so the end of the ranking has to be right as well.
        wide = max(snapshot.settings["index"]["shortlist"], _CANDIDATES_PER_DOCUMENT * each)
        alone = replace(query, group_by=None, shortlist=query.shortlist or wide)
        short = []
        for i, near in zip(left, _by_vector(snapshot, alone, vectors[left], each), strict=True):
            worded = _worded(snapshot, alone, questions[i], each)
            scored = [(found.passage.document, found.score) for found in near.found]
            fused = lexical.weighted([scored, worded], WEIGHTS)
            best = _distinct(fused, label(document for document, _ in fused), depth)
            passages = {found.passage.document: found.passage for found in near.found}
            missing = [document for document, _ in best if document not in passages]
            passages |= _nearest_passages(snapshot, missing, vectors[i])
            rankings[i] = Ranking([Found(score, passages[document]) for document, score in best])
            if len(best) < depth and each in (len(scored), len(worded)):
                short.append(i)
        left, each = short, 4 * each
    return rankings


def _diverse(snapshot: Snapshot, query: Query, ranking: Ranking) -> Ranking:
    """k of the candidates by maximal marginal relevance."""
    if not ranking.found:
        return ranking
    relevance = np.array([found.score for found in ranking.found], np.float32)
    if query.mode != Mode.VECTOR:  # not cosines: brought to the same scale
        relevance = (relevance - relevance.min()) / (np.ptp(relevance) or 1)
    vectors = snapshot.vectors(np.array([found.passage.id for found in ranking.found]))
    chosen = mmr(relevance, vectors, min(query.k, len(relevance)), query.diversity)
    return Ranking([ranking.found[i] for i in chosen])


def _label(snapshot: Snapshot, query: Query) -> tuple[Label, bool]:
    """What makes two passages the same hit, and whether several may be."""
    if query.group_by is None:
        return lambda documents: {i: i for i in documents}, snapshot.cuts
    field = query.group_by
    return lambda documents: snapshot.store.values(documents, field), True


def _distinct(scored: lexical.Scored, labels: Mapping[int, Hashable], most: int) -> lexical.Scored:
    """The first document of every label, at most so many."""
    found: dict[Hashable, tuple[int, float]] = {}
    for document, score in scored:
        if len(found) == most:
            break
        found.setdefault(labels[document], (document, score))
    return list(found.values())


def _nearest_passages(
    snapshot: Snapshot, documents: Sequence[int], vector: Floats
) -> dict[int, Passage]:
    """The passage of each document that is nearest to a vector."""
    passages = snapshot.store.passages_of(documents)
    if not passages:
        return {}
    unit = vector / np.linalg.norm(vector)
    cosines = snapshot.vectors(np.array([passage.id for passage in passages])) @ unit
    best: dict[int, Passage] = {}
    for i in np.lexsort((np.arange(len(passages)), -cosines)):
        best.setdefault(passages[i].document, passages[i])
    return best


def hits(
    snapshot: Snapshot,
    rankings: Sequence[Ranking],
    questions: Sequence[str] | None,
    *,
    by_words: bool = False,
) -> list[Hits]:
    """The hits of some questions (None: vectors), each at most `k`.

    `by_words`: the ranking knows no passages; those with most words of the question are shown.
    """
    ids = [found.passage.document for ranking in rankings for found in ranking.found]
    documents = iter(snapshot.store.documents(ids))
    several: dict[int, list[Passage]] = {}
    if by_words:
        for passage in snapshot.store.passages_of(set(ids)):
            several.setdefault(passage.document, []).append(passage)

    def hit(score: float, passage: Passage, document: Document, question: str) -> Hit:
        start, end = passage.start, passage.end
        if by_words and len(several[passage.document]) > 1:
            spans = [(each.start, each.end) for each in several[passage.document]]
            start, end = best_passage(document.text, question, spans)
        return Hit(
            score, document.key, document.title, document.text, document.metadata,
            start, end, question,
        )  # fmt: skip

    return [
        Hits(
            (hit(found.score, found.passage, next(documents), question) for found in ranking.found),
            proven=ranking.proven,
            read=ranking.read,
        )
        for ranking, question in zip(rankings, questions or [""] * len(rankings), strict=True)
    ]
