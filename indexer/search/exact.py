"""Exact search, where a scan returns scores that are slightly off; and near duplicates, exactly.

Groups of vectors that are nearly the same are found without comparing all at full width:

    cosine(a, b) ≤ a′ · b′ + |a″| |b″|        a′: the first dimensions of a, rotated; a″: the rest

With |a″| as one more dimension, the bound is one product of short vectors; only pairs whose bound
reaches the threshold are compared at full width.
"""

from collections.abc import Callable

import numpy as np

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.storage.rotation import Prefixes
from searchengine.indexer.storage.vectors_file import VectorFile

EXACT_ALLOWED = 1000
"""If a filter leaves at most this many rows, all are scored, without a coarse stage."""

EXTRA_ROWS = 32
"""Rows beyond k that a scan returns, because its rounding differs from that of `rerank`."""

MAX_LENGTH = 1.01
"""Maximum length of a row: rows have length one, rounded to float16."""


_PREFIX = 64  # dimensions of the bound of duplicates
_FEW = 1024  # vectors below which all are compared at full width
_BLOCK = 1024  # rows, and earlier ones, compared at a time: their products stay in the cache
_SLACK = 1e-5  # more than float32 loses of a bound


def scan(
    shortlist: Callable[[Floats, int], RowNumbers],
    store: VectorFile | Prefixes,
    queries: Floats,
    k: int,
    available: int,
    slack: float,
) -> SearchResult:
    """The best k of `available` rows, from a scan with scores that may be off by `slack`.

    A row that the scan did not return can be among the best k only if the k-th exact score and the
    last one differ by less than the errors of both. For such queries more rows are scanned.

    Args:
        shortlist: queries and a size to rows (q, size), by a scan of all available rows.
        store: the rows at the width of the queries.
        queries: (q, D) float32 unit rows.
    """
    rows = np.full((len(queries), k), -1, np.int64)
    scores = np.full(rows.shape, -np.inf, np.float32)
    pending = np.arange(len(queries))
    size = min(k + EXTRA_ROWS, available)
    while pending.size and available:
        batch = queries[pending]
        best = rerank(store, batch, shortlist(batch, size), size)
        count = min(k, size)
        rows[pending, :count], scores[pending, :count] = (
            best.rows[:, :count],
            best.scores[:, :count],
        )
        if size == available:
            break
        pending = pending[best.scores[:, count - 1] - best.scores[:, -1] <= 4 * slack]
        size = min(2 * size, available)
    return SearchResult(rows, scores)


def nearest(
    file: VectorFile | Prefixes, queries: Floats, size: int, within: Allowed | None
) -> RowNumbers:
    """The rows (q, size) with the highest scores by matrix products, which round: see `scan`.

    Args:
        queries: (q, D) float32 unit rows.
        size: rows per query, at most the number of rows `within`, None for all.
    """
    rows: RowNumbers = np.empty((len(queries), 0), np.int64)
    scores: Floats = np.empty((len(queries), 0), np.float32)
    start = 0
    for block in file.blocks():
        numbers = np.arange(start, start + len(block))
        start += len(block)
        if within is not None:
            inside = np.flatnonzero(within.mask[numbers])
            numbers, block = numbers[inside], block[inside]
        scores = np.hstack([scores, queries @ block.T])
        rows = np.hstack([rows, np.broadcast_to(numbers, (len(queries), numbers.size))])
        if rows.shape[1] > size:
            best = np.argpartition(scores, -size, axis=1)[:, -size:]
            rows = np.take_along_axis(rows, best, axis=1)
            scores = np.take_along_axis(scores, best, axis=1)
    return rows


def score_slack(dim: int) -> float:
    """Maximum error of a float32 score of a unit query with `dim` dimensions.

    An inner product of n float32 values is off by at most n / 2^24 |q| |x|, terms of higher order
    apart (Higham 2002), in any order of summation.
    """
    return 1.1 * (dim + 2) * 2.0**-24 * MAX_LENGTH


def leaders(
    vectors: Floats, above: float, progress: Callable[[int], None] = lambda done: None
) -> tuple[RowNumbers, Floats]:
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
