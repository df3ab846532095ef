"""confidence: the bound against hand-made and exact oracles, and how often it is wrong."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from searchengine.indexer.errors import VectorError
from searchengine.indexer.tuning.confidence import holds, last_holding, smallest_sample

SHARES = st.lists(st.integers(0, 10).map(lambda tenths: tenths / 10), min_size=1, max_size=40)
CONFIDENCES = st.sampled_from([0.5, 0.9, 0.95, 0.99])

# Recall@10 of a population of queries: (values, their shares).
RECALL = ([1.0, 0.9, 0.8, 0.7, 0.5], [0.83, 0.12, 0.035, 0.01, 0.005])
HEAVY_TAIL = ([1.0, 0.9, 0.8, 0.4, 0.0], [0.80, 0.14, 0.04, 0.01, 0.01])
ALL_OR_NOTHING = ([1.0, 0.0], [0.95, 0.05])


def lower_bound(values: list[float] | np.ndarray, confidence: float) -> float:
    """The largest target that holds, by bisection; 0 for none."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if holds(values, middle, confidence):
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


def hoeffding(values: np.ndarray, alpha: float) -> float:
    return float(values.mean()) - math.sqrt(math.log(1 / alpha) / (2 * len(values)))


def empirical_bernstein(values: np.ndarray, alpha: float) -> float:
    """Maurer and Pontil, "Empirical Bernstein bounds" (2009), theorem 4."""
    n, log = len(values), math.log(2 / alpha)
    return float(
        values.mean() - math.sqrt(2 * values.var(ddof=1) * log / n) - 7 * log / 3 / (n - 1)
    )


def share_allowed(alpha: float, runs: int) -> float:
    return alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)


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


def test_an_untruncated_bet_by_hand() -> None:
    # lambda_1 = sqrt(2 log 2 / (2 * 1/4)) = 2 sqrt(log 2); 1 + lambda_1 (1 - m) = 2; then a loss.
    assert lower_bound([1, 0], 0.5) == pytest.approx(1 - 1 / (2 * math.sqrt(math.log(2))), abs=1e-9)


@given(SHARES, st.sampled_from([0.1, 0.5, 0.9, 0.97, 1.0]), CONFIDENCES)
def test_capital_equals_the_paper_value_by_value(
    values: list[float], target: float, confidence: float
) -> None:
    goal = 1 / (1 - confidence)
    capital = slow_capital(values, target, 1 - confidence)
    if capital != pytest.approx(goal, rel=1e-9):
        assert holds(values, target, confidence) == (capital > goal)


@given(SHARES, CONFIDENCES)
def test_the_bound_is_where_holding_ends(values: list[float], confidence: float) -> None:
    bound = lower_bound(values, confidence)
    assert 0 <= bound <= max(values)
    assert bound == 0 or holds(values, bound, confidence)
    assert not holds(values, min(bound + 1e-11, 1), confidence)


@given(SHARES, CONFIDENCES)
@example([0.9] * 40, 0.9)
def test_a_larger_last_value_never_lowers_the_bound(values: list[float], confidence: float) -> None:
    assert lower_bound(values, confidence) <= lower_bound([*values[:-1], 1.0], confidence) + 1e-9


def test_a_larger_early_value_may_lower_the_bound() -> None:
    # It raises the variance, and with it lowers the bets: what the docstring does not promise.
    assert lower_bound([1.0] + [0.3] * 199, 0.9) < lower_bound([0.3] * 200, 0.9)


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_all_ones_stay_below_the_exact_bound(n: int) -> None:
    # No valid bound passes alpha^(1/n), the exact one of n successes; a stake of 3/4 costs a third.
    bound, exact = lower_bound(np.ones(n), 0.95), 0.05 ** (1 / n)
    assert 1 - 1.6 * (1 - exact) < bound < exact


@pytest.mark.parametrize("n", [200, 500, 1000, 2000])
@pytest.mark.parametrize("population", [RECALL, HEAVY_TAIL, ALL_OR_NOTHING])
def test_tighter_than_hoeffding_and_empirical_bernstein(
    population: tuple[list[float], list[float]], n: int
) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).choice(population[0], n, p=population[1])
        bound = lower_bound(values, 0.95)
        assert max(hoeffding(values, 0.05), empirical_bernstein(values, 0.05)) < bound
        assert bound < values.mean()


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("ones", [0.3, 0.6, 0.9])
def test_coverage_over_every_sequence(ones: float, confidence: float) -> None:
    """Exact, no sampling: the probability of all 3^7 sequences in which the true mean is passed."""
    odds = {1.0: ones, 0.5: (1 - ones) / 2, 0.0: (1 - ones) / 2}
    mean = sum(value * chance for value, chance in odds.items())
    wrong = sum(
        math.prod(odds[value] for value in values)
        for values in itertools.product(odds, repeat=7)
        if holds(values, mean, confidence)
    )
    assert wrong <= 1 - confidence


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("population", [RECALL, HEAVY_TAIL, ALL_OR_NOTHING])
def test_coverage_over_resamples(population: tuple[list[float], list[float]], n: int) -> None:
    samples = np.random.default_rng(n).choice(population[0], (2000, n), p=population[1])
    mean = float(np.dot(*population))
    wrong = [holds(values, mean, 0.9) for values in samples]
    assert np.mean(wrong) <= share_allowed(0.1, len(wrong))


def operating_points() -> np.ndarray:
    """Recall of 5000 queries at 10 points, (10, 5000), from the safest to the cheapest.

    A query loses a tenth for every neighbour that lies beyond the shortlist; hard queries lose more
    at every point, so that the points are as correlated as real ones are.
    """
    rng = np.random.default_rng(0)
    hardness = rng.gamma(0.5, 2, 5000)
    losses = rng.poisson(np.linspace(0.02, 0.8, 10)[:, None] * hardness)
    return 1 - np.minimum(losses, 10) / 10


def test_a_certified_point_misses_its_target_no_more_often_than_stated() -> None:
    points = operating_points()
    true = points.mean(axis=1)
    target = float(true[5]) + 1e-4  # the point that is hardest to tell from a good one
    rng = np.random.default_rng(1)
    wrong, naive = [], []
    for _ in range(2000):
        sample = points[:, rng.integers(0, points.shape[1], 300)]
        chosen = last_holding(sample[:, None], target, 0.9)
        wrong.append(chosen is not None and true[chosen] < target)
        reached = np.flatnonzero(sample.mean(axis=1) >= target)
        naive.append(reached.size > 0 and true[reached[-1]] < target)
    assert np.mean(wrong) <= share_allowed(0.1, len(wrong))
    assert np.mean(naive) > 0.4  # the cheapest point whose sample mean reaches the target


def test_with_enough_queries_the_cheapest_true_point_is_certified() -> None:
    points = operating_points()
    target = float(points.mean(axis=1)[4:6].mean())
    samples = points[:, None, np.random.default_rng(2).integers(0, 5000, 50_000)]
    assert last_holding(samples, target, 0.95) == 4


def test_a_point_behind_one_that_fails_is_not_read() -> None:
    def points() -> Iterator[list[list[float]]]:
        yield [[1.0] * 100]
        yield [[0.9] * 100]
        yield [[0.0] * 100]
        raise AssertionError("read on")

    assert last_holding(points(), 0.8, 0.95) == 1
    assert last_holding([[[0.5] * 100], [[1.0] * 100]], 0.8, 0.95) is None
    assert last_holding([], 0.8, 0.95) is None


def test_a_point_holds_if_all_of_its_samples_do() -> None:
    good, bad = [1.0] * 100, [0.5] * 100
    for samples in ([good, bad], [bad, good]):
        assert last_holding([[good, good], samples, [good, good]], 0.8, 0.95) == 0


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("confidence", [0.9, 0.975])
def test_the_smallest_sample_is_where_ones_begin_to_hold(target: float, confidence: float) -> None:
    count = smallest_sample(target, confidence)
    assert holds(np.ones(count), target, confidence)
    for fewer in (1, 2, 10):
        assert not holds(np.ones(max(1, count - fewer)), target, confidence)


def test_the_smallest_sample_is_bounded_where_it_is_not_counted() -> None:
    assert smallest_sample(1.0, 0.95) > 10**12
    for target in (1 - 1e-5, 1 - 1e-9):
        assert 3.9 / (1 - target) < smallest_sample(target, 0.95) < 4.1 / (1 - target)
    with pytest.raises(VectorError, match=r"target must lie in \(0, 1\]"):
        smallest_sample(1.1, 0.95)


@pytest.mark.parametrize("values", [[], [[0.5]], 0.5, [math.nan], [1, 1.01], [-0.1], ["high"]])
def test_values_that_are_no_shares_are_refused(values: object) -> None:
    with pytest.raises(VectorError, match=r"values? "):
        lower_bound(values, 0.95)  # type: ignore[arg-type]


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, -0.5, math.nan])
def test_a_confidence_outside_its_range_is_refused(confidence: float) -> None:
    with pytest.raises(VectorError, match=r"confidence must lie in \(0, 1\)"):
        lower_bound([1.0], confidence)


@pytest.mark.parametrize("target", [0.0, 1.5, -1, math.nan])
def test_a_target_outside_its_range_is_refused(target: float) -> None:
    with pytest.raises(VectorError, match=r"target must lie in \(0, 1\]"):
        holds([1.0], target, 0.95)
