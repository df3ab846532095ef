"""A graph of 8-bit codes and the full-width rows behind it, searched by the compiled kernel."""

import ctypes
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Floats, Mask, RowNumbers, address
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.native.library import load
from searchengine.indexer.storage.vectors_file import VectorFile
from searchengine.indexer.threads import MIN_SLICE, slices, threads

MESSAGE = 256  # bytes
_QUERIES_PER_THREAD = 8  # starting a thread takes about as long as a few walks


class GraphArrays(ctypes.Structure):
    """What the kernel reads, in place. Equal to Graph in source/graph.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("size", "width", "rows", "dim", "half")),
        *((name, ctypes.c_int64) for name in ("link_count", "level_count", "entry", "entry_level")),
        *((name, ctypes.c_void_p) for name in ("codes", "links", "offsets", "level_starts")),
        *((name, ctypes.c_void_p) for name in ("node_levels", "ids", "scales", "full")),
    )


def graph_arrays(index: Any, name: str) -> tuple[GraphArrays, tuple[Any, ...]]:
    """The arrays of a graph without a vectors file, and what must be kept while they are used.

    Args:
        index: IndexIDMap over IndexHNSWSQ with 8-bit codes. Only the ranges of its codes are
            copied, so it must not be changed.
        name: the name of its file, for messages.

    Raises:
        SegmentError: an array has another length than it should have.
    """
    graph = faiss.downcast_index(index.index)
    storage = faiss.downcast_index(graph.storage)
    hnsw, trained = graph.hnsw, faiss.vector_to_array(storage.sq.trained)
    starts = faiss.vector_to_array(hnsw.cum_nneighbor_per_level)
    size, width = int(graph.ntotal), int(graph.d)
    lengths = {
        "codes": (storage.codes.size(), size * width),
        "offsets": (hnsw.offsets.size(), size + 1),
        "levels": (hnsw.levels.size(), size),
        "row numbers": (index.id_map.size(), size),
        "ranges": (trained.size, 2 * width),
    }
    for what, (length, expected) in lengths.items():
        if length != expected:
            raise SegmentError(f"{name} must hold {expected} {what}, got {length}; index again")
    scales = np.ascontiguousarray(trained[width:] / np.float32(255), np.float32)
    arrays = GraphArrays(
        size=size,
        width=width,
        link_count=hnsw.neighbors.size(),
        level_count=starts.size - 1,
        entry=hnsw.entry_point,
        entry_level=hnsw.max_level,
        codes=int(storage.codes.data()),
        links=int(hnsw.neighbors.data()),
        offsets=int(hnsw.offsets.data()),
        level_starts=starts.ctypes.data,
        node_levels=int(hnsw.levels.data()),
        ids=int(index.id_map.data()),
        scales=scales.ctypes.data,
    )
    return arrays, (index, starts, scales)


class NativeGraph:
    """An HNSW graph of faiss with 8-bit codes (IndexIDMap over IndexHNSWSQ), and a vectors file.

    Nothing is copied but the ranges of the codes: the object keeps both alive, and they must not be
    changed. Safe to use from several threads, and in a process forked from this one.

    Raises:
        SegmentError: at construction, naming the file, if a link, an offset, a level, the entry
            point or a row number leads outside.
        MemoryError: at construction, or in a search.
    """

    def __init__(self, index: Any, file: VectorFile, level: int, name: str) -> None:
        """`level`: from library.chosen_level. `name`: what the index was read from."""
        arrays, self._kept = graph_arrays(index, name)  # read by the kernel
        self.width = arrays.width
        arrays.rows, arrays.dim = file.rows, file.dim
        arrays.half, arrays.full = file.storage is Storage.FLOAT16, file.address
        self._file = file  # read by the kernel too
        library = load()
        message = ctypes.create_string_buffer(MESSAGE)
        self._handle = library.kernel_open(ctypes.byref(arrays), level, message, MESSAGE)
        if not self._handle:
            if not message.value:
                raise MemoryError("no memory to search the graph")
            raise SegmentError(f"{name} is damaged: {message.value.decode()}; index again")
        weakref.finalize(self, library.kernel_close, self._handle)
        self._search = library.kernel_search

    def search(
        self,
        rotated: Floats,
        k: int,
        shortlist: int,
        ef_search: int,
        mask: Mask | None = None,
        order: RowNumbers | None = None,
    ) -> tuple[RowNumbers, Floats, bool]:
        """Walk the graph, then rerank the shortlist at full width.

        Args:
            rotated: (q, D) float32, C-contiguous.
            k: rows per query, 1 <= k <= shortlist.
            shortlist: rows to score at full width per query.
            ef_search: candidates of the walk, at least `shortlist`.
            mask: (rows,) whether each row of the file may be found; None for all.
            order: (q,) in which the queries are searched; None for their own.

        Returns:
            rows (q, k) int64 and scores (q, k) float32 by (-score, row), padded with -1 and -inf;
            and whether there is any padding.
        """
        shape = (len(rotated), k)
        rows, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
        short = self._call(rotated, k, shortlist, ef_search, mask, order, rows, address(scores))
        return rows, scores, short > 0

    def shortlist(
        self, rotated: Floats, size: int, ef_search: int, mask: Mask | None = None
    ) -> tuple[RowNumbers, bool]:
        """The candidates that `search` reranks: (q, size), best first; and whether some are -1."""
        rows = np.empty((len(rotated), size), np.int64)
        short = self._call(rotated, size, size, ef_search, mask, None, rows, None)
        return rows, short > 0

    def work(self) -> tuple[int, int]:
        """Codes compared and nodes expanded in all searches so far."""
        totals = np.empty(2, np.int64)
        load().kernel_work(self._handle, address(totals))
        return int(totals[0]), int(totals[1])

    def _call(
        self,
        rotated: Floats,
        k: int,
        shortlist: int,
        ef_search: int,
        mask: Mask | None,
        order: RowNumbers | None,
        rows: RowNumbers,
        scores: int | None,
    ) -> int:
        if order is None and len(rotated) > MIN_SLICE:
            order = np.arange(len(rotated))
        incomplete = 0
        for part in slices(len(rotated)):
            queries = part.stop - part.start
            with threads.take(-(-queries // _QUERIES_PER_THREAD)) as count:
                short: int = self._search(
                    self._handle,
                    address(rotated),
                    None if order is None else address(order[part]),
                    queries,
                    k,
                    shortlist,
                    ef_search,
                    None if mask is None else address(mask),
                    count,
                    address(rows),
                    scores,
                )
            if short < 0:
                raise MemoryError(f"no memory for a search with ef_search {ef_search}")
            incomplete += short
        return incomplete


_CHUNK = 8192  # nodes of a call, between which progress is reported
_SEED = 12345


def build_graph(
    inner: Any,
    blocks: Iterable[Floats],
    ids: RowNumbers,
    level: int,
    progress: Callable[[int], None],
) -> Any:
    """Fill an index with rows and link them, in a fraction of the time that faiss takes.

    The links are chosen as faiss chooses them (Malkov and Yashunin 2016), between 8-bit codes.

    Args:
        inner: a trained, empty IndexHNSWSQ with 8-bit codes; its efConstruction is used.
        blocks: rows (n_i, p) in the order of their nodes.
        ids: (n,) their row numbers.
        level: from `library.chosen_level`.
        progress: called with the number of rows just linked.

    Returns:
        An IndexIDMap that owns `inner`. Memory on top of it while building: a copy of the codes.

    Raises:
        MemoryError
    """
    index = faiss.IndexIDMap(inner)
    inner.this.disown()
    index.own_fields = True
    storage = faiss.downcast_index(inner.storage)
    for block in blocks:
        storage.add(block)
    inner.ntotal = storage.ntotal
    hnsw = inner.hnsw
    hnsw.prepare_level_tab(inner.ntotal, False)
    levels = faiss.vector_to_array(hnsw.levels)
    shuffled = np.random.default_rng(_SEED).permutation(levels.size).astype(np.int32)
    order = shuffled[np.argsort(-levels[shuffled], kind="stable")]
    hnsw.entry_point, hnsw.max_level = int(order[0]), int(levels[order[0]]) - 1
    faiss.copy_array_to_vector(np.ascontiguousarray(ids, np.int64), index.id_map)
    index.ntotal = inner.ntotal

    arrays, _kept = graph_arrays(index, "the new graph")
    arrays.rows, arrays.dim = int(ids.max()) + 1, arrays.width
    lowest = np.ascontiguousarray(faiss.vector_to_array(storage.sq.trained)[: arrays.width])
    library, message = load(), ctypes.create_string_buffer(MESSAGE)
    builder = library.kernel_build(
        ctypes.byref(arrays),
        arrays.links,
        address(lowest),
        level,
        hnsw.efConstruction,
        message,
        MESSAGE,
    )
    if not builder:
        raise MemoryError(message.value.decode() or "no memory to build the graph")
    try:
        for start in range(0, len(order), _CHUNK):
            part = order[start : start + _CHUNK]
            with threads.take(-(-len(part) // 64)) as count:
                if library.kernel_insert(builder, address(part), len(part), count) < 0:
                    raise MemoryError("no memory to build the graph")
            progress(len(part))
    finally:
        library.kernel_built(builder)
    return index
