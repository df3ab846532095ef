"""From a checked request to ranked documents: candidates by vectors and by words, in one order.

The order of a question is made of parts of fixed sizes, whatever k and offset are: so pages are one
answer, cut. The first part has the best by vectors and the best by words; most searches need no
other. Each next part has eight times as many by vectors, and what no part before it has.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.backends import limits
from searchengine.backends.contract import Snapshot, WordScores
from searchengine.backends.mode import Mode, weight_of
from searchengine.indexer.arrays import Floats
from searchengine.query.fusion import Fusion
from searchengine.query.request import Query

PASSAGES = 200
"""Passages of the first part by vectors, at most: or the shortlist, if that is shorter."""
WINDOW = 100
"""Documents of the first part by words, and those that are fused. With 200, nDCG@10 differed by
−.0021, +.0012 and −.0001 on three collections, within noise."""
_GROWTH, _MIN_FIRST = 8, 10  # factor from each part to the next; passages of the first, at least
MAX_DEPTH = 1 << 40
"""More documents than a collection holds; SQLite's integers end at 2⁶³."""
_LIMITED = 16  # questions that are compared together where their time is limited
_DECIMALS = 6
"""Of a cosine in the mode hybrid: equal texts must tie, and the last bits depend on which rows are
compared together."""
_Column = npt.NDArray[Any]


class Ranked(NamedTuple):
    """A document in a ranking, its score and what that is made of.

    `passage`: the best one; −1: the whole document.
    """

    score: float
    document: int
    passage: int
    scores: Mapping[str, float]


class Ranking(NamedTuple):
    """Ranked documents, best first; `exact` as in Hits."""

    documents: Sequence[Ranked]
    exact: bool = False


class Part(NamedTuple):
    """Documents in their order, an array (n,) each; −∞ and NaN in place of a missing score."""

    documents: _Column
    passages: _Column
    scores: _Column
    cosines: _Column
    bm25: _Column

    def take(self, chosen: _Column | slice) -> "Part":
        """Some of the documents."""
        return Part(*(column[chosen] for column in self))


class Near(NamedTuple):
    """Documents near a vector, each by its best passage, best first: (n,) each.

    `all`: no other document can be found by a vector. `exact`: as in Hits.
    """

    documents: _Column
    passages: _Column
    cosines: _Column
    all: bool = True
    exact: bool = True


def rank(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str] | None,
    vectors: Floats | None,
    *,
    without: Set[int] = frozenset(),
) -> list[Ranking]:
    """The rankings for several questions: the documents to show.

    Args:
        snapshot: the commit to search.
        query: the options.
        questions: texts; needed by the modes text and hybrid.
        vectors: (q, D) float32; needed by the modes vector and hybrid.
        without: documents to leave out.
    """
    count = len(questions) if questions is not None else len(vectors)  # type: ignore[arg-type]
    orders = [
        Order(
            snapshot,
            query,
            "" if questions is None else questions[i],
            None if vectors is None or query.by_words else vectors[i],
            without,
        )
        for i in range(count)
    ]
    step = len(orders) if limits.current() is None else _LIMITED
    pending, number = orders, 0
    while pending:
        for start in range(0, len(pending), step):
            limits.check()
            batch = pending[start : start + step]
            for order, near in zip(batch, nearest(snapshot, query, batch, number), strict=True):
                limits.check()
                order.extend(number, near)
        pending = [order for order in pending if not order.ended]
        number += 1
    return [order.page() for order in orders]


def rank_by_weights(
    snapshot: Snapshot,
    questions: Sequence[str],
    vectors: Floats,
    weights: Sequence[float],
    depth: int,
) -> list[dict[float, list[str]]]:
    """For each question: weight of the cosine → keys; see SearchEngine.rank_by_weights."""
    query, ranked = Query(depth, mode=Mode.HYBRID), []
    for question, vector in zip(questions, vectors, strict=True):
        order = Order(snapshot, query, question, vector)
        (near,) = nearest(snapshot, query, [order], 0)
        parts = {0.0: order.by_words(0)[0], 1.0: by_vector(near)}
        for weight in weights:
            if weight not in parts:
                parts[weight] = order.fused(near, replace(order.fusion, weight=weight))
        ids = {weight: order.ties_by_key(parts[weight], depth).documents for weight in weights}
        ranked.append(
            {weight: snapshot.store.keys_of(ids[weight][:depth].tolist()) for weight in weights}
        )
    return ranked


def nearest(snapshot: Snapshot, query: Query, orders: Sequence["Order"], number: int) -> list[Near]:
    """The documents nearest to each question, for the part `number`; none by words."""
    empty = Near(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    if query.by_words or not snapshot.at_most(1):
        return [empty] * len(orders)
    if any(order.required for order in orders) and len(orders) > 1:
        return [near for order in orders for near in nearest(snapshot, query, [order], number)]
    listed = PASSAGES if query.exact else query.shortlist or min(snapshot.shortlist, PASSAGES)
    wanted = min(max(_MIN_FIRST, listed) * _GROWTH**number, MAX_DEPTH)
    count = snapshot.at_most(wanted)
    result = snapshot.search(
        np.stack([order.vector for order in orders if order.vector is not None]),
        count,
        shortlist=query.shortlist,
        where=query.where,
        phrases=orders[0].required,
        exact=query.exact,
        shown=query.depth,
    )
    # Stored rows are rounded, so a computed cosine can exceed 1 slightly. The order stays that of
    # the computed scores.
    cosines = result.scores.clip(-1, 1)
    if query.mode == Mode.HYBRID:
        cosines = cosines.round(_DECIMALS)
    no_more = count < wanted or snapshot.at_most(count + 1) == count
    near = []
    for rows, scores in zip(result.rows, cosines, strict=True):
        passages = rows[rows >= 0]
        documents = snapshot.documents_of(passages)
        first = _firsts(documents)
        columns = np.array(documents, np.int64)[first], passages[first], scores[first].astype(float)
        near.append(Near(*columns, no_more or len(passages) < count, result.exact))
    return near


class Order:
    """The order of documents for a question, as far as its parts go.

    Attributes:
        vector: of the question, (D,); None by words.
        required: the phrases that documents must contain.
        ended: whether the page is complete, or no part has more.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        query: Query,
        question: str,
        vector: Floats | None,
        without: Set[int] = frozenset(),
    ) -> None:
        self.vector, self.required, self.ended = vector, query.required(question), False
        self._snapshot, self._query, self._question = snapshot, query, question
        self._seen, self._exact = set(without), query.mode == Mode.VECTOR
        self._part = _worded(WordScores())
        self._words: WordScores | None = None

    def extend(self, number: int, near: Near) -> None:
        """Add the part `number`: the documents of it that no part before has."""
        query, before = self._query, self._part
        if query.mode == Mode.TEXT:
            part, last = self.by_words(number)
        elif query.mode == Mode.VECTOR:
            part, last = by_vector(near), near.all
        else:
            part, last = self.fused(near, self.fusion), near.all
            if last and len(self.words) == WINDOW:  # others have words, and no vector
                part = _joined(part, self._more_by_words())
        self._exact = self._exact and near.exact
        part = self._new(part)
        if query.mode == Mode.HYBRID:  # a document that a part before missed has its last score
            lowest = before.scores[-1:].min(initial=np.inf)
            part = part._replace(scores=np.minimum.accumulate(np.minimum(part.scores, lowest)))
        if query.min_score is not None:
            above = part.scores >= query.min_score
            part, last = part.take(above), last or not above.all()
        enough = query.depth - len(before.documents) if query.group_by is None else len(part.scores)
        part = self.ties_by_key(part, enough)
        part = _joined(before, part) if len(before.scores) else part
        self._part = part if query.group_by is None else self._grouped(part, query.group_by)
        self.ended = last or len(self._part.documents) >= query.depth

    def _new(self, part: Part) -> Part:
        """The documents that were in no part before, each once."""
        documents = part.documents.tolist()
        new = [i for i in _firsts(documents) if documents[i] not in self._seen]
        self._seen.update(documents)
        return part if len(new) == len(documents) else part.take(np.array(new, np.int64))

    def page(self) -> Ranking:
        """The documents to show."""
        query = self._query
        part = self._part.take(slice(query.offset, query.depth))
        if query.mode == Mode.TEXT:
            part = part._replace(passages=self._first_passages(part.documents.tolist()))
        columns = [column.tolist() for column in part]
        return Ranking(
            [
                Ranked(score, document, passage, _scores(cosine, bm25))
                for document, passage, score, cosine, bm25 in zip(*columns, strict=True)
            ],
            self._exact,
        )

    @property
    def words(self) -> WordScores:
        """The best documents by words."""
        # No cached_property: before Python 3.12 all instances share its lock, so that threads wait
        # for each other's searches, and a child of a fork for ever.
        if self._words is None:
            self._words = self._scored(WINDOW)
        return self._words

    @property
    def fusion(self) -> Fusion:
        """What fuses their BM25 with cosines."""
        unrelated = self._snapshot.unrelated.cosine(self.vector)  # type: ignore[arg-type]
        return Fusion(self.words.scale, unrelated, weight_of(self._snapshot.settings))

    def fused(self, near: Near, fusion: Fusion) -> Part:
        """Documents by vectors and the best by words, in the order of their fused scores.

        Without those that documents of the next part may exceed: these have no word that counts,
        and at most the last cosine of this part.
        """
        bm25, known = dict(self.words), set(near.documents.tolist())
        others = [document for document in bm25 if document not in known]
        cosines, passages = self._cosines_of(others)
        documents = np.concatenate([near.documents, np.array(others, np.int64)])
        cosines = np.concatenate([near.cosines, cosines])
        worded = np.array([bm25[i] if i in bm25 else 0.0 for i in documents.tolist()])
        scores = fusion.score(cosines, worded)
        part = Part(documents, np.concatenate([near.passages, passages]), scores, cosines, worded)
        part = part.take(np.lexsort((documents, -cosines, -scores)))
        if near.all:
            return part
        cosine = near.cosines[-1]
        lowest = fusion.score(cosine, 0.0)
        ties = (part.scores == lowest) & (part.cosines >= cosine)
        return part.take((part.scores > lowest) | ties)

    def _scored(self, count: int) -> WordScores:
        where = self._query.where
        return self._snapshot.by_words(self._question, count, where, required=self.required)

    def by_words(self, number: int) -> tuple[Part, bool]:
        """The part `number` of the documents by words, and whether it is the last."""
        count = min(WINDOW * _GROWTH**number, MAX_DEPTH)
        scored = self.words if number == 0 else self._scored(count)
        part = _worded(scored)
        return part._replace(scores=part.bm25), len(scored) < count

    def _more_by_words(self) -> Part:
        """All documents by words, as those without a vector are scored."""
        part = _worded(self._scored(MAX_DEPTH))
        return part._replace(scores=self.fusion.score(part.cosines, part.bm25))

    def _cosines_of(self, documents: Sequence[int]) -> tuple[_Column, _Column]:
        """The highest cosine of each document, and the passage that has it; −∞ and −1 without."""
        owners = self._snapshot.passages_of(documents, self.words.first) if documents else {}
        best: dict[int, tuple[float, int]] = {}
        if owners:
            asked = np.fromiter(owners, np.int64, len(owners))
            result = self._snapshot.cosines(self.vector, asked)  # type: ignore[arg-type]
            rows = result.rows[0].tolist()
            names = [owners[row] for row in rows]
            cosines = result.scores[0].clip(-1, 1).round(_DECIMALS).tolist()
            best = {names[i]: (cosines[i], rows[i]) for i in _firsts(names)}
        pairs = [best[i] if i in best else (-np.inf, -1) for i in documents]
        table = np.array(pairs, np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1].astype(np.int64)

    def _first_passages(self, documents: Sequence[int]) -> _Column:
        """The first passage of each document; −1 without any.

        `hits` chooses the passage with most words of the question, once it has the texts.
        """
        first = {i: self.words.first[i] for i in documents if i in self.words.first}
        if others := [document for document in documents if document not in first]:
            passages = self._snapshot.passages_of(others, {})
            first |= {document: passage for passage, document in reversed(passages.items())}
        return np.array([first.get(document, -1) for document in documents], np.int64)

    def ties_by_key(self, part: Part, count: int) -> Part:
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
                keys = self._snapshot.store.keys_of(part.documents[start:end].tolist())
                order[start:end] = start + np.argsort(np.array(keys, object), kind="stable")
        return part.take(order)

    def _grouped(self, part: Part, field: str) -> Part:
        """The first document of every value of a field."""
        documents = part.documents.tolist()
        values = self._snapshot.store.values(documents, field)
        return part.take(np.array(_firsts([values[i] for i in documents]), np.int64))


def by_vector(near: Near) -> Part:
    """Documents by their cosines alone."""
    none = np.full(len(near.documents), np.nan)
    return Part(near.documents, near.passages, near.cosines, near.cosines, none)


def _worded(scored: WordScores) -> Part:
    """Documents by words, without cosines and passages."""
    documents, bm25 = [i for i, _ in scored], np.array([score for _, score in scored])
    none, far = np.full(len(scored), -1), np.full(len(scored), -np.inf)
    return Part(np.array(documents, np.int64), none, bm25, far, bm25)


def _joined(part: Part, other: Part) -> Part:
    """The documents of one part and then those of another."""
    return Part(*map(np.concatenate, zip(part, other, strict=True)))


def _firsts(names: Sequence[Hashable]) -> list[int]:
    """The place of the first item of every name, rising."""
    places = range(len(names) - 1, -1, -1)
    return sorted(dict(zip(reversed(names), places, strict=True)).values())


def _scores(cosine: float, bm25: float) -> dict[str, float]:
    """What the score of a document is made of."""
    parts = {"vector": cosine, "text": bm25}
    return {name: score for name, score in parts.items() if -inf < score < inf}
