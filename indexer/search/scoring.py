"""Rows scored at full width: which are allowed, rerank, exact search, and near duplicates.

Groups of vectors that are nearly the same are found without comparing all at full width:

    cosine(a, b) ≤ a′ · b′ + |a″| |b″|        a′: the first dimensions of a, rotated; a″: the rest

With |a″| as one more dimension, the bound is one product of short vectors; only pairs whose bound
reaches the threshold are compared at full width.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, Mask, RowNumbers, read_ahead, row_numbers
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import VectorError
from searchengine.indexer.native.library import faiss, load
from searchengine.indexer.storage.vectors import Prefixes, VectorFile
from searchengine.indexer.threads import slices, threads

CHUNK_VALUES = 1 << 18
"""Values gathered at a time: 1 MiB of float32, which stays in the cache of one core."""

EXTRA_ROWS = 32
"""Rows beyond k that a scan returns, because its rounding differs from that of `rerank`."""

MAX_LENGTH = 1.01
"""Maximum length of a row: rows have length one, rounded to float16."""

_THREAD_BYTES = 1 << 24
"""Bytes of rows that one thread scores, in a millisecond or two. Waiting for a second thread takes
longer where other programs are running."""

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 1 << 24  # rows of a pass
_MIN_SCORED = 1 << 14  # of a pass, which take a millisecond or two: few rows need one pass
_QUERIES = 256  # of a pass: their heaps and vectors stay in a cache


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
        self._file, self._address = file, file.address
        self._half = file.storage is Storage.FLOAT16
        self._stride = file.dim * (2 if self._half else 4)  # bytes of a row
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
                    start, end = piece.start * self._stride, piece.stop * self._stride
                    offset = self._file.offset
                    read_ahead(self._file.map, offset + start, offset + end)
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
            full=self._address,
            dim=self.dim,
            half=self._half,
            queries=queries.ctypes.data,
            count=len(queries),
            k=k,
        )

    def _threads(self, scored: int) -> int:
        return -(-scored * self._stride // _THREAD_BYTES)

    @staticmethod
    def _check(failed: int, part: _Pass) -> None:
        if failed:
            raise MemoryError(f"no memory for the best {part.k} rows of {part.count} queries")


_PREFIX = 64  # dimensions of the bound of duplicates
_FEW = 1024  # vectors below which all are compared at full width
_BLOCK = 1024  # rows, and earlier ones, compared at a time: their products stay in the cache
_SLACK = 1e-5  # more than float32 loses of a bound


def leaders(
    vectors: Floats, above: float, progress: Callable[[int], None] = lambda done: None
) -> tuple[RowNumbers, Floats]:
    """For each vector the first of its group, which may be itself, and its cosine to it.

    In the order of the rows: a vector joins the earliest first one of a group to which its cosine
    is at least `above`, or else is the first of a group. So the first ones differ from each other,
    and each of the others is close to the first of its group.

    Args:
        vectors: (n, D) float32 unit rows; a row of zeros is close to none.
        above: the least cosine, above 0.
        progress: called with the number of rows just done; what it raises ends the work.

    Returns (n,) int64 positions and (n,) float32 cosines. O(n² · 64) for n different vectors.
    """
    count = len(vectors)
    leader, cosine = np.arange(count), np.ones(count, np.float32)
    short = _bounding(vectors) if count > _FEW else vectors
    firsts = np.empty(0, np.int64)  # of the groups so far
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        for others in (*np.split(firsts, range(_BLOCK, len(firsts), _BLOCK)), rows):
            alone = rows[leader[rows] == rows]
            likely = short[alone] @ short[others].T >= above - _SLACK
            for i in np.flatnonzero(likely.any(axis=1)):
                row, earlier = alone[i], others[likely[i]]
                earlier = earlier[(leader[earlier] == earlier) & (earlier < row)]
                exact = vectors[earlier] @ vectors[row]
                near = np.flatnonzero(exact >= above)
                if len(near):
                    leader[row], cosine[row] = earlier[near[0]], exact[near[0]]
        firsts = np.append(firsts, rows[leader[rows] == rows])
        progress(len(rows))
    return leader, cosine


def _bounding(vectors: Floats) -> Floats:
    """The first dimensions in the basis that gives them most, and the length of the rest."""
    if vectors.shape[1] <= _PREFIX + 1:
        return vectors
    _, basis = np.linalg.eigh(vectors.T @ vectors)  # ascending
    prefix = vectors @ basis[:, -_PREFIX:]
    squares = np.einsum("ij,ij->i", vectors, vectors) - np.einsum("ij,ij->i", prefix, prefix)
    return np.hstack([prefix, np.sqrt(squares.clip(0))[:, None]])
