"""Shortlist and full-width scores in one call of faiss: the path that searches are served by.

IndexRefine over a coarse stage that reads the first numbers of the query. Nothing is copied: the
full-width rows stay in their mapped file. Segment.shortlist and Segment.rerank do the same in two
steps that can be looked at; they are its oracle.
"""

from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from indexer.arrays import Floats, RowNumbers
from indexer.faiss_calls import faiss, native_threads
from indexer.search.allowed import Allowed
from indexer.search.coarse import CoarseIndex, first
from indexer.search.locality import locality
from indexer.search.rerank import SearchResult

MANY = 64
"""A batch of this many queries is searched in an order in which similar ones follow each other:
they walk over the same rows, which are then still in the cache (1.2 to 1.5 times the queries a
second; 10,000 over 200k real sentences, two cores)."""

_KEPT = 64  # operating points whose parameters are kept, for each set of allowed rows

_Points = dict[tuple[int, ...], Any]


class Cascade:
    """A coarse stage and the full-width rows behind it, for rotated queries (q, D)."""

    def __init__(self, coarse: CoarseIndex, full: CoarseIndex) -> None:
        head = faiss.RemapDimensionsTransform(full.width, coarse.width)
        faiss.copy_array_to_vector(np.arange(coarse.width, dtype=np.int32), head.map)
        staged = faiss.IndexPreTransform(head, coarse.index)
        staged.ntotal = full.rows  # a trial index may lack rows, but knows no others
        self._index = faiss.IndexRefine(staged, full.index)
        self._parts = (head, staged, coarse, full)  # faiss holds no references of its own
        self._coarse = coarse
        self._kept: _Points = {}
        self._kept_for: WeakKeyDictionary[Allowed, _Points] = WeakKeyDictionary()

    def search(
        self,
        rotated: Floats,
        k: int,
        size: int,
        effort: int = 0,
        allowed: Allowed | None = None,
    ) -> SearchResult:
        """The best k of a shortlist of `size` rows a query, k <= size.

        Rows that the walk did not find are -1 with a score of -inf; see CoarseIndex.shortlist.
        """
        if len(rotated) >= MANY:
            heads = rotated[:, : self._coarse.width]
            order = locality([heads], heads)
            ordered = self._search(rotated[order], k, size, effort, allowed)
            rows, scores = np.empty_like(ordered.rows), np.empty_like(ordered.scores)
            rows[order], scores[order] = ordered.rows, ordered.scores
            return SearchResult(rows, scores)
        return self._search(rotated, k, size, effort, allowed)

    def _search(
        self, rotated: Floats, k: int, size: int, effort: int, allowed: Allowed | None
    ) -> SearchResult:
        def ask(some: Floats, most: int) -> tuple[Floats, RowNumbers]:
            parameters = self._parameters(most, size, effort, allowed)
            with native_threads(len(some)):
                scores, rows = self._index.search(some, most, params=parameters)
            if (rows[:, -1] < 0).any():
                scores[rows < 0] = -np.inf
            return scores, rows

        return SearchResult(*first(ask, np.ascontiguousarray(rotated, np.float32), k, size)[::-1])

    def _parameters(self, most: int, size: int, effort: int, allowed: Allowed | None) -> Any:
        """What faiss is asked with. Making them takes as long as a short walk: they are kept.

        Those with a set of rows for each thread: while it searches, faiss's IndexIDMap puts a
        selector of its own into them, which lies on that thread's stack.
        """
        key: tuple[int, ...] = (most, size, effort)
        points = self._kept
        if allowed is not None:
            points = self._kept_for.setdefault(allowed, {})
            key = (*key, get_ident())
        kept = points.get(key)
        if kept is not None:
            return kept
        staged = self._coarse.search_parameters(size, effort, allowed)
        # faiss multiplies and cuts: half a row more, so that the size survives the rounding
        parameters = faiss.IndexRefineSearchParameters(k_factor=(size + 0.5) / most)
        if staged is not None:
            parameters.base_index_params = faiss.SearchParametersPreTransform(index_params=staged)
        if len(points) > _KEPT:
            points.clear()
        points[key] = parameters
        return parameters
