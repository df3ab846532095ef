"""A confidence test for a mean recall, valid for any number of queries and any distribution.

The best of many measured points has too high a mean. Points that are tested in an order fixed
beforehand, each at the full confidence, until one fails, may be any number: an error needs the
first that is below the target to pass its own test (fixed-sequence testing).

Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2023);
Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test" (2021).
"""

import math
from bisect import bisect_left

import numpy as np

from searchengine.indexer.arrays import Doubles

_STAKE = 0.75
"""Largest share of the capital that one value may lose: the paper's truncation c. With 200 to 500
queries 1/2 puts the bound of a mean recall of 0.976 two fifths farther below the mean, 9/10 that of
zeros and ones of mean 0.95 a sixth to a quarter."""

_COUNTED = 100_000
"""Up to this number `smallest_sample` is exact; beyond it, a lower bound by the largest stakes."""


def holds(values: Doubles, target: float, confidence: float) -> bool:
    """Whether the values show, with this confidence, that their true mean exceeds `target`.

    The test bets against "the mean is at most m": K_t = prod_{i <= t} (1 + lambda_i (x_i - m)). If
    that is true the capital K does not grow on average, and by Ville's inequality it reaches 1 /
    alpha at any t with a probability of at most alpha. The bets are the predictable plug-in,
    lambda_i = min(sqrt(2 log(1 / alpha) / (n var_{i-1})), _STAKE / m), with the variance of the
    values before i and of one pseudo-value 1/2: a bet must not know the value it is placed on.

    Args:
        values: (n,) numbers in [0, 1], n >= 1, independent and from one distribution, such as the
            recall of each query, in an order that does not depend on them: shuffle sorted ones.
        target: in (0, 1]. A mean of 1 is never shown.
        confidence: 1 - alpha, in (0, 1), stated before the values are seen. In at most a share
            alpha of all samples does a target at or above the true mean hold.
    """
    wanted = -math.log1p(-confidence)
    counts = np.arange(2, len(values) + 2)
    means = (0.5 + np.cumsum(values)) / counts
    variances = (0.25 + np.cumsum((values - means) ** 2)) / counts
    before = np.concatenate(([0.25], variances[:-1]))
    bets = np.minimum(np.sqrt(2 * wanted / (len(values) * before)), _STAKE / target)
    return bool(np.cumsum(np.log1p(bets * (values - target))).max() >= wanted)


def smallest_sample(target: float, confidence: float) -> int:
    """Number of values needed to show a mean above `target`, if all of them are 1.

    Fewer values cannot show it. Beyond _COUNTED the number returned is up to a twentieth too low.
    """
    growth = math.log1p(_STAKE / target * (1 - target))  # most that one value adds to log(capital)
    least = math.ceil(-math.log1p(-confidence) / growth)
    if least > _COUNTED:
        return least
    return bisect_left(
        range(4 * least), True, least, key=lambda n: holds(np.ones(n), target, confidence)
    )
