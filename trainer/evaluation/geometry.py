"""The geometry of vectors, without a task: whether similar texts are close, and all spread out.

Alignment and uniformity: Wang & Isola (arXiv 2005.10242), measured on STS pairs the way SimCSE does
(arXiv 2104.08821, section 6). Spectrum: its section 5. Effective rank: Roy & Vetterli (EUSIPCO
2007). Rows are (n, D) float32, scaled to length one; DataError for fewer than two of them.
"""

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import DataError

Floats = NDArray[np.float32] | NDArray[np.float64]
# Rows compared at a time: 1024² distances take 4 MB, whatever the number of rows.
BLOCK = 1024


def alignment(a: Floats, b: Floats) -> float:
    """Mean of ‖a_i − b_i‖² over positive pairs: 0 to 4, lower is closer.

    a, b: (n, D), row i of one belongs to row i of the other.
    """
    return float(np.mean(np.linalg.norm(a.astype(np.float64) - b, axis=1) ** 2))


def uniformity(x: Floats) -> float:
    """log of the mean of exp(−2 ‖x_i − x_j‖²) over all i < j: −8 to 0, lower is more even.

    Computed in blocks of rows: memory does not grow with n², time does.
    """
    _check(x, "uniformity")
    squares = np.einsum("nd,nd->n", x, x)
    total = 0.0
    for i in range(0, len(x), BLOCK):
        for j in range(i, len(x), BLOCK):
            values = squares[i : i + BLOCK, None] + squares[None, j : j + BLOCK]
            values -= 2 * (x[i : i + BLOCK] @ x[j : j + BLOCK].T)
            values = np.exp(-2 * np.maximum(values, 0))  # rounding can take a distance below zero
            counted = np.triu(values, k=1) if i == j else values
            total += float(counted.sum(dtype=np.float64))
    return float(np.log(total / (len(x) * (len(x) - 1) / 2)))


def spectrum(x: Floats) -> NDArray[np.float64]:
    """Singular values of the rows, divided by their sum: descending, summing to 1.

    (min(n, D),) float64. The rows are not centred: a direction that all share comes first. Raises
    DataError for rows that are all zero.
    """
    _check(x, "spectrum")
    values: NDArray[np.float64] = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    if values[0] == 0:
        raise DataError(f"spectrum of {len(x)} rows that are all zero: nothing to divide by")
    values /= values.sum()
    return values


def effective_rank(x: Floats) -> float:
    """exp of the entropy of `spectrum(x)`, 1 to min(n, D): how many directions are in use."""
    shares = spectrum(x)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _check(x: Floats, what: str) -> None:
    if x.ndim != 2 or len(x) < 2:
        raise DataError(f"{what} of an array of shape {x.shape}: expected (n, D), n at least 2")
