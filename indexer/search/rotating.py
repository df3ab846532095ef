"""Queries in the basis of stored rows: scaled to length one and rotated, once for all segments."""

import ctypes
import math

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, address, unit_rows
from searchengine.indexer.faiss_calls import faiss, native_threads
from searchengine.indexer.native.library import load
from searchengine.indexer.storage.basis import SPAN, factored
from searchengine.indexer.threads import slices

QUERIES_PER_THREAD = 64
"""Queries rotated per thread: this takes less time than waking another thread."""


class RotationArrays(ctypes.Structure):
    """Equal to Rotation in source/rotation.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("dim", "span")),
        *((name, ctypes.c_void_p) for name in ("rows", "inverse", "signs")),
    )


class Rotation:
    """A rotation R (D, D), applied to queries as x @ R."""

    def __init__(self, matrix: Floats, level: int | None = None) -> None:
        """`level`: of the compiled kernel, from library.chosen_level; None: faiss rotates."""
        self.matrix = matrix
        self._dim = len(matrix)
        self._rows = np.ascontiguousarray(matrix.T)
        self._linear = faiss.LinearTransform(self._dim, self._dim, False)
        faiss.copy_array_to_vector(self._rows.ravel(), self._linear.A)
        self._linear.is_trained = True
        self._pointer = faiss.swig_ptr(self._rows)
        self._kernel = None if level is None else _KernelRotation(self._rows, level)

    def of_unit(self, queries: npt.ArrayLike) -> Floats:
        """Queries (q, D) of any length > 0, scaled to length one and rotated.

        The compiled kernel does both for one query in a float32 array.

        Raises:
            VectorError: as unit_rows.
        """
        if (
            self._kernel is not None
            and isinstance(queries, np.ndarray)
            and queries.shape == (1, self._dim)
            and queries.dtype == np.float32
            and queries.flags.c_contiguous
        ):
            out = self._kernel(queries)
            if out is not None:
                return out
        return self.apply(unit_rows(queries, dim=self._dim))

    def apply(self, queries: Floats) -> Floats:
        """Rotate queries (q, D) float32, in one thread per QUERIES_PER_THREAD of them.

        BLAS would wake a thread per core, and a few queries then wait for the slowest: on a busy
        machine 1 ms instead of 0.02 for one, up to 13 instead of 0.1 for sixteen.
        """
        queries, out = np.ascontiguousarray(queries), np.empty(queries.shape, np.float32)
        if len(queries) == 1:
            pointers = faiss.swig_ptr(out), faiss.swig_ptr(queries), self._pointer
            faiss.fvec_inner_products_ny(*pointers, out.size, out.size)
        elif len(queries):
            for part in slices(len(queries), QUERIES_PER_THREAD):
                batch, into = queries[part], faiss.swig_ptr(out[part])
                with native_threads(-(-len(batch) // QUERIES_PER_THREAD)):
                    self._linear.apply_noalloc(len(batch), faiss.swig_ptr(batch), into)
        return out

    def undo(self, rows: Floats) -> Floats:
        """Rows (n, D) float32 as rows @ R.T. A few take one thread, as in `apply`."""
        if len(rows) > QUERIES_PER_THREAD:
            return rows @ self.matrix.T
        rows, out = np.ascontiguousarray(rows), np.empty(rows.shape, np.float32)
        with native_threads(1):
            into, stored = faiss.swig_ptr(out), faiss.swig_ptr(rows)
            self._linear.transform_transpose(len(rows), stored, into)
        return out


class _KernelRotation:
    """The rotation of one query by the compiled kernel, with the factors of R where it has them."""

    def __init__(self, rows: Floats, level: int) -> None:
        """`rows`: the transpose of R (D, D)."""
        self._level, self._dim = level, len(rows)
        self._rotate = load().kernel_rotate
        factors = factored(rows)
        self._matrices = (rows,) if factors is None else factors
        arrays = RotationArrays(
            dim=self._dim,
            span=0 if factors is None else SPAN,
            rows=address(self._matrices[0]),
            inverse=None if factors is None else address(factors[1]),
            signs=None if factors is None else address(factors[2]),
        )
        self._arrays, self._pointer = arrays, ctypes.addressof(arrays)

    def __call__(self, query: Floats) -> Floats | None:
        """A query (1, D), scaled and rotated; None if it is zero or not finite."""
        out = np.empty((1, self._dim), np.float32)
        squared = self._rotate(self._level, address(query), self._pointer, address(out))
        return out if 0 < squared < math.inf else None


class Queries:
    """The queries of one search, rotated once for all segments that share a rotation.

    Used by one thread at a time.
    """

    def __init__(self, vectors: npt.ArrayLike) -> None:
        """`vectors`: (q, D), any length > 0; checked when they are rotated."""
        self._vectors = vectors
        self._rotated: dict[Rotation | None, Floats] = {}

    def rotated(self, rotation: Rotation | None, dim: int) -> Floats:
        """Unit queries (q, D) in a basis; `rotation` None is the identity.

        Raises:
            VectorError: as unit_rows.
        """
        if rotation not in self._rotated:
            self._rotated[rotation] = (
                unit_rows(self._vectors, dim=dim)
                if rotation is None
                else rotation.of_unit(self._vectors)
            )
        return self._rotated[rotation]
