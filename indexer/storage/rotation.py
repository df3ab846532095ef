"""The rotation that the prefix is made with: the directions in which rows have most energy.

The p-dimensional prefix that keeps the most energy of unit rows is their part along the leading
eigenvectors of X^T X (Eckart and Young 1936; uncentred principal components, because cosine does
not subtract the mean). Rows and queries themselves are not rotated: an orthogonal matrix would not
change their full-width cosines.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers, evenly, prefix
from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.vectors_file import VectorFile

ROTATION_SAMPLE = 30_000
"""Maximum rows that a rotation is fitted on, forty for each of 768 dimensions; more are sampled
evenly."""

_SINGLE_THREAD_ROWS = 8  # that one thread rotates alone
_COMPARED = 256  # rows of each; `sample` would release pages of a file that is searched
_KEPT = 0.95  # of 5,000 texts and more, others like them keep 0.96 to 0.99, code 0.75 to 0.88


def pca(blocks: Iterable[Floats], width: int) -> Floats:
    """The `width` directions of most energy, in descending order: (width, D) float32, orthonormal.

    Fewer rows than `width` is fine: arbitrary directions complete them. Equal input gives an equal
    matrix: the largest entry of each row is positive.

    Args:
        blocks: arrays (n_i, D) of finite rows.

    Raises:
        VectorError: no rows.
    """
    energy = _energy(blocks)
    rows, dim = energy.shape
    if rows < dim:  # X itself: its rows span all that there is
        vectors, inner = np.linalg.qr(energy.T.astype(np.float64))
        vectors = vectors @ np.linalg.eigh(inner @ inner.T)[1][:, ::-1]
        if rows < width:
            vectors, _ = np.linalg.qr(np.hstack([vectors, np.eye(dim, width)]))
    else:
        vectors = np.linalg.eigh(energy)[1][:, ::-1]  # eigh gives ascending energy
    leading = vectors[:, :width]
    largest = leading[np.abs(leading).argmax(axis=0), np.arange(width)]
    return np.ascontiguousarray((leading * np.sign(largest)).T, np.float32)


def _energy(blocks: Iterable[Floats]) -> npt.NDArray[np.floating]:
    """All rows X (n, D) where n <= D / 2, as they are, else X^T X (D, D) in float64.

    Within a block of float32 rows the products are summed in float32, in a third of the time: the
    energy of each prefix stays the same to five digits (100,000 real rows).
    """
    gram: Doubles | None = None
    pending: list[Floats] = []
    rows = 0
    for block in blocks:
        pending.append(block)
        rows += len(block)
        if 2 * rows <= block.shape[1]:
            continue
        for held in pending:
            product = (held.T @ held).astype(np.float64)
            gram = product if gram is None else gram + product
        pending.clear()
    if rows == 0:
        raise VectorError("a rotation needs at least one row to be fitted on, got none")
    return np.concatenate(pending) if gram is None else gram


def shared(like: "Prefixes", rows: VectorFile, width: int) -> Floats | None:
    """The rotation of other rows for a prefix of `width`, if it suits these; None if not.

    It does if it keeps nearly as large a part of them (_KEPT) as of the other ones, of samples.
    """
    if like.matrix is None or like.dim < width or like.file.dim != rows.dim:
        return None
    matrix = like.matrix[:width]
    samples = (file.take(evenly(file.rows, _COMPARED)) for file in (rows, like.file))
    here, there = (float((rotated(sample, matrix) ** 2).mean()) for sample in samples)
    return matrix if here >= _KEPT * there else None


def rotated(rows: Floats, matrix: Floats) -> Floats:
    """Rows (n, D) along the directions of a matrix (p, D): (n, p) float32, not re-normalised.

    In float64, so that a product is rounded once: BLAS sums a row in an order that depends on its
    place in the block, and in float32 equal rows would get different codes.
    """
    wide = rows.astype(np.float64)
    # BLAS wakes a thread per core, and a few rows then wait for the slowest: 14 ms instead of 0.1.
    if len(rows) <= _SINGLE_THREAD_ROWS:
        return np.asarray(np.einsum("nd,pd->np", wide, matrix), np.float32)
    return (wide @ matrix.astype(np.float64).T).astype(np.float32)


def prefixes(rows: Floats, width: int, matrix: Floats | None) -> Floats:
    """What the coarse stage compares: the first `width` dimensions of rotated rows, re-normalised.

    Args:
        rows: (n, D) finite.
        matrix: (width, D), from `pca`; None: rows are not rotated.

    Returns:
        (n, width) float32 unit rows, C-contiguous.
    """
    return prefix(rows if matrix is None else rotated(rows, matrix), width)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prefixes of the rows of a file, from which a coarse stage is built."""

    file: VectorFile
    dim: int
    matrix: Floats | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.file.rows

    def of(self, queries: Floats) -> Floats:
        """The prefixes of queries: (q, D) to (q, dim), by products in float32."""
        if self.matrix is None:
            return prefix(queries, self.dim)
        few = len(queries) <= _SINGLE_THREAD_ROWS
        products = np.vecdot(queries[:, None], self.matrix) if few else queries @ self.matrix.T
        return prefix(products, self.dim)

    def take(self, rows: RowNumbers) -> Floats:
        """The prefixes of rows of the file: row numbers of any shape (...) to (..., dim)."""
        read = self.dim if self.matrix is None else None
        flat = prefixes(self.file.take(rows.ravel(), read), self.dim, self.matrix)
        return flat.reshape(*rows.shape, self.dim)

    def blocks(self, order: RowNumbers | None = None) -> Iterator[Floats]:
        """All prefixes, BLOCK_ROWS at a time, by row number or in another order."""
        read = self.dim if self.matrix is None else None
        for rows in self.file.blocks(order, read):
            yield prefixes(rows, self.dim, self.matrix)

    def sample(self, count: int) -> Floats:
        """At most `count` prefixes, evenly spread."""
        return np.concatenate([*self.blocks(evenly(self.rows, count))])
