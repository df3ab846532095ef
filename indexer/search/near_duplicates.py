"""Groups of vectors that are nearly the same, exactly, without comparing all of them at full width.

    cosine(a, b) ≤ a′ · b′ + |a″| |b″|        a′: the first dimensions of a, rotated; a″: the rest

With |a″| as one more dimension, the bound is one product of short vectors; only pairs whose bound
reaches the threshold are compared at full width.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats

Positions = npt.NDArray[np.int64]

_PREFIX = 64  # dimensions of the bound, and where fewer vectors are compared at full width
_FEW = 1024
_BLOCK = (
    1024  # rows, and earlier ones, that are compared at a time: their products stay in the cache
)
_PAIRS = 1 << 15  # pairs compared at full width at a time
_SLACK = 1e-5  # more than float32 loses of a bound


def leaders(
    vectors: Floats, above: float, progress: Callable[[int], None] = lambda done: None
) -> tuple[Positions, Floats]:
    """For each vector the first of its group, which may be itself, and its cosine to it.

    In the order of the rows: a vector joins the earliest first one of a group to which its cosine
    is at least `above`, or else is the first of a group. So the first ones differ from each other,
    and each of the others is close to the first of its group.

    Args:
        vectors: (n, D) float32 unit rows; a row of zeros is close to none.
        above: the least cosine, above 0.
        progress: called with the number of rows just done; what it raises ends the work.

    Returns (n,) int64 positions and (n,) float32 cosines. O(n² · 64) for n different vectors.
    """
    count = len(vectors)
    leader, cosine = np.arange(count), np.ones(count, np.float32)
    short = _bounding(vectors) if count > _FEW else vectors
    firsts, kept = np.empty(count, np.int64), np.empty_like(short)  # of groups so far
    groups = 0
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        block = short[rows]
        for first in range(0, groups, _BLOCK):
            bounds = block @ kept[first : min(first + _BLOCK, groups)].T
            if bounds.max() < above - _SLACK:
                continue
            near, columns = np.nonzero(bounds >= above - _SLACK)  # by row, then by column
            for begin in range(0, len(near), _PAIRS):
                of = rows[near[begin : begin + _PAIRS]]
                others = firsts[first + columns[begin : begin + _PAIRS]]
                exact = np.einsum("ij,ij->i", vectors[of], vectors[others])
                joins = (exact >= above) & (leader[of] == of)
                joined, places = np.unique(of[joins], return_index=True)
                leader[joined] = others[joins][places]
                cosine[joined] = exact[joins][places]
        _within(vectors, short, rows[leader[rows] == rows], above, leader, cosine)
        new = rows[leader[rows] == rows]
        firsts[groups : groups + len(new)], kept[groups : groups + len(new)] = new, short[new]
        groups += len(new)
        progress(len(rows))
    return leader, cosine


def _within(
    vectors: Floats, short: Floats, rows: Positions, above: float, leader: Positions, cosine: Floats
) -> None:
    """The groups among the rows of a block that join none before it."""
    bounds = np.tril(short[rows] @ short[rows].T, -1)
    for i in np.flatnonzero((bounds >= above - _SLACK).any(axis=1)):
        earlier = rows[np.flatnonzero(bounds[i] >= above - _SLACK)]
        earlier = earlier[leader[earlier] == earlier]
        exact = vectors[earlier] @ vectors[rows[i]]
        near = np.flatnonzero(exact >= above)
        if len(near):
            leader[rows[i]], cosine[rows[i]] = earlier[near[0]], exact[near[0]]


def _bounding(vectors: Floats) -> Floats:
    """The first dimensions in the basis that gives them most, and the length of the rest."""
    if vectors.shape[1] <= _PREFIX + 1:
        return vectors
    _, basis = np.linalg.eigh(vectors.T @ vectors)  # ascending
    prefix = vectors @ basis[:, -_PREFIX:]
    squares = np.einsum("ij,ij->i", vectors, vectors) - np.einsum("ij,ij->i", prefix, prefix)
    return np.hstack([prefix, np.sqrt(squares.clip(0))[:, None]])
