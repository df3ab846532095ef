"""Maximal marginal relevance: hits that differ from each other.

Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and
Producing Summaries", 1998.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats
from searchengine.indexer.errors import VectorError

Positions = npt.NDArray[np.int64]


def mmr(
    relevance: Floats,
    vectors: Floats,
    k: int,
    diversity: float,
    check: Callable[[], None] = lambda: None,
) -> Positions:
    """Positions of k candidates, chosen one by one; of all candidates if there are fewer.

    relevance: (n,) float32, on the scale of a cosine. vectors: (n, D) float32 unit rows.
    Returns (min(k, n),) int64. The most relevant comes first; each next one has the greatest

        (1 − diversity) · relevance − diversity · (its greatest cosine to one chosen already)

    so that 0 orders by relevance and 1 by novelty. Of equal gains the earlier position is chosen.
    `check` is called before each choice; what it raises ends the work. O(k n D). Raises
    VectorError for shapes that do not fit, values that are not finite, k below 1 or a diversity
    outside 0 … 1.
    """
    _check(relevance, vectors, k, diversity)
    weight = relevance.astype(np.float64)  # in float64, so that weighting creates no ties
    count = min(k, len(relevance))
    chosen = np.empty(count, dtype=np.int64)
    free = np.ones(len(relevance), dtype=np.bool_)
    nearest = np.full(len(relevance), -np.inf)  # cosine to the nearest chosen candidate
    gain = weight
    for place in range(count):
        check()
        best = int(np.argmax(np.where(free, gain, -np.inf)))
        chosen[place], free[best] = best, False
        np.maximum(nearest, vectors @ vectors[best], out=nearest)
        gain = (1 - diversity) * weight - diversity * nearest
    return chosen


def _check(relevance: Floats, vectors: Floats, k: int, diversity: float) -> None:
    if relevance.ndim != 1 or vectors.ndim != 2 or len(relevance) != len(vectors):
        raise VectorError(
            "expected (n,) relevances and (n, D) vectors, "
            f"got {relevance.shape} and {vectors.shape}"
        )
    if not (np.isfinite(relevance).all() and np.isfinite(vectors).all()):
        raise VectorError("relevances and vectors must be finite, got NaN or infinity")
    if k < 1:
        raise VectorError(f"k must be at least 1, got {k}")
    if not 0 <= diversity <= 1:
        raise VectorError(f"diversity must be between 0 and 1, got {diversity}")
