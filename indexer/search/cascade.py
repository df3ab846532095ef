"""The cascade of an open segment: faiss or the kernel finds a shortlist by prefix; then full width.

Parts are the checked and mapped files. A GPU gets copies of the scanned ones; graphs are walked on
the CPU: its caches suit them better. Also here: exact search by the kernel (NativeRows), a caller's
filter (`restriction`), and the results of several segments as one (`merge`). What faiss and numpy
search is in scoring.py.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, Mask, RowNumbers, locality
from searchengine.indexer.config import Device, RotationKind, Storage, Structure
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.native.hnsw import Bits, NativeGraph, NodeFilter, Nodes
from searchengine.indexer.native.library import chosen_level, faiss, load
from searchengine.indexer.search.postings import Postings
from searchengine.indexer.search.scoring import (
    LOCALITY_BATCH,
    MIN_EF_SEARCH,
    Allowed,
    CoarseIndex,
    SearchResult,
    gpu_copy,
    highest,
    nearest,
    open_coarse,
    rerank,
    scan,
    score_slack,
)
from searchengine.indexer.storage.files import (
    COARSE,
    MANIFEST,
    PASSAGES,
    ROTATION,
    VECTORS,
    WORDS,
    Checksum,
    Manifest,
)
from searchengine.indexer.storage.vectors import Prefixes, VectorFile, load_rotation, open_passages
from searchengine.indexer.threads import slices, threads

_THREAD_BYTES = 1 << 24
"""Bytes of rows that one thread scores, in a millisecond or two. Waiting for a second thread takes
longer where other programs are running."""

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 1 << 24  # rows of a pass
_MIN_SCORED = 1 << 14  # (query, row) pairs of a pass, at least: they take a millisecond or two
_QUERIES = 256  # of a pass: their heaps and vectors stay in a cache


def restriction(allowed: "Allowed | npt.ArrayLike | None", total: int) -> Allowed | None:
    """The filter of a caller, checked for a segment of `total` rows; None for no filter.

    Raises:
        VectorError: an Allowed for another number of rows, or as Allowed.from_rows.
    """
    if allowed is None:
        return None
    if not isinstance(allowed, Allowed):
        return Allowed.from_rows(allowed, total)
    if allowed.total != total:
        raise VectorError(
            f"allowed rows must be of a segment of {total} rows, got {allowed.total} rows; "
            "create them for this segment"
        )
    return allowed


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
    best = highest(rows, np.concatenate([result.scores for result in results], axis=1), k)
    return SearchResult(best.rows, best.scores, all(result.exact for result in results))


class _Pass(ctypes.Structure):
    """Equal to Pass in native/source/exact.h, field by field."""

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
        self._file, self._address = file, file.address
        self._half = file.storage is Storage.FLOAT16
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
        """The structure holds the address of the queries, which the caller keeps."""
        return _Pass(
            full=self._address,
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


SCANNED_PER_CANDIDATE = 200
"""Where at most this many rows are allowed per candidate of a walk, the codes of all are scanned:
that misses none, and takes at most twice as long as a walk without a filter."""
SCANNED_SHARE = 0.08
"""Below this share of allowed rows the codes of all are scanned too: a walk misses more of them."""
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
        self._bits: WeakKeyDictionary[Allowed, Bits] = WeakKeyDictionary()
        self._nodes: WeakKeyDictionary[Allowed, Nodes] = WeakKeyDictionary()

    def ef_search(self, size: int, effort: int) -> int:
        """Candidates of a walk, at most all rows; an effort of 0 follows the size."""
        return min(max(effort or MIN_EF_SEARCH, size), self._coarse.rows)

    def walks(self, size: int, effort: int, allowed: Allowed | None) -> bool:
        """Whether a search walks the graph, which may miss rows."""
        if allowed is None:
            return True
        few = SCANNED_PER_CANDIDATE * self.ef_search(size, effort)
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
        ef_search = self.ef_search(size, effort)
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

    def _bits_of(self, allowed: Allowed) -> Bits:
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


EXACT_ALLOWED = 1000
"""If a filter leaves at most this many rows, all are scored, without a coarse stage."""
LISTED_SHARE = 0.1
"""Below this share of allowed rows, a scan goes through a list of them; above, through all rows,
and leaves the others out."""
GPU_MAX_SIZE = 2048
"""Maximum rows per query that faiss returns from a GPU."""
GPU_SLACK = 2.0**-9
"""Extra error of scores from a GPU: its copies are scaled and rounded to float16 again."""


class Parts(NamedTuple):
    """The files of an open segment."""

    prefixes: Prefixes  # the rows, and how their prefixes are made
    coarse: CoarseIndex
    graph: NativeCascade | None  # the same, walked by the compiled kernel; None: faiss searches
    native: NativeRows | None  # the rows scored by the compiled kernel; None: numpy does
    words: Postings | None  # None: the segment has no words file
    passages: RowNumbers | None  # (3, rows); None: no passages.npy
    gpu_full: CoarseIndex | None = None  # copies on a GPU, for scans without a filter
    gpu_coarse: CoarseIndex | None = None
    kept: Allowed | None = None  # the rows that a trial may find; None for all

    @classmethod
    def open(
        cls, folder: Path, manifest: Manifest, device: Device, checksum: Checksum | None = None
    ) -> Self:
        """Check every file's size, and the contents of all but the vectors; then map them.

        `checksum` computes or remembers the checksum of a file.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown; or there
                is no GPU.
            SegmentConfigError: the environment asks for a kernel that is not available.
        """
        needed = {VECTORS, COARSE}
        if manifest.config.rotation is not RotationKind.IDENTITY:
            needed.add(ROTATION)
        needed |= {WORDS, PASSAGES} & manifest.files.keys()
        for name in sorted(needed):
            entry = manifest.files.get(name)
            if entry is None:
                raise SegmentError(f"{folder / MANIFEST} lists no {name}")
            entry.check(folder / name, contents=name != VECTORS, checksum=checksum)
        coarse, width = open_coarse(folder / COARSE), manifest.config.prefix
        if (coarse.rows, coarse.width) != (manifest.rows, width):
            raise SegmentError(
                f"{folder / COARSE} must hold {manifest.rows} x {width} prefixes, "
                f"got {coarse.rows} x {coarse.width}"
            )
        file = VectorFile(folder / VECTORS, manifest.rows, manifest.dim, manifest.config.storage)
        prefixes = Prefixes(file, width, load_rotation(folder, manifest))
        parts = cls.of(prefixes, coarse, str(folder / COARSE))
        if WORDS in needed:
            parts = parts._replace(words=Postings.open(folder / WORDS, manifest.rows))
        if PASSAGES in needed:
            parts = parts._replace(passages=open_passages(folder / PASSAGES, manifest.rows))
        return parts.on_gpu() if device is Device.GPU else parts

    @classmethod
    def of(cls, prefixes: Prefixes, coarse: CoarseIndex, name: str) -> Self:
        """Rows and their coarse stage alone. `name`: what that was read from, for errors."""
        level, file = chosen_level(), prefixes.file
        graph = native_cascade(coarse, prefixes, name, level)
        native = None if level is None else NativeRows(file, level)
        return cls(prefixes, coarse, graph, native, words=None, passages=None)

    @property
    def file(self) -> VectorFile:
        """The full-width rows."""
        return self.prefixes.file

    def with_coarse(self, prefixes: Prefixes, coarse: CoarseIndex, kept: Allowed | None) -> Self:
        """These files with another coarse stage, which holds the rows `kept`, None for all.

        It is scanned on the CPU: a GPU's copy holds the old prefixes.
        """
        level = None if self.native is None else self.native.level
        graph = native_cascade(coarse, prefixes, "the coarse stage in memory", level)
        return self._replace(
            prefixes=prefixes, coarse=coarse, graph=graph, gpu_coarse=None, kept=kept
        )

    def restricted(self, allowed: Allowed | npt.ArrayLike | None) -> Allowed | None:
        """The rows that a caller allows, checked; in a trial only those it holds. None: no filter.

        Raises VectorError.
        """
        only = restriction(allowed, self.file.rows)
        if only is None or self.kept is None:
            return only
        return Allowed.from_rows(np.flatnonzero(only.mask & self.kept.mask), self.file.rows)

    def searched(self, only: Allowed | None) -> Allowed | None:
        """The rows that a search may find under this filter; None for all."""
        return self.kept if only is None else only

    def available(self, only: Allowed | None) -> int:
        """Number of rows that a search may find under this filter."""
        within = self.searched(only)
        return self.file.rows if within is None else within.size

    def on_gpu(self) -> Self:
        """These files, with copies of the scanned ones in the memory of a GPU."""
        full = gpu_copy(Prefixes(self.file, self.file.dim))
        if self.coarse.structure is not Structure.FLAT:
            return self._replace(gpu_full=full)
        return self._replace(gpu_full=full, gpu_coarse=gpu_copy(self.prefixes))

    def shortlist(
        self, queries: Floats, size: int, only: Allowed | None, effort: int
    ) -> RowNumbers:
        """As Segment.shortlist, for unit queries; where few rows are available, all in order."""
        within, available = self.searched(only), self.available(only)
        if size >= available:
            all_rows = np.full((len(queries), size), -1, np.int64)
            all_rows[:, :available] = np.arange(available) if within is None else within.rows
            return all_rows
        if self.compares_all(size, only):
            return self.exact(queries, size, only).rows
        if self.graph is not None:
            return self.graph.search(queries, size, size, effort, only, reranked=False)[0]
        coarse = self.coarse
        if self.gpu_coarse is not None and only is None and size < GPU_MAX_SIZE:
            coarse = self.gpu_coarse
        rows = coarse.shortlist(self.prefixes.of(queries), size, only, effort)
        short = np.flatnonzero(rows[:, -1] < 0)  # the walk ended too early
        if short.size:
            rows[short] = self.exact(queries[short], size, only).rows
        return rows

    def compares_all(self, size: int, only: Allowed | None) -> bool:
        """Whether a search with a shortlist of `size` compares all (allowed) rows at full width."""
        available = self.available(only)
        walked_by_faiss = self.graph is None and self.coarse.structure is not Structure.FLAT
        few = SCANNED_SHARE * self.coarse.rows if walked_by_faiss else 0
        return available <= size or (only is not None and available <= max(few, EXACT_ALLOWED))

    def exact(self, queries: Floats, k: int, only: Allowed | None) -> SearchResult:
        """The true best k of all (allowed) rows for unit queries, from their full width."""
        within, on_gpu = self.searched(only), self.gpu_full is not None
        if self.native is not None and (within is not None or not on_gpu):
            if within is None or within.size >= LISTED_SHARE * within.total:
                mask = None if within is None else within.mask
                return SearchResult(*self.native.best(queries, k, mask=mask))
            return SearchResult(*self.native.best(queries, k, rows=within.rows))

        def best(batch: Floats, size: int) -> RowNumbers:
            if self.gpu_full is not None and within is None and size < GPU_MAX_SIZE:
                return self.gpu_full.shortlist(batch, size)
            if self.native is not None:
                return self.native.best(batch, size)[0]
            return nearest(self.file, batch, size, within)

        slack = score_slack(self.file.dim) + (GPU_SLACK if on_gpu else 0)
        return scan(best, self.file, queries, k, self.available(only), slack)

    def rerank(self, queries: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """The best k candidates (q, s) for unit queries; their row numbers are not checked."""
        if self.native is None:
            return rerank(self.file, queries, candidates, k)
        return SearchResult(*self.native.rerank(queries, candidates, k))
