"""Rows scored by the compiled kernel: all of them in one pass for a batch, or candidates."""

import ctypes

import numpy as np

from indexer.arrays import Floats, Mask, RowNumbers
from indexer.config import Storage
from indexer.native.library import load
from indexer.storage.vectors import VectorFile
from indexer.threads import slices, threads

_THREAD_BYTES = 1 << 24
"""Bytes of rows that one thread scores, in a millisecond or two. Waiting for a second thread takes
longer where other programs are running."""

_MIN_BLOCK, _MAX_BLOCK = 1 << 10, 1 << 24  # rows of a pass
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
        self.rows, self.dim = file.rows, file.dim
        self._file, self._half, self._level = file, file.storage is Storage.FLOAT16, level
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
        found = self._empty(len(queries), k)
        for first in range(0, len(queries), _QUERIES):
            group = slice(first, first + _QUERIES)
            self._add_best(queries[group], k, rows, mask, found[0][group], found[1][group])
        return found

    def _add_best(
        self,
        queries: Floats,
        k: int,
        rows: RowNumbers | None,
        mask: Mask | None,
        best: RowNumbers,
        scores: Floats,
    ) -> None:
        part = self._pass(queries, k)
        part.numbers = None if rows is None else rows.ctypes.data
        part.mask = None if mask is None else mask.ctypes.data
        into = best.ctypes.data, scores.ctypes.data
        for piece in slices(self.rows if rows is None else rows.size, _MIN_BLOCK, _MAX_BLOCK):
            part.first, part.last = piece.start, piece.stop
            if rows is None:
                self._file.read_ahead(piece)
            with threads.take(self._threads((piece.stop - piece.start) * len(queries))) as count:
                failed = self._library.kernel_add_best(
                    self._level, ctypes.byref(part), count, *into
                )
            self._check(failed, part)

    def rerank(self, queries: Floats, candidates: RowNumbers, k: int) -> tuple[RowNumbers, Floats]:
        """The best k of the candidates (q, s), as `best`; -1 is padding. Raises MemoryError."""
        found = self._empty(len(queries), k)
        queries = np.ascontiguousarray(queries, np.float32)
        candidates = np.ascontiguousarray(candidates, np.int64)
        for group in slices(len(queries)):
            part = self._pass(queries[group], k)
            lines = candidates[group]
            with threads.take(min(len(lines), self._threads(lines.size))) as count:
                failed = self._library.kernel_rerank(
                    self._level,
                    ctypes.byref(part),
                    lines.ctypes.data,
                    lines.shape[1],
                    count,
                    *(each[group].ctypes.data for each in found),
                )
            self._check(failed, part)
        return found

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
