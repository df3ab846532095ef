"""Allowed rows, and rows scored by faiss, numpy or a GPU: the coarse stage, rerank.

Scores of the coarse stage only rank candidates; users never see them. A scan breaks ties by row
number, also at the cut, so a flat coarse stage is deterministic and a longer shortlist contains
every shorter one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, Mask, RowNumbers, locality, row_numbers
from searchengine.indexer.config import Structure
from searchengine.indexer.errors import SegmentError, VectorError, shortened
from searchengine.indexer.native.library import faiss
from searchengine.indexer.storage.vectors import Prefixes, VectorFile
from searchengine.indexer.threads import slices, threads

MIN_EF_SEARCH = 32
"""Minimum ef_search where it follows the size of the shortlist, at an effort of 0. (A longer one
bought as much recall@10 for the same time as a higher ef_search, or more: 20k real sentences.)"""

LOCALITY_BATCH = 64
"""A batch of at least this many queries is sorted by similarity: neighbours read the same rows,
which are then still in the cache (1.2 to 1.5 times as many queries per second; 10,000 queries over
200k real sentences, two cores)."""

Search = Callable[[Floats, int], tuple[Floats, RowNumbers]]

CHUNK_VALUES = 1 << 18
"""Values gathered at a time: 1 MiB of float32, which stays in the cache of one core."""

EXTRA_ROWS = 32
"""Rows beyond k that a scan returns, because its rounding differs from that of `rerank`."""

MAX_LENGTH = 1.01
"""Maximum length of a row: rows have length one, rounded to float16."""


class Allowed:
    """The rows of a segment that may be found. Immutable, and safe to use from several threads.

    Create it with `from_rows` or `without`. Rows, mask and selector are computed on first use and
    kept, because a collection with deleted rows restricts every search to the same rows.

    Attributes:
        total: number of rows of the segment.
        size: number of allowed rows.
    """

    __slots__ = ("__weakref__", "_mask", "_rows", "_selector", "size", "total")

    def __init__(self, total: int, size: int, rows: RowNumbers | None, mask: Mask | None) -> None:
        for array in (rows, mask):
            if array is not None:
                array.flags.writeable = False
        self._rows, self._mask, self._selector = rows, mask, None
        self.total, self.size = total, size

    @classmethod
    def from_rows(cls, rows: npt.ArrayLike, total: int) -> Self:
        """Allow these rows of a segment of `total`: strictly rising numbers, possibly none.

        Raises:
            VectorError: they do not rise, or are outside the segment.
        """
        numbers = row_numbers(rows, total).copy()
        return cls(total, numbers.size, numbers, None)

    @classmethod
    def without(cls, rows: npt.ArrayLike, total: int) -> Self:
        """Allow all rows of a segment of `total` except these: strictly rising numbers.

        Raises:
            VectorError: as `from_rows`.
        """
        numbers = row_numbers(rows, total)
        mask = np.ones(total, np.bool_)
        mask[numbers] = False
        return cls(total, total - numbers.size, None, mask)

    @property
    def rows(self) -> RowNumbers:
        """The allowed row numbers, rising: (size,) int64, read-only."""
        if self._rows is None:
            self._rows = np.flatnonzero(self.mask)
            self._rows.flags.writeable = False
        return self._rows

    @property
    def mask(self) -> Mask:
        """Whether each row is allowed: (total,) bool, read-only."""
        if self._mask is None:
            mask = np.zeros(self.total, np.bool_)
            mask[self._rows] = True
            mask.flags.writeable = False
            self._mask = mask
        return self._mask

    @property
    def selector(self) -> Any:
        """The allowed rows as a faiss selector; None where every row is allowed."""
        if self._selector is None and self.size < self.total:
            # One bit per row, tested in constant time.
            bits = np.packbits(self.mask, bitorder="little")
            self._selector = faiss.IDSelectorBitmap(bits)
        return self._selector

    def __repr__(self) -> str:
        return f"Allowed({self.size} of {self.total} rows)"


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


def highest(rows: RowNumbers, scores: Floats, k: int) -> SearchResult:
    """The first k by (-score, row), padding last."""
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    size = order.shape[1]
    best_rows = np.full((rows.shape[0], k), -1, np.int64)
    best_scores = np.full((rows.shape[0], k), -np.inf, np.float32)
    best_rows[:, :size] = np.take_along_axis(rows, order, axis=1)
    best_scores[:, :size] = np.take_along_axis(scores, order, axis=1)
    return SearchResult(best_rows, best_scores)


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
    return highest(candidates, scores, k)


def scan(
    shortlist: Callable[[Floats, int], RowNumbers],
    store: VectorFile | Prefixes,
    queries: Floats,
    k: int,
    available: int,
    slack: float,
) -> SearchResult:
    """The best k of `available` rows, from a scan with scores that may be off by `slack`.

    A row that the scan did not return can be among the best k only if the k-th exact score and the
    last one differ by less than the errors of both. For such queries more rows are scanned.

    Args:
        shortlist: queries and a size to rows (q, size), by a scan of all available rows.
        store: the rows at the width of the queries.
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


def nearest(
    file: VectorFile | Prefixes, queries: Floats, size: int, within: Allowed | None
) -> RowNumbers:
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


class CoarseIndex:
    """The coarse stage: prefixes of the rows of a segment, searched by inner product.

    Attributes:
        index: the faiss index; its ids are row numbers. inner: the faiss index without the ids.
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

    def nprobe(self, effort: int = 0, allowed: Allowed | None = None) -> int:
        """How many lists a search reads, at most all; an effort of 0 reads a sixteenth of them.

        More under a filter, because lists hold rows that are not allowed too.
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
            wanted = max(effort or MIN_EF_SEARCH, size)  # a walk also passes rows not allowed
            ef_search = min(int(wanted / self.share(allowed)), self.rows)
            parameters = faiss.SearchParametersHNSW(efSearch=ef_search, sel=selector)
        for part in slices(len(queries)):
            with faiss_threads(part.stop - part.start):
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
            with self._lock, faiss_threads(part.stop - part.start):
                self.index.search(queries[part], size, params=parameters, **into)
        return scores, rows


@contextmanager
def faiss_threads(limit: int) -> Iterator[None]:
    """Take at most `limit` of the process's threads for one faiss call.

    `limit` is at most the number of queries, because faiss divides a call by queries, not rows. A
    thread without work still has to reach the barrier: on a busy machine one query waits whole time
    slices for it (16 ms instead of 0.2 ms). The setting applies to the calling thread only.
    """
    with threads.take(limit) as count:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(count)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)


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


def open_coarse(path: Path) -> CoarseIndex:
    """Map a saved index. The caller has verified the file's checksum: faiss trusts what it reads.

    A file made to harm can end the process (docs/operating.md). Raises SegmentError: faiss cannot
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
    resources, lock = _first_gpu()
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
def _first_gpu() -> tuple[Any, AbstractContextManager[object]]:
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
