"""Truncate and re-normalise: the coarse view of a vector (Matryoshka, Kusupati et al. 2022)."""

import numpy as np

from indexer.arrays import Floats
from indexer.errors import VectorError


def prefix(x: Floats, p: int) -> Floats:
    """The first `p` numbers of every row, scaled to length one.

    prefix(prefix(x, 128), 64) == prefix(x, 64) up to rounding. A row whose first `p` numbers are
    all zero has no direction there: it stays zero, so its coarse score is 0 and never NaN.

    Args:
        x: (n, D) finite.
        p: how many numbers to keep, 1 <= p <= D.

    Returns:
        (n, p) float32, C-contiguous.

    Raises:
        VectorError: `x` is not 2-D, or `p` lies outside 1..D.
    """
    if x.ndim != 2 or not 1 <= p <= x.shape[1]:
        raise VectorError(f"cannot take a prefix of {p} from rows of shape {x.shape}")
    head = x[:, :p].astype(np.float64)  # float64: tiny prefixes do not underflow when squared
    norms = np.sqrt(np.einsum("nd,nd->n", head, head))
    norms[norms == 0] = 1.0
    head /= norms[:, None]
    return head.astype(np.float32)
