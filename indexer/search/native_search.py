"""Search by the compiled kernel: graphs of 8-bit codes, and full-width rows scored in one pass."""

import ctypes
from weakref import WeakKeyDictionary

import numpy as np

from searchengine.indexer.arrays import Floats, Mask, RowNumbers, locality
from searchengine.indexer.config import Storage
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.native.hnsw import NativeGraph, NodeFilter, Nodes, Words
from searchengine.indexer.native.library import load
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import LOCALITY_BATCH, CoarseIndex
from searchengine.indexer.storage.rotation import Prefixes
from searchengine.indexer.storage.vectors_file import VectorFile
from searchengine.indexer.threads import slices, threads

LISTED_SHARE = 0.1
"""Below this share of allowed rows, a scan goes through a list of them; above, through all rows,
and leaves the others out."""


SCANNED_PER_CANDIDATE = 200
"""Up to this many allowed rows per candidate of a walk their codes are scanned: that misses none,
and takes at most twice as long as a walk without a filter."""

SCANNED_SHARE = 0.08
"""Below this share of allowed rows they are scanned too: a walk misses more of them."""

UNBRIDGED_SHARE = 0.95
"""From this share of allowed rows on a walk crosses no others: it finds as much without."""

MIN_LOCAL_SHARE = 2 / 3
"""A walk gives up where the share of allowed rows around the query is below this part of their
share among all rows. Filters that do not depend on the query stay above it."""

MAX_RESCANNED = 150_000
"""Up to this many allowed rows are scanned where a walk gave up, in some milliseconds."""

RETRY_FACTOR = 4
"""Where more are allowed, a second walk has this many times the candidates, and crosses every
row that is not allowed."""


class NativeCascade:
    """A graph of 8-bit codes and the full-width rows, searched by the compiled kernel.

    Under a filter either all allowed codes are scanned, or a walk keeps to the allowed rows; both
    take about as long as a search without a filter.
    """

    def __init__(self, coarse: CoarseIndex, graph: NativeGraph) -> None:
        self._coarse, self._graph = coarse, graph
        self._bits: WeakKeyDictionary[Allowed, Words] = WeakKeyDictionary()
        self._nodes: WeakKeyDictionary[Allowed, Nodes] = WeakKeyDictionary()

    def walks(self, size: int, effort: int, allowed: Allowed | None) -> bool:
        """Whether a search walks the graph, which may miss rows."""
        if allowed is None:
            return True
        few = SCANNED_PER_CANDIDATE * self._coarse.ef_search(size, effort)
        return allowed.size > few and self._coarse.share(allowed) >= SCANNED_SHARE

    def search(
        self,
        queries: Floats,
        k: int,
        size: int,
        effort: int = 0,
        allowed: Allowed | None = None,
        *,
        reranked: bool = True,
    ) -> tuple[RowNumbers, Floats]:
        """The best k of a shortlist of `size` rows, for queries (q, D) of any length > 0.

        There is no padding where `size` rows are allowed. Not `reranked`: by their prefixes, ties
        broken by the node, without scores. VectorError: a query is zero or not finite.
        """
        graph = self._graph
        if not self.walks(size, effort, allowed):
            return graph.scan(queries, k, size, self._nodes_of(allowed), reranked=reranked)
        order, within = None, None
        if len(queries) >= LOCALITY_BATCH:
            order = locality([queries], queries)
        if allowed is not None:
            share = self._coarse.share(allowed)
            # as many rows within reach as without a filter
            bridges = 0 if share >= UNBRIDGED_SHARE else round(1 / share)
            within = NodeFilter(self._bits_of(allowed), bridges, MIN_LOCAL_SHARE * share)
        ef_search = self._coarse.ef_search(size, effort)
        rows, scores, padded = graph.search(
            queries, k, size, ef_search, within, order, reranked=reranked
        )
        if padded and within is not None and allowed is not None and allowed.size > MAX_RESCANNED:
            short = np.flatnonzero(rows[:, -1] < 0)
            within = NodeFilter(within.bits, self._coarse.rows, 0.0)
            rows[short], scores[short], padded = graph.search(
                queries[short], k, size, RETRY_FACTOR * ef_search, within, reranked=reranked
            )
        if padded:
            short = np.flatnonzero(rows[:, -1] < 0)
            nodes = self._nodes_of(allowed)
            rows[short], scores[short] = graph.scan(
                queries[short], k, size, nodes, reranked=reranked
            )
        return rows, scores

    def _bits_of(self, allowed: Allowed) -> Words:
        bits = self._bits.get(allowed)
        if bits is None:
            bits = self._bits[allowed] = self._graph.bits(allowed.mask)
        return bits

    def _nodes_of(self, allowed: Allowed | None) -> Nodes:
        if allowed is None:
            return np.arange(self._coarse.rows, dtype=np.int32)
        nodes = self._nodes.get(allowed)
        if nodes is None:
            nodes = self._nodes[allowed] = self._graph.nodes_of(allowed.rows)
        return nodes


def native_cascade(
    coarse: CoarseIndex, prefixes: Prefixes, name: str, level: int | None
) -> NativeCascade | None:
    """The compiled kernel's cascade; None where faiss searches.

    Args:
        coarse: the coarse stage, which the kernel walks if it is a graph of 8-bit codes.
        prefixes: the full-width rows, and how their prefixes are made.
        name: what `coarse` was read from, for errors.
        level: of the kernel, from library.chosen_level; None: faiss searches.

    Raises:
        SegmentError: the graph is damaged.
    """
    index, inner = coarse.index, coarse.inner
    if level is None or not isinstance(index, faiss.IndexIDMap):
        return None
    if not isinstance(inner, faiss.IndexHNSWSQ):
        return None
    if faiss.downcast_index(inner.storage).sq.qtype != faiss.ScalarQuantizer.QT_8bit:
        return None
    graph = NativeGraph(index, prefixes.file, level, name, prefixes.matrix)
    return NativeCascade(coarse, graph)


_THREAD_BYTES = 1 << 24
"""Bytes of rows that one thread scores, in a millisecond or two. Waiting for a second thread takes
longer where other programs are running."""

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 1 << 24  # rows of a pass
_MIN_SCORED = 1 << 14  # of a pass, which take a millisecond or two: few rows need one pass
_QUERIES = 256  # of a pass: their heaps and vectors stay in a cache


class _Pass(ctypes.Structure):
    """Equal to Pass in source/exact.h, field by field."""

    _fields_ = (
        ("full", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("dim", "half")),
        *((name, ctypes.c_void_p) for name in ("numbers", "mask")),
        *((name, ctypes.c_int64) for name in ("first", "last")),
        ("queries", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "k")),
    )


class NativeRows:
    """The rows of a vectors file, scored by inner products. Safe to use from several threads.

    The score of a (query, row) pair is the same to the last bit whatever else is scored.
    """

    def __init__(self, file: VectorFile, level: int) -> None:
        """`level`: from library.chosen_level."""
        self.rows, self.dim, self.level = file.rows, file.dim, level
        self._file, self._half = file, file.storage is Storage.FLOAT16
        self._library = load()

    def best(
        self, queries: Floats, k: int, rows: RowNumbers | None = None, mask: Mask | None = None
    ) -> tuple[RowNumbers, Floats]:
        """The best k rows and scores (q, k), by (-score, row), padded with -1 and -inf.

        Args:
            queries: (q, D) float32.
            k: rows per query, >= 1.
            rows: the rows to score, rising, all within these; None for all.
            mask: (self.rows,) whether each row may be found; None for all.

        Raises:
            MemoryError.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        best, scores = self._empty(len(queries), k)
        total = self.rows if rows is None else rows.size
        for first in range(0, len(queries), _QUERIES):
            group = slice(first, first + _QUERIES)
            part = self._pass(queries[group], k)
            part.numbers = None if rows is None else rows.ctypes.data
            part.mask = None if mask is None else mask.ctypes.data
            into = best[group].ctypes.data, scores[group].ctypes.data
            for piece in slices(total, max(_MIN_BLOCK, _MIN_SCORED // part.count), _MAX_BLOCK):
                part.first, part.last = piece.start, piece.stop
                if rows is None:
                    self._file.read_ahead(piece)
                with threads.take(self._threads((part.last - part.first) * part.count)) as used:
                    failed = self._library.kernel_add_best(
                        self.level, ctypes.byref(part), used, *into
                    )
                self._check(failed, part)
        return best, scores

    def rerank(self, queries: Floats, candidates: RowNumbers, k: int) -> tuple[RowNumbers, Floats]:
        """The best k of the candidates (q, s), as `best`; -1 is padding. Raises MemoryError."""
        best, scores = self._empty(len(queries), k)
        queries = np.ascontiguousarray(queries, np.float32)
        candidates = np.ascontiguousarray(candidates, np.int64)
        for group in slices(len(queries)):
            part = self._pass(queries[group], k)
            lines = candidates[group]
            with threads.take(min(len(lines), self._threads(lines.size))) as count:
                failed = self._library.kernel_rerank(
                    self.level,
                    ctypes.byref(part),
                    lines.ctypes.data,
                    lines.shape[1],
                    count,
                    best[group].ctypes.data,
                    scores[group].ctypes.data,
                )
            self._check(failed, part)
        return best, scores

    @staticmethod
    def _empty(queries: int, k: int) -> tuple[RowNumbers, Floats]:
        return np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32)

    def _pass(self, queries: Floats, k: int) -> _Pass:
        """It holds the address of the queries, which the caller keeps."""
        return _Pass(
            full=self._file.address,
            dim=self.dim,
            half=self._half,
            queries=queries.ctypes.data,
            count=len(queries),
            k=k,
        )

    def _threads(self, scored: int) -> int:
        return -(-scored * self.dim * (2 if self._half else 4) // _THREAD_BYTES)

    @staticmethod
    def _check(failed: int, part: _Pass) -> None:
        if failed:
            raise MemoryError(f"no memory for the best {part.k} rows of {part.count} queries")
