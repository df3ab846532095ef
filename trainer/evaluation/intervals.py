"""95 % intervals of Spearman's correlation, by the percentile bootstrap over pairs.

spearman_interval(cosines, scores)                  # (low, high)
interval_of_mean([ρ, …], [(low, high), …])          # of a mean over independent samples

The pairs of a test set are a sample: draw as many of them again, with repetition, rank these, and
the correlation differs a little. 95 % of 1,999 such correlations are in the interval (Efron,
"Bootstrap Methods: Another Look at the Jackknife", 1979). Seeded: equal values give equal results.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from searchengine.trainer.evaluation.significance import Values, bootstrap

Interval = tuple[float, float]

RESAMPLES = 1999
"""Draws of the bootstrap."""
MIN_PAIRS = 10
"""Pairs that an interval needs. Of four pairs it covers the true correlation in 70 % of samples
instead of 95 (two normal variables that correlate by 0.8), or is as wide as [−1, 1]."""

_BATCH = 1 << 20  # numbers at a time, which bounds memory


def spearman_interval(x: ArrayLike, y: ArrayLike) -> Interval:
    """The ends of the interval of Spearman's correlation of x and y, (n,) each, n at least 2.

    A draw in which all x or all y are equal has no order, and counts as 0.
    """
    first, second = _Ranks(np.asarray(x)), _Ranks(np.asarray(y))
    n = len(first.order)
    low, high = bootstrap(
        n, lambda places: _correlations(first, second, places), RESAMPLES, max(1, _BATCH // n)
    )
    return float(low), float(high)


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's correlation of x and y, (n,) each, of equal values the mean rank."""
    first, second = _Ranks(np.asarray(x)), _Ranks(np.asarray(y))
    return float(_correlations(first, second, np.arange(len(first.order))[None])[0])


def interval_of_mean(values: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """The ends of the interval of a mean of independent values, from the interval of each.

    The distances to the ends add up as the square root of their squares, each side for itself: Zou
    ("Toward Using Confidence Intervals to Compare Correlations", 2007).
    """
    middle, ends = np.asarray(values), np.asarray(intervals)
    below, above = np.linalg.norm(ends - middle[:, None], axis=0) / len(middle)
    mean = float(middle.mean())
    return mean - float(below), mean + float(above)


class _Ranks:
    """The order of values (n,), from which the ranks of any draw follow without sorting it.

    Attributes:
        order: the places of the values, ascending, (n,).
        first, last: where the values equal to each one begin and end in that order, (n,).
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.order = np.argsort(values, kind="stable")
        ascending = values[self.order]
        self.first = np.searchsorted(ascending, values, "left")
        self.last = np.searchsorted(ascending, values, "right")

    def of(self, counts: Values) -> Values:
        """The mean rank of each value in draws that contain it `counts` times. (n, draws), both."""
        below = np.zeros((len(counts) + 1, counts.shape[1]))
        np.cumsum(counts[self.order], axis=0, out=below[1:])
        return (below[self.first] + below[self.last] + 1) / 2


def _correlations(x: _Ranks, y: _Ranks, places: NDArray[np.int64]) -> Values:
    """Spearman's correlation of each draw, places (draws, n). (draws,)."""
    draws, n = places.shape
    cells = places * draws + np.arange(draws)[:, None]
    counts = np.bincount(cells.ravel(), minlength=n * draws).reshape(n, draws).astype(np.float64)
    a, b = x.of(counts) - (n + 1) / 2, y.of(counts) - (n + 1) / 2
    weighted = counts * a
    product = np.einsum("id,id->d", weighted, b)
    squares = np.einsum("id,id->d", weighted, a) * np.einsum("id,id,id->d", counts, b, b)
    found: Values = np.divide(product, np.sqrt(squares), out=np.zeros(draws), where=squares > 0)
    return found
