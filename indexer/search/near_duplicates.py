"""Groups of vectors that are nearly the same, found without comparing all at full width.

    cosine(a, b) ≤ a′ · b′ + |a″| |b″|        a′: the first dimensions of a, rotated; a″: the rest

With |a″| as one more dimension, the bound is one product of short vectors; only pairs whose bound
reaches the threshold are compared at full width.
"""

from collections.abc import Callable

import numpy as np

from searchengine.indexer.arrays import Floats, RowNumbers

_PREFIX = 64  # dimensions of the bound
_FEW = 1024  # vectors below which all are compared at full width
_BLOCK = 1024  # rows, and earlier ones, compared at a time: their products stay in the cache
_SLACK = 1e-5  # more than float32 loses of a bound


def leaders(
    vectors: Floats, above: float, progress: Callable[[int], None] = lambda done: None
) -> tuple[RowNumbers, Floats]:
    """For each vector the first of its group, which may be itself, and its cosine to it.

    In the order of the rows, a vector joins the earliest group to whose first vector its cosine is
    at least `above`, or begins a group. So the first ones differ from each other, and each of the
    others is close to the first of its group.

    Args:
        vectors: (n, D) float32 unit rows; a row of zeros is close to none.
        above: the least cosine, above 0.
        progress: called with the number of rows just done; what it raises ends the work.

    Returns (n,) int64 positions and (n,) float32 cosines. O(n² · 64) for n different vectors.
    """
    count = len(vectors)
    leader, cosine = np.arange(count), np.ones(count, np.float32)
    short = _bounding(vectors) if count > _FEW else vectors
    firsts = np.empty(0, np.int64)  # of the groups so far
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        for others in (*np.split(firsts, range(_BLOCK, len(firsts), _BLOCK)), rows):
            alone = rows[leader[rows] == rows]
            likely = short[alone] @ short[others].T >= above - _SLACK
            for i in np.flatnonzero(likely.any(axis=1)):
                row, earlier = alone[i], others[likely[i]]
                earlier = earlier[(leader[earlier] == earlier) & (earlier < row)]
                exact = vectors[earlier] @ vectors[row]
                near = np.flatnonzero(exact >= above)
                if len(near):
                    leader[row], cosine[row] = earlier[near[0]], exact[near[0]]
        firsts = np.append(firsts, rows[leader[rows] == rows])
        progress(len(rows))
    return leader, cosine


def _bounding(vectors: Floats) -> Floats:
    """The first dimensions in the basis that gives them most, and the length of the rest."""
    if vectors.shape[1] <= _PREFIX + 1:
        return vectors
    _, basis = np.linalg.eigh(vectors.T @ vectors)  # ascending
    prefix = vectors @ basis[:, -_PREFIX:]
    squares = np.einsum("ij,ij->i", vectors, vectors) - np.einsum("ij,ij->i", prefix, prefix)
    return np.hstack([prefix, np.sqrt(squares.clip(0))[:, None]])
