"""confidence: the bound against hand-made and exact oracles, and how often it is wrong."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.tuning.goal import holds, smallest_sample

SHARES = st.lists(st.integers(0, 10).map(lambda tenths: tenths / 10), min_size=1, max_size=40)
CONFIDENCES = st.sampled_from([0.5, 0.9, 0.95, 0.99])


def lower_bound(values: list[float] | np.ndarray, confidence: float) -> float:
    """The largest target that holds, by bisection; 0 for none."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if holds(np.asarray(values), middle, confidence):
            low = middle
        else:
            high = middle
    return low


def slow_capital(values: list[float], mean: float, alpha: float) -> float:
    """max_t K_t(mean), value by value as the paper writes it."""
    capital = most = 1.0
    for i, value in enumerate(values):
        means = [(0.5 + sum(values[: j + 1])) / (j + 2) for j in range(i)]
        spread = sum((values[j] - means[j]) ** 2 for j in range(i))
        variance = (0.25 + spread) / (i + 1)
        bet = min(math.sqrt(2 * math.log(1 / alpha) / (len(values) * variance)), 0.75 / mean)
        capital *= 1 + bet * (value - mean)
        most = max(most, capital)
    return most


@pytest.mark.parametrize(
    ("values", "confidence", "bound"),
    [
        ([1.0], 0.5, 3 / 7),  # 1 + 3/4 (1/m - 1) = 2
        ([1.0, 1.0], 0.75, 3 / 7),  # the square of it = 4
        ([1.0], 0.95, 0.0),  # one value cannot multiply the capital by 20
        ([0.0] * 50, 0.95, 0.0),
    ],
)
def test_values_by_hand(values: list[float], confidence: float, bound: float) -> None:
    assert lower_bound(values, confidence) == pytest.approx(bound, abs=1e-9)


@given(SHARES, st.sampled_from([0.1, 0.5, 0.9, 0.97, 1.0]), CONFIDENCES)
def test_capital_equals_the_paper_value_by_value(
    values: list[float], target: float, confidence: float
) -> None:
    goal = 1 / (1 - confidence)
    capital = slow_capital(values, target, 1 - confidence)
    if capital != pytest.approx(goal, rel=1e-9):
        assert holds(np.asarray(values), target, confidence) == (capital > goal)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("ones", [0.3, 0.6, 0.9])
def test_coverage_over_every_sequence(ones: float, confidence: float) -> None:
    """Exact, no sampling: the probability of all 3^7 sequences in which the true mean is passed."""
    odds = {1.0: ones, 0.5: (1 - ones) / 2, 0.0: (1 - ones) / 2}
    mean = sum(value * chance for value, chance in odds.items())
    wrong = sum(
        math.prod(odds[value] for value in values)
        for values in itertools.product(odds, repeat=7)
        if holds(np.asarray(values), mean, confidence)
    )
    assert wrong <= 1 - confidence


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("confidence", [0.9, 0.975])
def test_the_smallest_sample_is_where_ones_begin_to_hold(target: float, confidence: float) -> None:
    count = smallest_sample(target, confidence)
    assert holds(np.ones(count), target, confidence)
    for fewer in (1, 2, 10):
        assert not holds(np.ones(max(1, count - fewer)), target, confidence)
