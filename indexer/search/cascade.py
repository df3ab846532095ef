"""Search by prefix with faiss: a shortlist from the coarse stage, then full-width scores.

CoarseIndex finds the rows with the most similar prefixes, and `rerank` scores them at full width.

Scores of the coarse stage only rank candidates; users never see them. A scan breaks ties by row
number, also at the cut, so a flat coarse stage is deterministic and a longer shortlist contains
every shorter one.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Floats, RowNumbers, locality
from searchengine.indexer.config import Structure
from searchengine.indexer.errors import VectorError
from searchengine.indexer.faiss_calls import faiss, native_threads, ordered, structure_of
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.storage.rotation import Prefixes
from searchengine.indexer.storage.vectors_file import VectorFile
from searchengine.indexer.threads import slices

MIN_EF_SEARCH = 32
"""Minimum ef_search that follows from the size of a shortlist."""

LOCALITY_BATCH = 64
"""A batch of at least this many queries is sorted by similarity: neighbours read the same rows,
which are then still in the cache (1.2 to 1.5 times as many queries per second; 10,000 queries over
200k real sentences, two cores)."""

CHUNK_VALUES = 1 << 18
"""Values gathered at a time: 1 MiB of float32, which stays in the cache of one core."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The rows of a search, best first: by descending score, equal scores by row number.

    Attributes:
        rows: (q, k) int64 row numbers, -1 for padding.
        scores: (q, k) float32 full-width cosines, -inf for padding.
        exact: whether these are certainly the true best k.
    """

    rows: RowNumbers
    scores: Floats
    exact: bool = False


class CoarseIndex:
    """The coarse stage: prefixes of the rows of a segment, searched by inner product.

    Attributes:
        index: the faiss index; its ids are row numbers. inner: the one behind the ids.
        structure: the kind of the index.
        rows, width: number of prefixes, and their dimensions.
    """

    def __init__(self, index: Any, lock: AbstractContextManager[Any] | None = None) -> None:
        """`lock` is held during every scan, for an index that allows one search at a time."""
        self.index = index
        self._lock = nullcontext() if lock is None else lock
        inner = index
        if isinstance(index, faiss.IndexIDMap):
            inner = faiss.downcast_index(index.index)
        self.structure = structure_of(inner)
        self.inner = inner
        self.rows = int(index.ntotal)
        self.width = int(index.d)

    def ef_search(self, size: int, effort: int = 0, allowed: Allowed | None = None) -> int:
        """Candidates of a walk, which also passes rows that are not allowed; at most all rows.

        An effort of 0 follows the size. (A longer shortlist bought as much recall@10 for the same
        time as a higher ef_search, or more: 20k real sentences.)
        """
        return min(int(max(effort or MIN_EF_SEARCH, size) / self.share(allowed)), self.rows)

    def nprobe(self, effort: int = 0, allowed: Allowed | None = None) -> int:
        """Lists that a search reads, which also have rows that are not allowed; at most all.

        An effort of 0 reads a sixteenth of them.
        """
        return min(int((effort or -(-self.lists // 16)) / self.share(allowed)), self.lists)

    def share(self, allowed: Allowed | None) -> float:
        """Allowed rows as a fraction of those in this index: in a trial, fewer than the segment."""
        return 1.0 if allowed is None else allowed.size / self.rows

    def shortlist(
        self, queries: Floats, size: int, allowed: Allowed | None = None, effort: int = 0
    ) -> RowNumbers:
        """The rows with the highest scores of their prefixes.

        Args:
            queries: (q, width) float32 of any length.
            size: rows per query, >= 1.
            allowed: the rows that may be returned; None for all.
            effort: see SegmentConfig; 0 follows the size.

        Returns:
            (q, size) int64, best first, then -1: where fewer rows are allowed, or where a walk of a
            graph or of lists has ended before.
        """
        available = self.rows if allowed is None else allowed.size
        shortlist = np.full((queries.shape[0], size), -1, np.int64)
        filled = min(size, available)
        if filled == 0:
            return shortlist
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if self.structure is Structure.FLAT:
            scan = partial(self._scan, allowed=allowed)
            shortlist[:, :filled] = ordered(scan, queries, filled, available)[1]
        else:
            shortlist[:, :filled] = self._walk(queries, filled, effort, allowed)
        return shortlist

    @property
    def lists(self) -> int:
        """Number of k-means lists of an IVF; 0 for other structures."""
        return int(self.inner.nlist) if self.structure is Structure.IVF else 0

    def _walk(self, queries: Floats, size: int, effort: int, allowed: Allowed | None) -> RowNumbers:
        """Rows (q, size) of walks of a graph or of lists, -1 where they end too early."""
        rows = np.empty((len(queries), size), np.int64)
        selector = None if allowed is None else allowed.selector
        order = np.arange(len(queries))
        if len(queries) >= LOCALITY_BATCH:
            order = locality([queries], queries)
        if self.structure is Structure.IVF:
            nprobe = self.nprobe(effort, allowed)
            parameters = faiss.SearchParametersIVF(nprobe=nprobe, sel=selector)
        else:
            ef_search = self.ef_search(size, effort, allowed)
            parameters = faiss.SearchParametersHNSW(efSearch=ef_search, sel=selector)
        for part in slices(len(queries)):
            with native_threads(part.stop - part.start):
                result = self.index.search(queries[order[part]], size, params=parameters)
            rows[order[part]] = result[1]
        return rows

    def _scan(
        self, queries: Floats, size: int, allowed: Allowed | None = None
    ) -> tuple[Floats, RowNumbers]:
        """Scores and rows (q, size) of a scan; `size` is at most the number of allowed rows."""
        if allowed is None or allowed.size >= self.rows:
            return self._scan_faiss(queries, size, None)
        others = self.rows - allowed.size
        if others > size:
            return self._scan_faiss(queries, size, allowed.selector)
        # With a selector faiss takes three times as long as for a few rows more.
        scores, rows = self._scan_faiss(queries, size + others, None)
        order = np.argsort(~allowed.mask[rows], axis=1, kind="stable")[:, :size]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def _scan_faiss(self, queries: Floats, size: int, selector: Any) -> tuple[Floats, RowNumbers]:
        """Scores and rows of a scan over the rows in the selector, None for all."""
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)
        rows = np.empty((len(queries), size), np.int64)
        scores = np.empty(rows.shape, np.float32)
        for part in slices(len(queries)):
            into = {"D": scores[part], "I": rows[part]}
            with self._lock, native_threads(part.stop - part.start):
                self.index.search(queries[part], size, params=parameters, **into)
        return scores, rows


def rerank(
    store: VectorFile | Prefixes, queries: Floats, candidates: RowNumbers, k: int
) -> SearchResult:
    """Score candidates by the inner product with the stored rows and keep the best k.

    The score of a (query, row) pair is the same to the last bit whatever else is scored: equal rows
    get equal scores, and the lower row number comes first.

    Args:
        store: the full-width rows, or prefixes of them.
        queries: (q, dim) float32 unit rows.
        candidates: (q, s) int64 row numbers, without repeats per query; -1 is padding.
        k: rows to keep, >= 1.

    Returns:
        (q, k) rows and scores, padded with -1 and -inf.
    """
    if queries.ndim != 2 or candidates.ndim != 2 or len(queries) != len(candidates):
        shapes = f"{queries.shape} and {candidates.shape}"
        raise VectorError(f"queries (q, dim) and candidates (q, s) must agree in q, got {shapes}")
    scores = np.empty(candidates.shape, np.float32)
    columns = max(1, min(candidates.shape[1], CHUNK_VALUES // store.dim))
    lines = max(1, CHUNK_VALUES // (columns * store.dim))
    for top in range(0, candidates.shape[0], lines):
        for start in range(0, candidates.shape[1], columns):
            part = np.s_[top : top + lines, start : start + columns]
            rows = store.take(np.maximum(candidates[part], 0))
            # einsum, not a matrix product: BLAS sums a row in an order that depends on its place
            # in the block, so equal rows could differ in the last bit.
            scores[part] = np.einsum("qsd,qd->qs", rows, queries[top : top + lines])
    scores[candidates < 0] = -np.inf
    return _best(candidates, scores, k)


def merge(results: Sequence[SearchResult], bases: Sequence[int], k: int) -> SearchResult:
    """The best k rows of several segments, numbered through all of them.

    Args:
        results: one (q, k_i) result per segment, all for the same queries.
        bases: the number of each segment's first row.
        k: rows to keep, >= 1.
    """
    if not results or len(results) != len(bases):
        raise VectorError(f"cannot merge {len(results)} results with {len(bases)} bases")
    numbered = [
        np.where(result.rows < 0, -1, result.rows + base)
        for result, base in zip(results, bases, strict=True)
    ]
    if len(results) == 1 and numbered[0].shape[1] == k:  # it is in order
        return SearchResult(numbered[0], results[0].scores, results[0].exact)
    rows = np.concatenate(numbered, axis=1)
    best = _best(rows, np.concatenate([result.scores for result in results], axis=1), k)
    return SearchResult(best.rows, best.scores, all(result.exact for result in results))


def _best(rows: RowNumbers, scores: Floats, k: int) -> SearchResult:
    """The first k by (-score, row), padding last."""
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    size = order.shape[1]
    best_rows = np.full((rows.shape[0], k), -1, np.int64)
    best_scores = np.full((rows.shape[0], k), -np.inf, np.float32)
    best_rows[:, :size] = np.take_along_axis(rows, order, axis=1)
    best_scores[:, :size] = np.take_along_axis(scores, order, axis=1)
    return SearchResult(best_rows, best_scores)
