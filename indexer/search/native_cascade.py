"""The cascade of the compiled kernel, and the choice between it and faiss."""

import numpy as np

from indexer.arrays import Floats, RowNumbers, locality
from indexer.faiss_calls import faiss
from indexer.native.exact import NativeRows
from indexer.native.graph import NativeGraph
from indexer.search.allowed import Allowed
from indexer.search.cascade import LOCALITY_BATCH, Cascade, CoarseIndex, SearchResult
from indexer.storage.vectors import VectorFile

LISTED_SHARE = 0.1
"""Below this share of allowed rows, a scan goes through a list of them; above, through all rows,
and leaves the others out."""


class NativeCascade:
    """A graph of 8-bit codes and the full-width rows, searched by the compiled kernel."""

    def __init__(self, coarse: CoarseIndex, graph: NativeGraph) -> None:
        self._coarse = coarse
        self._graph = graph

    def search(
        self,
        rotated: Floats,
        k: int,
        size: int,
        effort: int = 0,
        allowed: Allowed | None = None,
    ) -> SearchResult:
        """The best k of a shortlist of `size` rows for rotated queries (q, D), k <= size.

        Where the walk ended too early, the rest is padding (-1 and -inf).
        """
        order = None
        if len(rotated) >= LOCALITY_BATCH:
            heads = rotated[:, : self._coarse.width]
            order = locality([heads], heads)
        ef_search = self._coarse.ef_search(size, effort, allowed)
        mask = None if allowed is None else allowed.mask
        rotated = np.ascontiguousarray(rotated, np.float32)
        rows, scores, _ = self._graph.search(rotated, k, size, ef_search, mask, order)
        return SearchResult(rows, scores)

    def shortlist(
        self, rotated: Floats, size: int, allowed: Allowed | None = None, effort: int = 0
    ) -> RowNumbers:
        """As CoarseIndex.shortlist, for rotated queries (q, D)."""
        available = self._coarse.rows if allowed is None else allowed.size
        heads = rotated[:, : self._coarse.width]
        if size > available or not self._coarse.walks(available):
            return self._coarse.shortlist(heads, size, allowed, effort)
        ef_search = self._coarse.ef_search(size, effort, allowed)
        mask = None if allowed is None else allowed.mask
        rotated = np.ascontiguousarray(rotated, np.float32)
        rows, padded = self._graph.shortlist(rotated, size, ef_search, mask)
        if padded:  # the walk ended too early
            short = np.flatnonzero(rows[:, -1] < 0)
            rows[short] = self._coarse.shortlist(heads[short], size, allowed, effort)
        return rows

    def work(self) -> tuple[int, int]:
        """Codes compared, and nodes whose links were followed, in all walks so far."""
        return self._graph.work()


def walk_totals(cascade: Cascade | NativeCascade) -> tuple[int, int]:
    """Counters: codes compared, and nodes whose links were followed.

    They count the walks of faiss in this process and those of the compiled kernel in this cascade.
    """
    stats = faiss.cvar.hnsw_stats
    compared, followed = cascade.work() if isinstance(cascade, NativeCascade) else (0, 0)
    return stats.ndis + compared, stats.nhops + followed


def open_cascade(
    coarse: CoarseIndex, full: CoarseIndex, file: VectorFile, name: str, level: int | None
) -> Cascade | NativeCascade:
    """The compiled kernel's cascade for a graph of 8-bit codes, where it is available; or faiss's.

    Args:
        coarse: the coarse stage.
        full: the full-width rows, mapped by faiss.
        file: the same rows.
        name: what `coarse` was read from, for errors.
        level: of the kernel, from library.chosen_level; None: faiss searches.

    Raises:
        SegmentError: the graph is damaged.
    """
    return native_cascade(coarse, file, name, level) or Cascade(coarse, full)


def native_cascade(
    coarse: CoarseIndex, file: VectorFile, name: str, level: int | None
) -> NativeCascade | None:
    """As `open_cascade`; None where faiss searches."""
    if level is None or not _is_byte_graph(coarse):
        return None
    return NativeCascade(coarse, NativeGraph(coarse.index, file, level, name))


class NativeScan:
    """The full-width rows of a file, scored by the compiled kernel."""

    def __init__(self, file: VectorFile, level: int) -> None:
        self._full = NativeRows(file, level)

    def exact(self, rotated: Floats, k: int, within: Allowed | None) -> SearchResult:
        """The true best k of all (allowed) rows."""
        return SearchResult(*_best(self._full, rotated, k, within))

    def rerank(self, rotated: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """The best k candidates; their row numbers are not checked."""
        return SearchResult(*self._full.rerank(rotated, candidates, k))


def _best(
    rows: NativeRows, queries: Floats, k: int, within: Allowed | None
) -> tuple[RowNumbers, Floats]:
    if within is None:
        return rows.best(queries, k)
    if within.share < LISTED_SHARE:
        return rows.best(queries, k, rows=within.rows)
    return rows.best(queries, k, mask=within.mask)


def _is_byte_graph(coarse: CoarseIndex) -> bool:
    if not isinstance(coarse.index, faiss.IndexIDMap):
        return False
    graph = faiss.downcast_index(coarse.index.index)
    if not isinstance(graph, faiss.IndexHNSWSQ):
        return False
    quantizer = faiss.downcast_index(graph.storage).sq
    return bool(quantizer.qtype == faiss.ScalarQuantizer.QT_8bit)
