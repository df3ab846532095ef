"""Intervals of Spearman's correlation, against scipy, which ranks every draw by itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from searchengine.trainer.evaluation import intervals
from searchengine.trainer.evaluation.intervals import (
    _correlations,
    _Ranks,
    interval_of_mean,
    spearman_interval,
)
from searchengine.trainer.evaluation.sts import StsTask, averages, sts_tasks
from tests.conftest import Numbers


def sample(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values with ties, which agree in part."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.uniform(0, 5, n), 1)
    return np.round(scores + rng.normal(size=n), 1), scores


@pytest.mark.parametrize("batch", [40, 1 << 20])
def test_the_interval_is_that_of_scipy(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed draws the same pairs, whose correlation scipy computes draw by draw."""
    monkeypatch.setattr(intervals, "RESAMPLES", 99)
    monkeypatch.setattr(intervals, "_BATCH", batch)
    x, y = sample(40)
    oracle = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=99,
        batch=max(1, batch // 40),
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert spearman_interval(x, y) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    assert oracle.low < stats.spearmanr(x, y).statistic < oracle.high


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8), st.data())
def test_correlations_of_draws(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """With many ties; a draw without an order counts as 0."""
    x, y = np.array(pairs).T
    place = st.integers(0, len(x) - 1)
    draw = st.lists(place, min_size=len(x), max_size=len(x))
    draws = np.array(data.draw(st.lists(draw, min_size=1, max_size=4)))
    found = _correlations(_Ranks(x), _Ranks(y), draws)
    for row, correlation in zip(draws, found, strict=True):
        a, b = x[row], y[row]
        ordered = np.ptp(a) > 0 and np.ptp(b) > 0
        expected = stats.spearmanr(a, b).statistic if ordered else 0
        assert correlation == pytest.approx(expected, abs=1e-12)


def test_two_pairs_are_no_certainty() -> None:
    """Half of the draws repeat one pair."""
    assert spearman_interval([1, 2], [3, 4]) == (0, 1)


def test_intervals_of_means_by_hand() -> None:
    """3 and 4 below add up to 5, halved by the mean."""
    values, ends = [10.0, 20.0], [(7.0, 10.5), (16.0, 21.2)]
    assert interval_of_mean(values, ends) == pytest.approx((15 - 5 / 2, 15 + 1.3 / 2))
    assert interval_of_mean([0.5], [(0.25, 0.75)]) == pytest.approx((0.25, 0.75))


def test_rows_and_their_average_have_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 99)
    x, y = sample(30)
    pairs = [(score, "1 0", f"{math.cos(a)} {math.sin(a)}") for score, a in zip(y, x, strict=True)]
    cosines = np.array([np.float32(math.cos(a)) for a in x], np.float64)
    rows = sts_tasks(Numbers((2,)), [StsTask("t", pairs), StsTask("u", pairs[:20])], intervals=True)
    approx = lambda ends: pytest.approx(ends, abs=1e-9)  # noqa: E731
    assert rows[0].spearman_interval == approx(spearman_interval(cosines, y))
    assert rows[1].spearman_interval == approx(spearman_interval(cosines[:20], y[:20]))
    (average,) = averages(rows)
    assert average.spearman_interval == approx(
        interval_of_mean([r.spearman for r in rows], [r.spearman_interval for r in rows])
    )
    plain = sts_tasks(Numbers((2,)), [StsTask("v", pairs)])
    assert plain[0].spearman_interval is None
    assert averages([*rows, *plain])[0].spearman_interval is None
