"""Rankings fused into one.

reciprocal_rank([by_vector, by_words])                # [(document id, score), …], best first
weighted([by_vector, by_words], [0.5, 0.5])           # the same, of (id, score)
"""

import math
from collections.abc import Iterable, Sequence

from searchengine.errors import QueryError
from searchengine.storage.documents.lexical import Scored

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


def weighted(scored: Sequence[Sequence[tuple[int, float]]], weights: Sequence[float]) -> Scored:
    """Scores as one: an id scores the weighted sum of its scores, each list's scaled to 0 … 1.

    The lowest score of a list becomes 0 and the highest 1 (a single score: 1); an id that a list
    lacks gets 0. By (−score, id). The convex combination of Bruch, Gai and Ingber, "An Analysis of
    Fusion Functions for Hybrid Retrieval", 2023. Raises QueryError unless there is a positive
    weight for each list and every score is finite.
    """
    shares = _weights(len(scored), weights)
    return _sums(
        (name, weight * value)
        for pairs, weight in zip(scored, shares, strict=True)
        for name, value in _scaled(pairs)
    )


def _weights(count: int, weights: Sequence[float] | None) -> Sequence[float]:
    shares = [1.0] * count if weights is None else weights
    if len(shares) != count:
        raise QueryError(f"weights must be {count}, one per ranking, got {len(shares)}")
    for weight in shares:
        if not (math.isfinite(weight) and weight > 0):
            raise QueryError(f"a weight must be more than 0, got {weight}")
    return shares


def _scaled(pairs: Sequence[tuple[int, float]]) -> Scored:
    if not pairs:
        return []
    values = [value for _, value in pairs]
    low, high = min(values), max(values)
    if not all(map(math.isfinite, values)):
        raise QueryError("scores must be finite to be fused")
    return [(name, (value - low) / (high - low) if high > low else 1.0) for name, value in pairs]


def _sums(parts: Iterable[tuple[int, float]]) -> Scored:
    """Exact sums, so that equal parts tie in any order."""
    by_name: dict[int, list[float]] = {}
    for name, part in parts:
        by_name.setdefault(name, []).append(part)
    # Negative, because a sort without a key takes a third of the time.
    sums = sorted((-math.fsum(all_parts), name) for name, all_parts in by_name.items())
    return [(name, -total) for total, name in sums]
