"""Exact full-width scores of a shortlist, and the merging of several segments' results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from indexer.arrays import Floats, RowNumbers
from indexer.errors import VectorError
from indexer.storage.prefix import prefix
from indexer.storage.vectors import VectorFile

CHUNK_NUMBERS = 1 << 18
"""Numbers gathered at a time: 1 MiB of float32, which stays in the cache of one core."""


class RowStore(Protocol):
    """What re-scoring needs of the stored rows; VectorFile is one."""

    @property
    def dim(self) -> int: ...

    def take(self, rows: RowNumbers) -> Floats:
        """Rows of any shape (...) as (..., dim) float32."""
        ...


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, best first: by descending score, equal scores by row number.

    Attributes:
        rows: (q, k) int64 row numbers, -1 where there was nothing more to find.
        scores: (q, k) float32 full-width cosines, -inf there.
        proven: whether these are the true best k, beyond doubt.
        read: (q,) int64 rows that were read at full width for it; None if that was not counted.
    """

    rows: RowNumbers
    scores: Floats
    proven: bool = False
    read: RowNumbers | None = None


def rerank(store: RowStore, queries: Floats, candidates: RowNumbers, k: int) -> SearchResult:
    """Score candidates by the inner product with the stored rows and keep the best k.

    The score of a (query, row) pair does not depend on what is scored beside it, to the last bit:
    equal rows get equal scores, and the tie goes to the lower row number.

    Args:
        store: the full-width rows.
        queries: (q, dim) float32 unit rows, rotated as the rows are.
        candidates: (q, s) int64 row numbers, without repeats in a line; -1 is no candidate.
        k: how many to keep, >= 1.

    Returns:
        (q, k) rows and scores, padded with -1 and -inf.
    """
    if queries.ndim != 2 or candidates.ndim != 2 or len(queries) != len(candidates):
        raise VectorError(
            f"queries (q, dim) and candidates (q, s) must have the same q, "
            f"got shapes {queries.shape} and {candidates.shape}"
        )
    scores = np.empty(candidates.shape, np.float32)
    wide = max(1, min(candidates.shape[1], CHUNK_NUMBERS // store.dim))
    many = max(1, CHUNK_NUMBERS // (wide * store.dim))
    for top in range(0, candidates.shape[0], many):
        for left in range(0, candidates.shape[1], wide):
            part = np.s_[top : top + many, left : left + wide]
            rows = store.take(np.maximum(candidates[part], 0))
            # einsum and not a matrix product: BLAS sums a row in an order that depends on its
            # place in the block, so that equal rows could differ in the last bit.
            scores[part] = np.einsum("qsd,qd->qs", rows, queries[top : top + many])
    scores[candidates < 0] = -np.inf
    return _best(candidates, scores, k)


def narrow(
    file: VectorFile, queries: Floats, candidates: RowNumbers, width: int, keep: int
) -> RowNumbers:
    """A stage of a funnel: the candidates whose first `width` numbers are most similar.

    Args:
        file: the full-width rows, of which only the first `width` numbers are read.
        queries: (q, dim) float32 unit rows, rotated as the rows are.
        candidates: (q, s) int64 row numbers; -1 is no candidate.
        width: numbers to compare, re-normalised, <= dim.
        keep: how many to keep, >= 1.

    Returns:
        (q, keep) row numbers, best first, padded with -1.
    """
    kept = np.full((len(candidates), keep), -1, np.int64)
    for i, rows in enumerate(candidates):
        real = rows[rows >= 0]
        scores = prefix(file.take(real, width), width) @ queries[i, :width]
        best = real[np.lexsort((real, -scores))[:keep]]
        kept[i, : best.size] = best
    return kept


def merge(results: Sequence[SearchResult], bases: Sequence[int], k: int) -> SearchResult:
    """The best k of several segments, whose rows are numbered from their bases.

    Args:
        results: one (q, k_i) result per segment, all for the same queries.
        bases: what to add to each segment's row numbers.
        k: how many to keep, >= 1.
    """
    if not results or len(results) != len(bases):
        raise VectorError(f"cannot merge {len(results)} results with {len(bases)} bases")
    rows = np.concatenate(
        [
            np.where(result.rows < 0, -1, result.rows + base)
            for result, base in zip(results, bases, strict=True)
        ],
        axis=1,
    )
    best = _best(rows, np.concatenate([result.scores for result in results], axis=1), k)
    counts = [result.read for result in results if result.read is not None]
    return replace(
        best,
        proven=all(result.proven for result in results),
        read=sum(counts[1:], counts[0]) if len(counts) == len(results) else None,
    )


def _best(rows: RowNumbers, scores: Floats, k: int) -> SearchResult:
    """The first k by (-score, row), padding last."""
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    kept = order.shape[1]
    best_rows = np.full((rows.shape[0], k), -1, np.int64)
    best_scores = np.full((rows.shape[0], k), -np.inf, np.float32)
    best_rows[:, :kept] = np.take_along_axis(rows, order, axis=1)
    best_scores[:, :kept] = np.take_along_axis(scores, order, axis=1)
    return SearchResult(best_rows, best_scores)
