"""Confidence bounds for a mean recall, valid for any number of queries.

The mean recall of a sample of queries is unbiased, but the best of many measured points is too high
on average. The test below needs neither a normal distribution nor many queries, and the choice
below may try any number of points.

Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2023);
Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test" (2021).
"""

import math
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles
from searchengine.indexer.errors import VectorError

_STAKE = 0.75
"""Largest share of the capital that one value may lose: the paper's truncation c. With 200 to 500
queries 1/2 puts the bound of a mean recall of 0.976 two fifths farther below the mean, 9/10 that of
zeros and ones of mean 0.95 a sixth to a quarter."""

_COUNTED = 100_000
"""Up to this number `smallest_sample` is exact; beyond it, a lower bound by the largest stakes."""


def holds(values: npt.ArrayLike, target: float, confidence: float) -> bool:
    """Whether the values show, with this confidence, that their true mean exceeds `target`.

    The test bets against "the mean is at most m": K_t = prod_{i <= t} (1 + lambda_i (x_i - m)). If
    that is true the capital K does not grow on average, and by Ville's inequality it reaches 1 /
    alpha at any t with a probability of at most alpha.

    Args:
        values: (n,) numbers in [0, 1], n >= 1, independent and from one distribution, such as the
            recall of each query. The order decides how the bets are placed, so it must not depend
            on the values: shuffle sorted ones. (Sorted ones can hold wrongly.)
        target: in (0, 1]. A mean of 1 is never shown.
        confidence: 1 - alpha, in (0, 1), stated before the values are seen. In at most a share
            alpha of all samples does a target at or above the true mean hold.

    Raises:
        VectorError: values that are not 1-D, empty, not finite or outside [0, 1]; a target outside
            (0, 1]; a confidence outside (0, 1).
    """
    if not 0 < target <= 1:
        raise VectorError(f"target must lie in (0, 1], got {target!r}; 0.95 is 95 %")
    checked = _checked(values)
    return _rejected(target, checked, _bets(checked, confidence), confidence)


def smallest_sample(target: float, confidence: float) -> int:
    """Number of values needed to show a mean above `target`, if all of them are 1.

    Fewer values cannot show it. Beyond _COUNTED the number returned is up to a
    twentieth too low.

    Raises:
        VectorError: as `holds`.
    """
    holds([1.0], target, confidence)  # checks the arguments
    wanted = -math.log1p(-confidence)
    growth = math.log1p(_STAKE / target * (1 - target))  # most that one value adds to log(capital)
    if wanted > _COUNTED * growth:
        return math.ceil(wanted / max(growth, sys.float_info.epsilon))
    low = high = math.ceil(wanted / growth)
    while not holds(np.ones(high), target, confidence):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if holds(np.ones(middle), target, confidence):
            high = middle
        else:
            low = middle + 1
    return high


def last_holding(
    points: Iterable[Sequence[npt.ArrayLike]], target: float, confidence: float
) -> int | None:
    """The cheapest point whose true means are all above `target`: fixed-sequence testing.

    Each point is tested at the full alpha, until one does not hold. An error needs the first point
    that is below the target to pass its own test, so the chance of any error is at most alpha for
    any number of points, however they depend on each other.

    Args:
        points: of each point one or several samples, as for `holds`, from the safest point to the
            cheapest. A point holds if each of its samples does. A point that is below the target in
            one of them must pass the test of that one, so each is tested at the full alpha. The
            order of the points must not depend on these values. An iterator is read up to the first
            point that does not hold.
        target, confidence: as for `holds`.

    Returns:
        The number of the last point that held; None without points, or if the first one did not.

    Raises:
        VectorError: as `holds`.
    """
    last = None
    for number, samples in enumerate(points):
        if not all(holds(values, target, confidence) for values in samples):
            break
        last = number
    return last


def _rejected(mean: float, values: Doubles, bets: Doubles, confidence: float) -> bool:
    """Whether the capital ever reached 1 / alpha; each factor of it falls, or stays, as m grows."""
    gains = np.log1p(np.minimum(bets, _STAKE / float(mean)) * (values - mean))
    return bool(np.cumsum(gains).max() >= -math.log1p(-confidence))


def _bets(values: Doubles, confidence: float) -> Doubles:
    """The predictable plug-in: lambda_i = sqrt(2 log(1 / alpha) / (n var_{i-1})), untruncated.

    The variance is that of the values before i, with one pseudo-value 1/2 of variance 1/4 at the
    front: a bet must not know the value that it is placed on.
    """
    if not 0 < confidence < 1:
        raise VectorError(f"confidence must lie in (0, 1), got {confidence!r}; 0.95 is 95 %")
    counts = np.arange(2, len(values) + 2)
    means = (0.5 + np.cumsum(values)) / counts
    variances = (0.25 + np.cumsum((values - means) ** 2)) / counts
    before = np.concatenate(([0.25], variances[:-1]))
    bets: Doubles = np.sqrt(-2 * math.log1p(-confidence) / (len(values) * before))
    return bets


def _checked(values: npt.ArrayLike) -> Doubles:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise VectorError(f"values must be an (n,) array of numbers: {error}") from error
    if array.ndim != 1 or array.size == 0:
        raise VectorError(f"values must be 1-D and not empty, got shape {array.shape}")
    outside = np.flatnonzero(~((array >= 0) & (array <= 1)))  # NaN too
    if outside.size:
        raise VectorError(
            f"value {outside[0]} is {array[outside[0]]} and must lie in [0, 1] "
            f"({outside.size} such values); the bound is for shares such as recall"
        )
    return array
