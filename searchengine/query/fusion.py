"""Rankings fused into one.

reciprocal_rank([by_vector, by_words])                # [(document id, score), …], best first
weighted(cosines, bm25)                               # the same, of {document id: score}
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from searchengine.errors import QueryError
from searchengine.storage.documents.lexical import Scored

VECTORS, WORDS = 0.6, 0.4
"""Weights of cosine and BM25, from training questions: docs/hybrid.md."""
CONSTANT = 60.0
"""Added to a rank in reciprocal rank fusion: a greater constant favours the first ranks less."""


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


def weighted(cosines: Mapping[int, float], bm25: Mapping[int, float]) -> Scored:
    """Scores of ids as one: VECTORS · cosine + WORDS · BM25 / the best BM25, by (−score, id).

    A score that an id lacks counts as 0. A convex combination, as in Bruch, Gai and Ingber, "An
    Analysis of Fusion Functions for Hybrid Retrieval", 2023. Cosines stay as they are: scaled to
    the best and the worst of a result, those of an encoder that does not read the question would
    count as much as any others, and no threshold could be set.
    """
    best = max(bm25.values(), default=0.0) or 1.0
    scores = [
        (-sum_of(cosines.get(name, 0.0), bm25.get(name, 0.0) / best), name)
        for name in cosines.keys() | bm25.keys()
    ]
    scores.sort()
    return [(name, -score) for score, name in scores]


def sum_of(cosine: float, share: float) -> float:
    """The score of a cosine, and of a BM25 as a share of the best one."""
    return VECTORS * cosine + WORDS * share


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
