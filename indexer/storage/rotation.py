"""The rotation that packs the most energy into the first dimensions of every vector.

An orthogonal matrix does not change full-width cosines, so the rotation costs no accuracy. The
p-dimensional prefix that keeps the most energy is spanned by the leading eigenvectors of X^T X
(Eckart and Young 1936; uncentred principal components, because cosine does not subtract the mean).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from indexer.arrays import Doubles, Floats, prefix
from indexer.errors import SegmentConfigError, VectorError
from indexer.faiss_calls import faiss

Blocks = Iterable[npt.NDArray[np.floating]]


def pca(blocks: Blocks) -> Floats:
    """Fit the rotation on rows that arrive in blocks; memory is one block and two D x D matrices.

    Fewer rows than D is fine: the basis is completed orthogonally, and up to D / 2 rows take a
    fraction of the time. The sign of each column is chosen so that its largest entry is positive,
    so equal input gives an equal matrix.

    Args:
        blocks: arrays (n_i, D) of finite rows.

    Returns:
        (D, D) float32, orthogonal to 1e-5; `x @ R` has its energy in descending order.

    Raises:
        VectorError: no rows at all, or blocks of different widths.
    """
    return _leading(_energy(blocks)).astype(np.float32)


def blockwise(blocks: Blocks, ends: Sequence[int]) -> Floats:
    """`pca` within blocks of dimensions, so that each block keeps its span.

    A prefix that a model was trained for (Matryoshka) then spans the same space as before: its
    scores stay, and shorter prefixes within it improve.

    Args:
        blocks: arrays (n_i, D) of finite rows.
        ends: where each block of dimensions ends, rising, at most D; the rest is the last block.

    Raises:
        VectorError: as `pca`. SegmentConfigError: a block ends beyond D.
    """
    energy = _energy(blocks)
    dim = energy.shape[1]
    rows_only = len(energy) < dim
    if ends[-1] > dim:
        raise SegmentConfigError(
            f"blocks end at {ends[-1]}, beyond the width of the vectors, {dim}"
        )
    matrix = np.zeros((dim, dim))
    for start, end in pairwise(sorted({0, *ends, dim})):
        part = energy[:, start:end]
        matrix[start:end, start:end] = _leading(_energy([part]) if rows_only else part[start:end])
    return matrix.astype(np.float32)


def itq(rotation: Floats, blocks: Blocks, p: int) -> Floats:
    """`rotation`, then a rotation of the first `p` dimensions that makes their signs most accurate.

    After `pca` the leading dimensions hold most of the energy, and 1 bit for each is a bad code.
    Iterative quantization rotates the prefix so that its signs are as close to it as possible (Gong
    and Lazebnik 2011). The prefix keeps its span, and so its energy.

    Args:
        rotation: (D, D) float32, the result of `pca`.
        blocks: arrays (n_i, D) of rows before the rotation; their prefixes are held in memory.
        p: dimensions of the prefix.
    """
    fitted = faiss.ITQMatrix(p)
    heads = [prefix(np.asarray(block, np.float32) @ rotation[:, :p], p) for block in blocks]
    fitted.train(np.concatenate(heads))
    inner = faiss.vector_to_array(fitted.A).reshape(p, p)
    matrix = rotation.astype(np.float64)
    matrix[:, :p] = matrix[:, :p] @ _orthonormal(inner.astype(np.float64).T)
    return matrix.astype(np.float32)


def _energy(blocks: Blocks) -> Doubles:
    """All rows X (n, D) where n <= D / 2, else X^T X (D, D); in float64."""
    gram: Doubles | None = None
    held: list[Doubles] = []
    rows, dim = 0, 0
    for block in blocks:
        wide = np.asarray(block, dtype=np.float64)
        if wide.ndim != 2 or dim not in (0, wide.shape[1]):
            expected = f"(n, {dim or 'D'})"
            raise VectorError(f"rotation blocks must be {expected}, got shape {wide.shape}")
        rows, dim = rows + len(wide), wide.shape[1]
        held.append(wide)
        if 2 * rows <= dim:
            continue
        for rows_held in held:
            product = rows_held.T @ rows_held
            gram = product if gram is None else gram + product
        held.clear()
    if gram is not None:
        return gram
    if rows == 0:
        raise VectorError("a rotation needs at least one row to be fitted on, got none")
    return np.concatenate(held)


def _leading(energy: Doubles) -> Doubles:
    """Eigenvectors of X^T X as columns, in descending order of energy, largest entries positive.

    If X itself is given, having few rows, only eigenvectors in the span of its rows are computed:
    X^T = Q R, and an eigenvector w of R R^T, which is n x n, gives one, Q w. The rest of Q
    completes them. (768 dimensions, one thread: 11 ms instead of 64 for 12 rows, 26 for 100, 42
    instead of 74 for 300.)
    """
    rows = len(energy)
    if rows < energy.shape[1]:
        vectors, inner = np.linalg.qr(energy.T, mode="complete")
        _, within = np.linalg.eigh(inner[:rows] @ inner[:rows].T)
        vectors[:, :rows] = vectors[:, :rows] @ within[:, ::-1]
    else:
        _, vectors = np.linalg.eigh(energy)
        vectors = vectors[:, ::-1]  # eigh gives ascending energy
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.ascontiguousarray(vectors * signs)


def _orthonormal(matrix: Doubles) -> Doubles:
    """The nearest orthogonal matrix, which removes the rounding of float32."""
    left, _, right = np.linalg.svd(matrix)
    nearest: Doubles = left @ right
    return nearest
