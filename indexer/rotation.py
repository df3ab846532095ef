"""The orthogonal turn that packs the most energy into the first numbers of every vector.

An orthogonal matrix leaves every full-width cosine as it was, so the turn costs no accuracy; but
the best p-dimensional prefix, in the sense of the energy it keeps, is spanned by the leading
eigenvectors of X^T X (Eckart and Young 1936; uncentred principal components, for cosine does not
subtract the mean).
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats
from indexer.errors import VectorError


def pca(blocks: Iterable[npt.NDArray[np.floating]]) -> Floats:
    """Fit the rotation on rows that arrive in blocks; memory is one block and two D x D matrices.

    Fewer rows than D is fine: the basis is completed orthogonally. The sign of each column is
    chosen so that its largest entry is positive, so equal input gives an equal matrix.

    Args:
        blocks: arrays (n_i, D) of finite rows.

    Returns:
        (D, D) float32, orthogonal to 1e-5; `x @ R` has its energy in descending order.

    Raises:
        VectorError: no rows at all, or blocks of different widths.
    """
    gram: npt.NDArray[np.float64] | None = None
    for block in blocks:
        wide = np.asarray(block, dtype=np.float64)
        if wide.ndim != 2 or (gram is not None and wide.shape[1] != gram.shape[1]):
            expected = "(n, D)" if gram is None else f"(n, {gram.shape[1]})"
            raise VectorError(f"rotation blocks must be {expected}, got shape {wide.shape}")
        product = wide.T @ wide
        gram = product if gram is None else gram + product
    if gram is None:
        raise VectorError("a rotation cannot be fitted on no rows")
    _, vectors = np.linalg.eigh(gram)
    vectors = vectors[:, ::-1]  # eigh gives ascending energy
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.ascontiguousarray(vectors * signs, dtype=np.float32)


def identity(dim: int) -> Floats:
    """The turn that changes nothing: (dim, dim) float32."""
    return np.eye(dim, dtype=np.float32)
