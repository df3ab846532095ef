"""Documents in the order of an answer: by vectors, by words, or by both."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine import lexical
from searchengine.diversity import mmr
from searchengine.query import Mode, Query
from searchengine.snapshot import Snapshot
from searchengine.store import Passage

Vectors = npt.NDArray[np.float32]
FUSED = 100
"""Documents of each ranking that are fused, or k if that is more."""
WEIGHTS = (0.5, 0.5)
"""Of vectors and words, where both rank; chosen on training questions, see docs/hybrid.md."""
_WIDE = 4  # candidates for each document that is fused
_FEWEST_DIVERSE = 50  # candidates among which diversity chooses, or 4 k if that is more


class Found(NamedTuple):
    """A document of an answer: its score, and the passage that it was found by."""

    score: float
    passage: Passage


@dataclass(frozen=True, slots=True)
class Ranking:
    """An answer, best first; `proven` and `read` as in searchengine.results.Hits."""

    found: Sequence[Found]
    proven: bool = False
    read: float | None = None


Label = Callable[[Iterable[int]], Mapping[int, Hashable]]
"""Document ids → what makes two of them the same in an answer."""


def rank(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str] | None,
    vectors: Vectors | None,
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
        depth = max(_FEWEST_DIVERSE, 4 * depth)
    if query.mode == Mode.VECTOR:
        assert vectors is not None
        rankings = _by_vector(snapshot, query, vectors, depth, without)
    elif query.mode == Mode.TEXT:
        assert questions is not None
        rankings = [_by_text(snapshot, query, question, depth) for question in questions]
    else:
        assert questions is not None and vectors is not None
        rankings = _by_both(snapshot, query, questions, vectors, depth)
    if query.diversity:
        return [_diverse(snapshot, query, ranking) for ranking in rankings]
    return rankings


def _by_vector(
    snapshot: Snapshot, query: Query, vectors: Vectors, depth: int, without: int | None = None
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
            scored = zip(result.scores[i][inside], mine, strict=True)
            others = (pair for pair in scored if pair[1].document != without)
            found = _distinct(others, labels, depth)
            share = None if result.read is None else float(result.read[i] / max(1, snapshot.rows))
            rankings[left[i]] = Ranking(found, result.proven, share)
            short.append(len(found) < depth and bool(inside.all()) and inside.size >= ask)
        left, ask = left[np.array(short)], 4 * ask
    return rankings


def _by_text(snapshot: Snapshot, query: Query, question: str, depth: int) -> Ranking:
    """The `depth` best documents by BM25, each by its first passage; searchengine.answers finds
    the one that has most of the question's words, when it has the texts."""
    condition, parameters = snapshot.store.condition(query.where)
    label, _ = _label(snapshot, query)
    ask = depth if query.group_by is None else 4 * depth
    while True:
        scored = lexical.search(snapshot.store.read, question, ask, condition, parameters)
        labels = label(document for document, _ in scored)
        passages = snapshot.store.passages_of(document for document, _ in scored)
        first = {passage.document: passage for passage in reversed(passages)}
        found = _distinct(((score, first[document]) for document, score in scored), labels, depth)
        if len(found) == depth or len(scored) < ask:
            return Ranking(found)
        ask *= 4


def _by_both(
    snapshot: Snapshot, query: Query, questions: Sequence[str], vectors: Vectors, depth: int
) -> list[Ranking]:
    """Both rankings fused, see searchengine.lexical."""
    each = max(FUSED, depth)
    # Scores are scaled by the least of them, so the end of the ranking has to be right as well.
    wide = max(snapshot.settings["index"]["shortlist"], _WIDE * each)
    shortlist = query.shortlist or wide
    alone = replace(query, mode=Mode.VECTOR, group_by=None, shortlist=shortlist)
    label, _ = _label(snapshot, query)
    fused = []
    for near, question, vector in zip(
        _by_vector(snapshot, alone, vectors, each), questions, vectors, strict=True
    ):
        worded = _by_text(snapshot, replace(alone, mode=Mode.TEXT), question, each)
        passages = {found.passage.document: found.passage for found in near.found}
        rankings = [
            [(found.passage.document, found.score) for found in ranking.found]
            for ranking in (near, worded)
        ]
        scored = lexical.weighted(rankings, WEIGHTS)
        missing = [document for document, _ in scored if document not in passages]
        passages |= _nearest_passages(snapshot, missing, vector)
        labels = label(document for document, _ in scored)
        pairs = ((score, passages[document]) for document, score in scored)
        fused.append(Ranking(_distinct(pairs, labels, depth)))
    return fused


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
        documents, passages = snapshot.counts
        return lambda documents: {i: i for i in documents}, passages > documents
    field = query.group_by
    return lambda documents: snapshot.store.values(documents, field), True


def _distinct(
    scored: Iterable[tuple[float, Passage]], labels: Mapping[int, Hashable], most: int
) -> list[Found]:
    """The first of every label, at most so many."""
    found: dict[Hashable, Found] = {}
    for score, passage in scored:
        if len(found) == most:
            break
        found.setdefault(labels[passage.document], Found(float(score), passage))
    return list(found.values())


def _nearest_passages(
    snapshot: Snapshot, documents: Sequence[int], vector: Vectors
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
