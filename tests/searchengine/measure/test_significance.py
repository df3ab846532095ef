"""Intervals and p-values, against values by hand, every assignment, and the t-test."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from searchengine.measure.significance import compare, holm
from searchengine.trainer.evaluation.intervals import RESAMPLES, wilson

# Eighths add up without rounding.
scores = st.integers(0, 8).map(lambda eighths: eighths / 8)
pairs = st.lists(st.tuples(scores, scores), min_size=1, max_size=10)


def every_assignment(ours: list[float], theirs: list[float]) -> float:
    """The two-sided p-value over all 2ⁿ ways to swap the two answers of each question."""
    differences = np.subtract(ours, theirs)
    signs = np.array(list(itertools.product([1, -1], repeat=len(ours))))
    sums = signs @ differences
    greater, less = (sums >= differences.sum()).mean(), (sums <= differences.sum()).mean()
    return float(min(1, 2 * min(greater, less)))


@pytest.mark.parametrize("n", [12, 40])
def test_scipy_finds_the_same_with_the_same_samples(n: int) -> None:
    """Of twelve questions every assignment, of forty a sample, drawn in batches."""
    rng = np.random.default_rng(n)
    ours, theirs = rng.random(n), rng.random(n) - 0.1
    drawn = stats.bootstrap(
        (ours - theirs,),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    swapped = stats.permutation_test(
        (ours, theirs),
        lambda a, b, axis: (a - b).sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1000,
        rng=np.random.default_rng(0),
    )
    found = compare(ours, theirs)
    assert (found.low, found.high) == pytest.approx(tuple(drawn.confidence_interval), abs=1e-12)
    assert found.p == pytest.approx(swapped.pvalue, abs=1e-12)


@pytest.mark.parametrize(("right", "n"), [(0, 5), (5, 5), (3, 7), (880, 1000)])
def test_the_interval_of_a_share_is_scipys(right: int, n: int) -> None:
    ends = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right, n) == pytest.approx((ends.low, ends.high), abs=1e-12)


@given(pairs)
def test_p_value_is_that_of_all_assignments_and_symmetric(both: list[tuple[float, float]]) -> None:
    ours, theirs = (list(column) for column in zip(*both, strict=True))
    found, turned = compare(ours, theirs), compare(theirs, ours)
    assert found.p == pytest.approx(every_assignment(ours, theirs))
    assert turned.p == pytest.approx(found.p)
    assert turned.difference == -found.difference
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=0.05)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.7, 0.6]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
