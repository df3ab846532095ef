"""A graph of 8-bit codes and the full-width rows behind it, searched by the compiled kernel."""

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, Mask, RowNumbers, address, unit_rows
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.native.library import faiss, load
from searchengine.indexer.storage.vectors import VectorFile
from searchengine.indexer.threads import MIN_SLICE, slices, threads

Bits = npt.NDArray[np.uint64]
Nodes = npt.NDArray[np.int32]

MESSAGE = 256  # bytes
_QUERIES_PER_THREAD = 8  # starting a thread takes about as long as a few walks
_CODES_PER_THREAD = 50_000  # of a scan; they take as long


class GraphArrays(ctypes.Structure):
    """What the kernel reads, in place. Equal to Graph in source/graph.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("size", "width", "rows", "dim", "half")),
        *((name, ctypes.c_int64) for name in ("link_count", "level_count", "entry", "entry_level")),
        *((name, ctypes.c_void_p) for name in ("codes", "links", "offsets", "level_starts")),
        *((name, ctypes.c_void_p) for name in ("node_levels", "ids", "scales", "full", "matrix")),
    )


class NodeFilter(NamedTuple):
    """The nodes that a walk may find, and how it gets from one to the next.

    Attributes:
        bits: NativeGraph.bits of the rows.
        bridges: other nodes that are crossed for each node whose links are followed, >= 0.
        min_share: a walk gives up where a smaller share of the nodes around its query may be found.
    """

    bits: Bits
    bridges: int
    min_share: float


class _Point(ctypes.Structure):
    """Equal to Point in source/walk.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("k", "shortlist", "ef")),
        ("mask", ctypes.c_void_p),
        ("bridges", ctypes.c_int),
        ("min_share", ctypes.c_float),
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
            raise SegmentError(f"{name} must hold {expected} {what}, got {length}")
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

    Nothing is copied but the ranges of the codes and the matrix: the object keeps the rest alive,
    which must not be changed. Safe to use from several threads, and in a forked process.

    Raises:
        SegmentError: at construction, naming the file, if a link, an offset, a level, the entry
            point or a row number leads outside.
        MemoryError: at construction, or in a search.
    """

    def __init__(
        self, index: Any, file: VectorFile, level: int, name: str, matrix: Floats | None = None
    ) -> None:
        """`level`: from library.chosen_level. `name`: what the index was read from.

        `matrix`: (p, D) float32, C-contiguous, with orthonormal rows: the prefix of a query is
        matrix @ query. None: it is the first p dimensions.
        """
        arrays, self._kept = graph_arrays(index, name)  # read by the kernel
        arrays.rows, arrays.dim = file.rows, file.dim
        arrays.half, arrays.full = file.storage is Storage.FLOAT16, file.address
        arrays.matrix = None if matrix is None else address(matrix)
        self._file = file  # read by the kernel too
        self._ids = faiss.vector_to_array(index.id_map)
        self._node_of: Nodes | None = None
        library = load()
        message = ctypes.create_string_buffer(MESSAGE)
        self._handle = library.kernel_open(ctypes.byref(arrays), level, message, MESSAGE)
        if not self._handle:
            if not message.value:
                raise MemoryError("no memory to search the graph")
            raise SegmentError(f"{name} is damaged: {message.value.decode()}")
        weakref.finalize(self, library.kernel_close, self._handle)
        self._library, self._kept_calls = library, threading.local()

    def search(
        self,
        queries: Floats,
        k: int,
        shortlist: int,
        ef_search: int,
        within: NodeFilter | None = None,
        order: RowNumbers | None = None,
        *,
        reranked: bool = True,
    ) -> tuple[RowNumbers, Floats, bool]:
        """Walk the graph, then rerank the shortlist at full width.

        Args:
            queries: (q, D) float32, C-contiguous, of any length > 0.
            k: rows per query, 1 <= k <= shortlist.
            shortlist: rows to score at full width per query.
            ef_search: candidates of the walk, at least `shortlist`.
            within: what may be found; None for all rows. A walk that finds fewer than `shortlist`
                of them, or gives up, returns none.
            order: (q,) in which the queries are searched; None for their own.
            reranked: False for the best k of the shortlist by their prefixes.

        Returns:
            rows (q, k) int64 and scores (q, k) float32 by (-score, row), padded with -1 and -inf;
            and whether there is any padding. Not reranked: rows by (-score of the prefix, node),
            and no scores (q, 0).

        Raises:
            VectorError: a query is zero or not finite.
        """
        if len(queries) == 1 and within is None and reranked:
            return self._search_one(queries, k, shortlist, ef_search)
        if order is None and len(queries) > MIN_SLICE:
            order = np.arange(len(queries))
        rows, scores = _results(len(queries), k, reranked)
        point, incomplete = _point(k, shortlist, ef_search, within), 0
        for part in slices(len(queries)):
            size = part.stop - part.start
            with threads.take(-(-size // _QUERIES_PER_THREAD)) as count:
                short: int = self._library.kernel_search(
                    self._handle,
                    address(queries),
                    None if order is None else address(order[part]),
                    size,
                    ctypes.byref(point),
                    count,
                    address(rows),
                    address(scores) if reranked else None,
                )
            incomplete += _checked(short, queries)
        return rows, scores, incomplete > 0

    def _search_one(
        self, query: Floats, k: int, shortlist: int, ef_search: int
    ) -> tuple[RowNumbers, Floats, bool]:
        point = k, shortlist, ef_search
        call: _Call | None = getattr(self._kept_calls, "call", None)
        if call is None or call.point != point:
            call = self._kept_calls.call = self._call(point)
        np.copyto(call.query, query)
        with threads.take(1):
            short = self._library.kernel_search(*call.arguments)
        return call.rows.copy(), call.scores.copy(), _checked(short, query) > 0

    def _call(self, point: tuple[int, int, int]) -> "_Call":
        query, struct = np.empty((1, self._file.dim), np.float32), _point(*point, None)
        rows, scores = _results(1, point[0], True)
        inputs = self._handle, address(query), None, 1, ctypes.byref(struct), 1
        return _Call(point, query, rows, scores, (*inputs, address(rows), address(scores)))

    def scan(
        self, queries: Floats, k: int, shortlist: int, nodes: Nodes, *, reranked: bool = True
    ) -> tuple[RowNumbers, Floats]:
        """As `search`, but the codes of all these nodes are scored. `nodes`: from `nodes_of`."""
        rows, scores = _results(len(queries), k, reranked)
        point = _point(k, shortlist, shortlist, None)
        for part in slices(len(queries)):
            size = part.stop - part.start
            wanted = min(size, -(-size * nodes.size // _CODES_PER_THREAD))
            with threads.take(wanted) as count:
                result = self._library.kernel_scan(
                    self._handle,
                    address(queries[part]),
                    size,
                    ctypes.byref(point),
                    address(nodes),
                    nodes.size,
                    count,
                    address(rows[part]),
                    address(scores[part]) if reranked else None,
                )
            _checked(result, queries)
        return rows, scores

    def bits(self, mask: Mask) -> Bits:
        """One bit a node: whether its row is in a mask (rows of the file,)."""
        bits = np.zeros(-(-self._ids.size // 64), np.uint64)
        packed = np.packbits(mask[self._ids], bitorder="little")
        bits.view(np.uint8)[: packed.size] = packed
        return bits

    def nodes_of(self, rows: RowNumbers) -> Nodes:
        """The nodes of those of these rows that the graph holds."""
        if self._node_of is None:
            node_of = np.full(self._file.rows, -1, np.int32)
            node_of[self._ids] = np.arange(self._ids.size, dtype=np.int32)
            self._node_of = node_of
        nodes = self._node_of[rows]
        return nodes[nodes >= 0]


def _checked(result: int, queries: Floats) -> int:
    """The result of a search of these queries."""
    if result == -2:  # a query is zero or not finite: the row is named
        unit_rows(queries)
    if result < 0:
        raise MemoryError("no memory to search the graph")
    return result


class _Call(NamedTuple):
    """The arrays of a search of one query, which a thread keeps: to make them and to ask for their
    addresses takes a fifth of the time of a walk."""

    point: tuple[int, int, int]
    query: Floats
    rows: RowNumbers
    scores: Floats
    arguments: tuple[Any, ...]


def _results(queries: int, k: int, reranked: bool) -> tuple[RowNumbers, Floats]:
    shape = (queries, k if reranked else 0)
    return np.empty((queries, k), np.int64), np.empty(shape, np.float32)


def _point(k: int, shortlist: int, ef_search: int, within: NodeFilter | None) -> _Point:
    """The structure holds the address of the bits, which the caller keeps."""
    point = _Point(k=k, shortlist=shortlist, ef=ef_search)
    if within is not None:
        point.mask = address(within.bits)
        point.bridges, point.min_share = within.bridges, within.min_share
    return point


_GROUPS = 64  # that are compared in a call, between which progress is reported
_NODES_PER_THREAD = 64
_ROUND_BYTES = 1 << 30


def build_graph(
    inner: Any,
    blocks: Iterable[Floats],
    ids: RowNumbers,
    level: int,
    progress: Callable[[int], None],
) -> Any:
    """Fill an index with rows and link them, in a fraction of the time that faiss takes.

    The links are chosen as faiss chooses them (Malkov and Yashunin 2016), between 8-bit codes, but
    from candidates that are found without walks. On the base level a node with fewer than 24 links
    gets more, to the nearest of its other candidates. No link depends on the number of threads.

    Args:
        inner: a trained, empty IndexHNSWSQ with 8-bit codes; its efConstruction is used.
        blocks: rows (n_i, p) in the order of their nodes.
        ids: (n,) their row numbers.
        level: from `library.chosen_level`.
        progress: called with the number of rows just linked.

    Returns:
        An IndexIDMap that owns `inner`. Memory on top of it while building: a copy of the codes,
            at most 1 GiB or 52 bytes a row, whichever is more, for candidates, and some 150 bytes a
            row for groups and links.

    Raises:
        SegmentError: the kernel cannot walk such a graph: it is too large, or too wide.
        MemoryError.
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
    hnsw.entry_point, hnsw.max_level = int(levels.argmax()), int(levels.max()) - 1
    faiss.copy_array_to_vector(np.ascontiguousarray(ids, np.int64), index.id_map)
    index.ntotal = inner.ntotal

    arrays, _kept = graph_arrays(index, "the new graph")
    arrays.rows, arrays.dim = int(ids.max()) + 1, arrays.width
    lowest = np.ascontiguousarray(faiss.vector_to_array(storage.sq.trained)[: arrays.width])
    library, message = load(), ctypes.create_string_buffer(MESSAGE)
    with threads.take(-(-levels.size // _NODES_PER_THREAD)) as count:
        builder = library.kernel_build(
            ctypes.byref(arrays),
            arrays.links,
            address(lowest),
            level,
            hnsw.efConstruction,
            _ROUND_BYTES,
            count,
            message,
            MESSAGE,
        )
    if not builder:
        if not message.value:
            raise MemoryError("no memory to build the graph")
        raise SegmentError(f"the graph cannot be built: {message.value.decode()}")
    try:
        for at_level in range(int(levels.max())):
            nodes = np.flatnonzero(levels > at_level).astype(np.int32)
            _link(library, builder, nodes, at_level, progress if at_level == 0 else None)
    finally:
        library.kernel_built(builder)
    return index


def _link(
    library: Any,
    builder: int,
    nodes: Nodes,
    at_level: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Link the nodes of one level, which rise."""

    def call(function: Any, *arguments: int) -> int:
        result: int = function(builder, *arguments)
        if result < 0:
            raise MemoryError("no memory to build the graph")
        return result

    most = -(-len(nodes) // _NODES_PER_THREAD)
    with threads.take(most) as count:
        rounds = call(library.kernel_divide, address(nodes), len(nodes), at_level, count)
    done = 0
    for number in range(rounds):
        groups = call(library.kernel_group, number)
        for first in range(0, groups, _GROUPS):
            last = min(first + _GROUPS, groups)
            with threads.take(most) as count:
                call(library.kernel_compare, first, last, count)
            compared = len(nodes) * (number * groups + last) // (rounds * groups)
            if progress is not None:
                progress(compared - done)
            done = compared
        with threads.take(most) as count:
            call(library.kernel_end, number, count)
