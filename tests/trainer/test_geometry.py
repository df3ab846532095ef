"""Alignment, uniformity and spectrum: by hand, by an oracle, and what must not change."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from searchengine.trainer.errors import DataError
from searchengine.trainer.evaluation.sts import (
    BLOCK,
    StsTask,
    alignment,
    effective_rank,
    spectrum,
    sts_tasks,
    uniformity,
)
from tests.conftest import Numbers

SQUARE = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32)


def unit_rows(seed: int, n: int, dim: int) -> NDArray[np.float32]:
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_by_hand() -> None:
    """Of six pairs of the square four are √2 apart and two are 2 apart."""
    assert alignment(SQUARE[[0, 0, 0]], SQUARE[[0, 1, 2]]) == pytest.approx((0 + 2 + 4) / 3)
    assert uniformity(SQUARE) == pytest.approx(log((4 * exp(-4) + 2 * exp(-8)) / 6), rel=1e-6)
    assert uniformity(SQUARE[[1, 1, 1]]) == pytest.approx(0, abs=1e-6)
    x = np.array([[3, 0, 0], [0, 4, 0], [0, 0, 0]], dtype=np.float32)
    assert spectrum(x) == pytest.approx([4 / 7, 3 / 7, 0])
    entropy = -(4 / 7 * log(4 / 7) + 3 / 7 * log(3 / 7))
    assert effective_rank(x) == pytest.approx(exp(entropy))
    assert effective_rank(SQUARE[[0, 0, 2]]) == pytest.approx(1)
    assert spectrum(np.ones((2, 6), dtype=np.float32)).shape == (2,)


def test_more_rows_than_a_block() -> None:
    x = unit_rows(1, 2 * BLOCK + 3, 4)
    oracle = log(np.mean(np.exp(-2 * pdist(x.astype(np.float64), "sqeuclidean"))))
    assert uniformity(x) == pytest.approx(oracle, rel=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(2, 40), dim=st.integers(1, 12),
    scale=st.floats(0.1, 10),
)  # fmt: skip
def test_invariants(seed: int, n: int, dim: int, scale: float) -> None:
    """A rotation and another order of the rows change nothing; each measure keeps to its range."""
    x, y = unit_rows(seed, n, dim).astype(np.float64), unit_rows(seed ^ 1, n, dim)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    rotated = (x @ rotation)[::-1]
    assert uniformity(rotated) == pytest.approx(uniformity(x), abs=1e-6)
    assert spectrum(rotated * scale) == pytest.approx(spectrum(x), abs=1e-6)
    assert alignment(x @ rotation, y @ rotation) == pytest.approx(alignment(x, y), abs=1e-6)
    assert -8 - 1e-6 <= uniformity(x) <= 1e-6
    assert 0 <= alignment(x, y) <= 4 + 1e-6 and alignment(x, x) == 0
    assert 1 - 1e-9 <= effective_rank(x) <= min(n, dim) + 1e-9


def test_hopeless_arrays() -> None:
    for measure in (uniformity, spectrum, effective_rank):
        with pytest.raises(DataError, match=r"of an array of shape \(1, 2\): expected \(n, D\)"):
            measure(SQUARE[:1])  # type: ignore[operator]
    with pytest.raises(DataError, match="2 rows that are all zero"):
        spectrum(np.zeros((2, 3), dtype=np.float32))


def test_rows_of_a_task() -> None:
    """Over two numbers the four sentences are the square; the third number is not among them."""
    pairs = [(4.0, "1 0 0", "0 2 0"), (5.0, "1 0 0", "1 0 0"), (3.9, "-1 0 1", "0 -3 0")]
    encoder = Numbers()
    full, short = sts_tasks(encoder, [StsTask("t", pairs)])
    assert encoder.asked == ["1 0 0", "0 2 0", "-1 0 1", "0 -3 0"]
    assert short.alignment == pytest.approx((2 + 0) / 2)
    assert short.uniformity == pytest.approx(uniformity(SQUARE), rel=1e-6)
    assert short.effective_rank == pytest.approx(2)
    assert full.uniformity != short.uniformity and full.spearman_interval is None
    low = [(score - 2, a, b) for score, a, b in pairs]
    assert sts_tasks(Numbers(), [StsTask("t", low)])[0].alignment is None
