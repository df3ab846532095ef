"""From a checked request to ranked documents: candidates by vectors and by words, in one order.

The order of a question is made of parts of fixed sizes, whatever k and offset are: so pages are one
answer, cut. The first part is the pool: the best by vectors and by words, fused. Most searches need
no other. What follows is by vectors, or in the mode text by words, each part eight times the last.
"""

import json
from collections.abc import Hashable, Iterator, Sequence, Set
from itertools import pairwise, repeat
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.backends import limits
from searchengine.backends.contract import Snapshot, WordScores
from searchengine.backends.entries import keys_of, metadata_of
from searchengine.backends.filters.parser import field_named
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.query.request import Query, Question

PASSAGES = 200
"""Passages that the pool takes by vectors: a query's shortlist, or the collection's up to this."""
WINDOW = 100
"""Documents of the pool by words. With 200, nDCG@10 differed by
−.0021, +.0012 and −.0001 on three collections, within noise."""
MEAN = 0.3
"""Weight of the mean cosine of a document's passages, times 1 − 2/n for n of them; the nearest has
the rest. Chosen on code, abstracts and articles: docs/searching.md."""
BETWEEN = 0.35
"""`unrelated` is a mean of two cosines: this is the weight of that between passages; that to the
question has the rest. Chosen in docs/results.md."""
_BY_WORDS = 10  # documents of the first part where words alone rank: each more takes time
_GROWTH = 8  # factor from each part to the next
_MIN_FIRST = 10  # passages of the pool, at least
MAX_DEPTH = 1 << 40
"""More documents than a collection holds; SQLite's integers end at 2⁶³."""
_LIMITED = 16  # questions that are compared together where their time is limited
_DECIMALS = 6
"""Of a cosine in the mode hybrid: equal texts must tie, and their vectors may differ in the last
bits where they were encoded in different batches."""
_Column = npt.NDArray[Any]


class Fusion(NamedTuple):
    """Cosine and BM25 of a document as one score; chosen in docs/results.md.

        weight · max(0, cosine − unrelated) / (1 − unrelated) + (1 − weight) · BM25 / scale

    A convex combination, as in Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid
    Retrieval", 2023. Both scales belong to the collection and the question, not to the result: an
    encoder that does not read the question gives cosines that hardly differ, and they stay so.

    Attributes:
        scale: the BM25 that counts as 1.
        unrelated: the cosine of unrelated passages, which counts as 0, as does any below. Those
            that are similar have a high one with each other, and often a lower one with a question.
        weight: weight of the cosine, 0–1.
    """

    scale: float
    unrelated: float = 0.0
    weight: float = WEIGHT

    def score(self, cosine: Any, bm25: Any) -> Any:
        """The scores, 0–1, of documents: numbers or arrays (n,). Without a vector: cosine −inf."""
        share = np.maximum(0.0, cosine - self.unrelated) / (1 - self.unrelated)
        return np.minimum(1.0, self.weight * share + (1 - self.weight) * bm25 / self.scale)


class Part(NamedTuple):
    """Documents, best first, an array (n,) each; a missing cosine is −∞, a missing BM25 NaN."""

    documents: _Column
    passages: _Column
    scores: _Column
    cosines: _Column
    bm25: _Column

    def take(self, chosen: _Column | slice | list[int]) -> "Part":
        """Some of the documents."""
        return Part(*[column[chosen] for column in self])


_NONE = Part(*np.zeros((2, 0), np.int64), *np.zeros((3, 0)))


class Ranking(NamedTuple):
    """Documents, best first.

    Attributes:
        part: the documents.
        exact: as in Hits.
        shares: in the mode hybrid, of the passages of the pool.
        all: whether a search by vectors found all that match, so that no part follows.
    """

    part: Part
    exact: bool = False
    shares: "Shares | None" = None
    all: bool = False


class Shares(NamedTuple):
    """Passages, an array (n,) each; `shares`: what cosines add to a score, 0 by words alone."""

    passages: _Column
    documents: _Column
    shares: _Column

    def by_document(self, part: Part) -> dict[int, dict[int, float]]:
        """Document → passage → share, of some documents: those with words of the question."""
        found: dict[int, dict[int, float]] = {}
        here = np.isin(self.documents, part.documents[part.bm25 > 0])
        columns = [column[here].tolist() for column in self]
        for passage, document, share in zip(*columns, strict=True):
            found.setdefault(document, {})[passage] = share
        return found


def rank(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[Question],
    *,
    without: Set[int] = frozenset(),
) -> list[Ranking]:
    """The documents to show for several questions, except those in `without`.

    Questions have texts in the modes text and hybrid, and vectors in the modes vector and hybrid.
    """
    together = len(questions) if limits.current().deadline.at == inf else _LIMITED
    if any([query.required(question.text) for question in questions]):  # a filter for each
        together = 1
    rankings = []
    for start in range(0, len(questions), together or 1):
        limits.check()
        batch = questions[start : start + together]
        near = [None] * len(batch) if query.by_words else nearest(snapshot, query, batch, 0)
        for question, first in zip(batch, near, strict=True):
            parts = _parts(snapshot, query, question, first)
            rankings.append(_ranking(snapshot, query, parts, without))
    return rankings


def rank_by_weights(
    snapshot: Snapshot, questions: Sequence[Question], weights: Sequence[float], depth: int
) -> list[dict[float, list[str]]]:
    """For each question: weight (0: words alone, 1: vectors) → keys of its first `depth`."""
    query, ranked = Query(depth, mode=Mode.HYBRID), []
    for question in questions:
        (near,) = nearest(snapshot, query, [question], 0)
        words = _by_words(snapshot, query, question, WINDOW)
        fusion = fusion_of(snapshot, question.vector, words)
        pool, _ = _pool(snapshot, question, near.part, words, fusion)
        parts = {0.0: _by_bm25(words), 1.0: near.part}
        for weight in weights:
            if weight not in parts:
                parts[weight] = _fused(pool, fusion._replace(weight=weight), pool.scores)
        ids = {w: _ties_by_key(snapshot, parts[w], depth).documents[:depth] for w in weights}
        ranked.append({w: keys_of(snapshot, ids[w].tolist()) for w in weights})
    return ranked


def rank_keys(
    snapshot: Snapshot, questions: Sequence[str], vectors: Any, depth: int, mode: Mode
) -> list[list[str]]:
    """For each question, the keys of its first `depth` documents. `vectors`: (q, D)."""
    rows = vectors if len(vectors) else [None] * len(questions)  # by words alone
    asked = [Question(*pair) for pair in zip(questions, rows, strict=True)]
    rankings = rank(snapshot, Query(depth, mode=mode), asked)
    return [keys_of(snapshot, ranking.part.documents.tolist()) for ranking in rankings]


def nearest(
    snapshot: Snapshot, query: Query, questions: Sequence[Question], number: int
) -> list[Ranking]:
    """The documents nearest to each question, each once, by its best passage.

    `number`: of the part, 0 for the pool; each looks further. The questions have equal phrases.
    """
    listed = PASSAGES if query.exact else query.shortlist or min(snapshot.shortlist, PASSAGES)
    wanted = min(max(_MIN_FIRST, listed) * _GROWTH**number, MAX_DEPTH)
    result = snapshot.search(
        np.stack([question.vector for question in questions if question.vector is not None]),
        wanted,
        shortlist=query.shortlist,
        where=query.where,
        phrases=query.required(questions[0].text),
        exact=query.exact,
    )
    # Stored rows are rounded, so a computed cosine can exceed 1 slightly. The order stays that of
    # the computed scores.
    cosines = result.scores.clip(-1, 1)
    if query.mode == Mode.HYBRID:
        cosines = cosines.round(_DECIMALS)
    near = []
    for rows, scores in zip(result.rows, cosines.astype(float), strict=True):
        passages = rows[rows >= 0]
        documents = snapshot.passages(passages).documents.tolist()
        first = _firsts(documents)
        best, none = scores[first], np.full(len(first), np.nan)
        part = Part(np.array(documents, np.int64)[first], passages[first], best, best, none)
        near.append(Ranking(part, result.exact, all=len(passages) < wanted))
    return near


def _parts(
    snapshot: Snapshot, query: Query, question: Question, near: Ranking | None
) -> Iterator[Ranking]:
    """The parts of an order; documents may come again.

    `near`: the first part by vectors; None by words.
    """
    words, count = WordScores([]), _BY_WORDS if near is None else WINDOW
    if query.mode != Mode.VECTOR:
        words = _by_words(snapshot, query, question, count)
    if near is None:
        yield Ranking(_by_bm25(words))
        while len(words.scored) == count:
            count *= _GROWTH
            words = _by_words(snapshot, query, question, count)
            yield Ranking(_by_bm25(words))
        return
    if query.mode == Mode.VECTOR:
        yield near
    else:
        fusion = fusion_of(snapshot, question.vector, words)
        pool, shares = _pool(snapshot, question, near.part, words, fusion)
        yield Ranking(_fused(pool, fusion, pool.scores), False, shares)
    number = 0
    while not near.all:
        number += 1
        (near,) = nearest(snapshot, query, [question], number)
        if query.mode == Mode.VECTOR:
            yield near
        else:
            yield Ranking(_fused(near.part._replace(bm25=np.zeros_like(near.part.cosines)), fusion))


def _ranking(
    snapshot: Snapshot, query: Query, parts: Iterator[Ranking], without: Set[int]
) -> Ranking:
    """The documents of a page, from `offset` to `depth`: reads parts until there are enough."""
    order, exact, shares, ended = _NONE, True, None, False
    seen = np.array([*without], np.int64)
    for part, is_exact, of_pool, _ in parts:
        exact, shares = exact and is_exact, shares or of_pool
        if seen.size:  # a later part, or documents to leave out
            part = part.take(~np.isin(part.documents, seen))
        if query.mode == Mode.HYBRID and len(order.scores):  # what the pool missed comes behind it
            part = part._replace(scores=np.minimum(part.scores, order.scores[-1]))
        found = part.documents
        if query.min_score is not None:
            above = part.scores >= query.min_score
            part, ended = part.take(above), not above.all()
        enough = query.depth - len(order.documents) if query.group_by is None else len(found)
        part = _ties_by_key(snapshot, part, enough)
        order = Part(*map(np.concatenate, zip(order, part, strict=True))) if seen.size else part
        if query.group_by is not None:
            documents = order.documents.tolist()
            order = order.take(_firsts(_values(snapshot, documents, query.group_by)))
        if ended or len(order.documents) >= query.depth:
            break
        seen = np.concatenate([seen, found])
    return Ranking(order.take(slice(query.offset, query.depth)), exact, shares)


def _by_words(snapshot: Snapshot, query: Query, question: Question, count: int) -> WordScores:
    required = query.required(question.text)
    return snapshot.by_words(question.text, count, query.where, required=required)


def _by_bm25(words: WordScores) -> Part:
    """Documents by words, each by its first passage."""
    documents, bm25 = zip(*words.scored, strict=True) if words.scored else ((), ())
    passages = [*map(words.first.get, documents, repeat(-1))]
    scores = np.array(bm25, np.float64)
    ids = np.array([documents, passages], np.int64)
    return Part(ids[0], ids[1], scores, np.full(len(documents), -inf), scores)


def fusion_of(snapshot: Snapshot, vector: Any, words: WordScores) -> Fusion:
    """The fusion for a question, by its vector (D,) and its scores by words."""
    unrelated, center = snapshot.unrelated
    if center is not None:
        to_question = float(center @ vector) / float(np.linalg.norm(vector))
        unrelated = max(0.0, min(unrelated, BETWEEN * unrelated + (1 - BETWEEN) * to_question))
    return Fusion(words.scale, unrelated, float(snapshot.settings.get("weight", WEIGHT)))


def _pool(
    snapshot: Snapshot, question: Question, near: Part, words: WordScores, fusion: Fusion
) -> tuple[Part, Shares]:
    """Documents by vectors and the best by words, each with both scores, in no order.

    Their `scores` are what is fused in place of the cosines, and the shares those of all passages.
    """
    bm25, listed = dict(words.scored), near.documents.tolist()
    known = {**words.first, **dict(zip(listed, near.passages.tolist(), strict=True))}
    rows, owners, _, _ = snapshot.passages(of=[*{*listed, *bm25}], known=known)
    cosines = np.zeros(0)
    if rows.size:
        owner_of = dict(zip(rows.tolist(), owners.tolist(), strict=True))
        result = snapshot.cosines(question.vector, rows)  # type: ignore[arg-type]
        rows, cosines = result.rows[0], result.scores[0].clip(-1, 1).round(_DECIMALS).astype(float)
        owners = np.array([*map(owner_of.__getitem__, rows.tolist())])
    documents, best, of = np.unique(owners, return_index=True, return_inverse=True)
    nearest = cosines[best]  # of passages that fall by cosine, the first
    counts = np.bincount(of)
    share = MEAN * np.maximum(0.0, 1 - 2 / counts)
    mixed = nearest + share * (np.bincount(of, cosines) / counts - nearest)
    lower = fusion.score(nearest, 0.0) - fusion.score(mixed, 0.0)
    scores = np.array([*map(bm25.get, documents.tolist(), repeat(0.0))])
    part = Part(documents, rows[best], mixed, nearest, scores)
    return part, Shares(rows, owners, fusion.score(cosines, 0.0) - lower[of])


def _fused(part: Part, fusion: Fusion, mixed: _Column | None = None) -> Part:
    """Documents in the order of their fused scores. `mixed`: to fuse in place of the cosines."""
    scores = fusion.score(part.cosines if mixed is None else mixed, part.bm25)
    order = np.lexsort((part.documents, -part.cosines, -scores))
    return part._replace(scores=scores).take(order)


def _ties_by_key(snapshot: Snapshot, part: Part, count: int) -> Part:
    """Documents of equal scores by their keys, which are read for those alone.

    `count`: documents that are enough.
    """
    equal = (part.scores[1:] == part.scores[:-1]) & (part.cosines[1:] == part.cosines[:-1])
    if not equal[:count].any():
        return part
    order, size = np.arange(len(part.documents)), len(part.documents)
    starts = [0, *(np.flatnonzero(~equal) + 1).tolist()]
    for start, end in pairwise([*starts, size]):
        if start < count and end - start > 1:
            keys = keys_of(snapshot, part.documents[start:end].tolist())
            order[start:end] = start + np.argsort(np.array(keys, object), kind="stable")
    return part.take(order)


def _values(snapshot: Snapshot, documents: Sequence[int], name: str) -> list[Hashable]:
    """The values of a metadata field, to group by: 1 and 1.0 are one, and missing values differ."""
    field, read = field_named(name), list[Hashable]()
    states = snapshot.known(keys := keys_of(snapshot, documents))
    for value in metadata_of(snapshot, [states[key] for key in keys]):
        for part in field:
            value = value.get(part, object()) if isinstance(value, dict) else object()
        is_json, kind = isinstance(value, dict | list), type(value)
        read.append((float if kind is int else kind, json.dumps(value) if is_json else value))
    return read


def _firsts(names: Sequence[Hashable]) -> list[int]:
    """The place of the first item of every name, rising."""
    places = range(len(names) - 1, -1, -1)
    return sorted(dict(zip(reversed(names), places, strict=True)).values())
