"""Rows around centres, as encoders give them, for tests of the indexer."""

import numpy as np


def clustered(
    count: int, seed: int, dim: int, *, centres: int = 40, noise: float = 0.5
) -> np.ndarray:
    """Rows (count, dim) not of unit length, whose energy falls along a rotated basis.

    Centres and basis are the same for every seed, so that queries resemble the rows.
    """
    fixed = np.random.default_rng(7)
    basis, _ = np.linalg.qr(fixed.standard_normal((dim, dim)))
    middles = fixed.standard_normal((centres, dim))
    rng = np.random.default_rng(seed)
    rows = middles[rng.integers(centres, size=count)] + noise * rng.standard_normal((count, dim))
    return (3 * (rows * np.arange(1, dim + 1) ** -0.5) @ basis).astype(np.float32)


def overlap(found: np.ndarray, expected: np.ndarray) -> float:
    """The mean share of the expected rows that are found."""
    return float(np.mean([len({*f} & {*e}) / len(e) for f, e in zip(found, expected, strict=True)]))
