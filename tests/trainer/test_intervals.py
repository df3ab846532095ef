"""Intervals against scipy, which draws the same samples and ranks each of them by itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from searchengine.trainer.evaluation.intervals import (
    bootstrap,
    spearman_interval,
    spearman_of_draws,
)
from searchengine.trainer.evaluation.sts import StsTask, averages, sts_tasks
from tests.conftest import Numbers


def sample(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values with ties, which agree in part."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.uniform(0, 5, n), 1)
    return np.round(scores + rng.normal(size=n), 1), scores


def test_the_interval_is_that_of_scipy() -> None:
    x, y = sample(40)
    oracle = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=99,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    ends = bootstrap(40, spearman_of_draws(x, y), resamples=99)
    assert ends == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    low, high = spearman_interval(x, y)
    assert low < stats.spearmanr(x, y).statistic < high


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8), st.data())
def test_correlations_of_draws(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """With many ties; a draw without an order counts as 0."""
    x, y = np.array(pairs).T
    place = st.integers(0, len(x) - 1)
    draw = st.lists(place, min_size=len(x), max_size=len(x))
    draws = np.array(data.draw(st.lists(draw, min_size=1, max_size=4)))
    for row, correlation in zip(draws, spearman_of_draws(x, y)(draws), strict=True):
        a, b = x[row], y[row]
        ordered = np.ptp(a) > 0 and np.ptp(b) > 0
        expected = stats.spearmanr(a, b).statistic if ordered else 0
        assert correlation == pytest.approx(expected, abs=1e-12)


def test_rows_have_intervals() -> None:
    x, y = sample(30)
    pairs = [(score, "1 0", f"{math.cos(a)} {math.sin(a)}") for score, a in zip(y, x, strict=True)]
    cosines = np.array([np.float32(math.cos(a)) for a in x], np.float64)
    rows = sts_tasks(Numbers((2,)), [StsTask("t", pairs), StsTask("u", pairs[:20])])
    first, second = (row.spearman_interval for row in rows)
    assert first == pytest.approx(spearman_interval(cosines, y), abs=1e-9)
    assert second == pytest.approx(spearman_interval(cosines[:20], y[:20]), abs=1e-9)
    assert averages(rows)[0].spearman_interval is None
