"""The cascade of an open segment: faiss or the kernel finds a shortlist by prefix; then full width.

Parts are the checked and mapped files. A GPU gets copies of the scanned ones; graphs are walked on
the CPU: its caches suit them better.

Scores of the coarse stage only rank candidates; users never see them. A scan breaks ties by row
number, also at the cut, so a flat coarse stage is deterministic and a longer shortlist contains
every shorter one.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, RowNumbers, locality
from searchengine.indexer.config import Device, RotationKind, Structure
from searchengine.indexer.errors import SegmentError, shortened
from searchengine.indexer.native.hnsw import NativeGraph, NodeFilter, Nodes, Words
from searchengine.indexer.native.library import chosen_level, faiss, native_threads
from searchengine.indexer.search.postings import Postings
from searchengine.indexer.search.scoring import (
    Allowed,
    NativeRows,
    SearchResult,
    nearest,
    rerank,
    restriction,
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
from searchengine.indexer.threads import slices

MIN_EF_SEARCH = 32
"""Minimum ef_search that follows from the size of a shortlist."""

LOCALITY_BATCH = 64
"""A batch of at least this many queries is sorted by similarity: neighbours read the same rows,
which are then still in the cache (1.2 to 1.5 times as many queries per second; 10,000 queries over
200k real sentences, two cores)."""

Search = Callable[[Floats, int], tuple[Floats, RowNumbers]]


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
            search = partial(self._scan, allowed=allowed)
            shortlist[:, :filled] = ordered(search, queries, filled, available)[1]
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


def ordered(
    search: Search, queries: Floats, size: int, available: int
) -> tuple[Floats, RowNumbers]:
    """Scores and rows (q, size) by (-score, row), from a search that breaks ties arbitrarily.

    One row more than `size` shows whether the cut goes through a tie; if it does, more rows are
    requested until the tie is complete.

    Args:
        search: queries and a size to scores and rows, best first.
        queries: (q, width) float32.
        size: rows per query.
        available: the most rows that `search` can return.
    """
    requested = min(size + 1, available)
    scores, rows = search(queries, requested)
    if (scores[:, 1:] < scores[:, :-1]).all():
        return scores[:, :size], rows[:, :size]  # no tie: faiss has sorted them
    best_rows = np.empty((queries.shape[0], size), np.int64)
    best_scores = np.empty(best_rows.shape, np.float32)
    pending = np.arange(queries.shape[0])
    while True:
        order = np.lexsort((rows, -scores))[:, :size]
        best_rows[pending] = np.take_along_axis(rows, order, axis=1)
        best_scores[pending] = np.take_along_axis(scores, order, axis=1)
        if requested == available:
            return best_scores, best_rows
        pending = pending[scores[:, size - 1] == scores[:, -1]]
        if pending.size == 0:
            return best_scores, best_rows
        requested = min(2 * requested, available)
        scores, rows = search(queries[pending], requested)


def structure_of(index: Any) -> Structure | None:
    """The Structure of a faiss index; None if it is another kind."""
    kinds = {
        faiss.IndexHNSW: Structure.HNSW,
        faiss.IndexIVF: Structure.IVF,
        faiss.IndexFlatCodes: Structure.FLAT,
    }
    if hasattr(faiss, "GpuIndexFlat"):
        kinds[faiss.GpuIndexFlat] = Structure.FLAT
    return next((kind for types, kind in kinds.items() if isinstance(index, types)), None)


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
    passages: RowNumbers | None  # (3, rows); None: it does not tell which passages its rows are
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

        Raises:
            VectorError: as searchengine.indexer.search.scoring.restriction.
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


def open_coarse(path: Path) -> CoarseIndex:
    """Map a saved index. The caller has verified the file's checksum: faiss trusts what it reads.

    A file made to harm can end the process, see docs/format.md. Raises SegmentError: faiss cannot
    read it, or its structure is not one of this package.
    """
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:  # a length in the file may be any number
        reason = shortened(str(error) or "it asks for more memory than there is")
        raise SegmentError(f"faiss cannot read {path}: {reason}") from error
    inner = index.index if isinstance(index, faiss.IndexIDMap) else index
    if (
        structure_of(faiss.downcast_index(inner)) is None
        or index.metric_type != faiss.METRIC_INNER_PRODUCT
    ):
        raise SegmentError(
            f"{path} must hold a coarse stage of this package, got {type(index).__name__}"
        )
    return CoarseIndex(index)


def gpu_copy(rows: Prefixes) -> CoarseIndex:
    """All rows as a flat float16 index in the memory of the first GPU.

    Raises:
        SegmentError: no GPU, or not enough memory on it.
    """
    require_gpu()
    resources, lock = first_gpu()
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    try:
        with lock:
            index = faiss.GpuIndexFlatIP(resources, rows.dim, config)
            for block in rows.blocks():
                index.add(block)
    except RuntimeError as error:
        raise SegmentError(
            f"the GPU has no room for {rows.rows} rows of {2 * rows.dim} bytes: {error}; "
            "search on the CPU"
        ) from error
    return CoarseIndex(index, lock=lock)


@cache
def first_gpu() -> tuple[Any, AbstractContextManager[object]]:
    """The resources of the first GPU, with 1.5 GB of working memory, opened once in a process.

    One thread at a time may use them: whoever uses an index on the GPU holds the lock.
    """
    return faiss.StandardGpuResources(), Lock()


def require_gpu() -> None:
    """Raise SegmentError if faiss sees no GPU, or was built without support for one."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise SegmentError(
            "this faiss was built without GPU support: "
            "pip uninstall faiss-cpu, then pip install faiss-gpu; or leave out the device"
        )
    if not faiss.get_num_gpus():
        raise SegmentError("faiss sees no GPU here; leave out the device to search on the CPU")
