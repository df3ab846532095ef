"""Rankings fused into one.

reciprocal_rank([by_vector, by_words])                # [(document id, score), …], best first
Fusion(scored.scale).all(cosines, bm25)               # the same, of {document id: score}
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from searchengine.backends.contract import Scored
from searchengine.backends.mode import WEIGHT
from searchengine.errors import QueryError

CONSTANT = 60.0
"""Added to a rank in reciprocal rank fusion: a greater constant favours the first ranks less."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Cosine and BM25 of a document as one score; chosen in docs/quality.md.

        weight · max(0, cosine − unrelated) / (1 − unrelated) + (1 − weight) · BM25 / scale

    A convex combination, as in Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid
    Retrieval", 2023. Both scales belong to the collection and the question, not to the result: an
    encoder that does not read the question gives cosines that hardly differ, and they stay so.

    Attributes:
        scale: the BM25 that counts as 1.
        unrelated: the cosine of unrelated passages, which counts as 0, as does any below.
        weight: weight of the cosine, 0–1.
    """

    scale: float
    unrelated: float = 0.0
    weight: float = WEIGHT

    def score(self, cosine: float | None, bm25: float) -> float:
        """The score of a document, 0–1; None: it has no vector, and counts as unrelated.

        A phrase can add more to BM25 than `scale`, hence the maximum of 1.
        """
        above = 0.0 if cosine is None else max(0.0, cosine - self.unrelated)
        share = above / (1 - self.unrelated)
        return min(1.0, self.weight * share + (1 - self.weight) * bm25 / self.scale)

    def all(self, cosines: Mapping[int, float], bm25: Mapping[int, float]) -> Scored:
        """The scores of ids, by (−score, −cosine, id). An id without BM25 has 0."""
        scores = [
            (-self.score(cosine, bm25.get(name, 0.0)), -cosine, name)
            for name, cosine in cosines.items()
        ]
        scores += [
            (-self.score(None, score), math.inf, name)
            for name, score in bm25.items()
            if name not in cosines
        ]
        scores.sort()
        return [(name, -score) for score, _, name in scores]


def reciprocal_rank(
    rankings: Sequence[Sequence[int]],
    weights: Sequence[float] | None = None,
    constant: float = CONSTANT,
) -> Scored:
    """Rankings as one: an id scores the sum of weight / (constant + rank), ranks from 1.

    Each ranking names an id once, best first. By (−score, id). Cormack, Clarke and Büttcher,
    "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods", 2009.
    Raises QueryError unless there is a positive weight for each ranking and `constant` ≥ 0.
    """
    shares = _weights(len(rankings), weights)
    if not (math.isfinite(constant) and constant >= 0):
        raise QueryError(f"the constant of rank fusion must be 0 or more, got {constant}")
    return _sums(
        (name, weight / (constant + rank))
        for ranking, weight in zip(rankings, shares, strict=True)
        for rank, name in enumerate(ranking, start=1)
    )


def _weights(count: int, weights: Sequence[float] | None) -> Sequence[float]:
    shares = [1.0] * count if weights is None else weights
    if len(shares) != count:
        raise QueryError(f"weights must be {count}, one per ranking, got {len(shares)}")
    for weight in shares:
        if not (math.isfinite(weight) and weight > 0):
            raise QueryError(f"a weight must be more than 0, got {weight}")
    return shares


def _sums(parts: Iterable[tuple[int, float]]) -> Scored:
    """Exact sums, so that equal parts tie in any order."""
    by_name: dict[int, list[float]] = {}
    for name, part in parts:
        by_name.setdefault(name, []).append(part)
    # Negative, because a sort without a key takes a third of the time.
    sums = sorted((-math.fsum(all_parts), name) for name, all_parts in by_name.items())
    return [(name, -total) for total, name in sums]
