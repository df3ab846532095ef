"""Queries in the basis of stored rows: scaled to length one and rotated, once for all segments."""

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, unit_rows
from searchengine.indexer.faiss_calls import faiss, native_threads
from searchengine.indexer.threads import slices

QUERIES_PER_THREAD = 64
"""Queries rotated per thread: this takes less time than waking another thread."""


class Rotation:
    """A rotation R (D, D), applied to queries as x @ R."""

    def __init__(self, matrix: Floats) -> None:
        self.matrix = matrix
        self._dim = len(matrix)
        self._rows = np.ascontiguousarray(matrix.T)
        self._linear = faiss.LinearTransform(self._dim, self._dim, False)
        faiss.copy_array_to_vector(self._rows.ravel(), self._linear.A)
        self._linear.is_trained = True
        self._pointer = faiss.swig_ptr(self._rows)

    def of_unit(self, queries: npt.ArrayLike) -> Floats:
        """Queries (q, D) of any length > 0, scaled to length one and rotated.

        Raises:
            VectorError: as unit_rows.
        """
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
