"""Exact search: the best rows of all, where a scan returns scores that are slightly off."""

from collections.abc import Callable

import numpy as np

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.storage.vectors_file import VectorFile

EXACT_ALLOWED = 1000
"""If a filter leaves at most this many rows, all are scored, without a coarse stage."""

EXTRA_ROWS = 32
"""Rows beyond k that a scan returns, because its rounding differs from that of `rerank`."""

MAX_LENGTH = 1.01
"""Maximum length of a row: rows have length one, rounded to float16."""


def scan(
    shortlist: Callable[[Floats, int], RowNumbers],
    store: VectorFile,
    queries: Floats,
    k: int,
    available: int,
    slack: float,
) -> SearchResult:
    """The best k of `available` rows, from a scan with scores that may be off by `slack`.

    A row that the scan did not return can be among the best k only while the k-th exact score and
    the last differ by less than both errors at both ends. For such queries more rows are scanned.

    Args:
        shortlist: queries and a size to rows (q, size), by a scan of all available rows.
        store: the full-width rows.
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


def nearest(file: VectorFile, queries: Floats, size: int, within: Allowed | None) -> RowNumbers:
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
