"""The goal of a tuning, its result, and the test by which a mean recall is shown.

The test is valid for any number of queries and any distribution. The best of many measured points
has too high a mean. Points that are tested in an order fixed beforehand, each at the full
confidence, until one fails, may be any number: an error needs the first that is below the target to
pass its own test (fixed-sequence testing).

Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2023);
Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test" (2021).
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Doubles, at_least_one
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import TuneError, VectorError

_MARGIN = 1e-4
"""Minimum distance of a share from 0 and 1: nearer to them, it takes 100,000 queries to show it."""
_STAKE = 0.75
"""Largest share of the capital that one value may lose: the paper's truncation c. With 200 to 500
queries 1/2 puts the bound of a mean recall of 0.976 two fifths farther below the mean, 9/10 that of
zeros and ones of mean 0.95 a sixth to a quarter."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A recall target, and the memory within which time is minimised.

    Attributes:
        recall: mean recall@k to exceed, from 0.0001 to 0.9999.
        confidence: confidence that the target is met, from 0.0001 to 0.9999.
        k: neighbours per query.
        max_ram: maximum bytes of rotation and coarse stage of all segments; None: no limit.
    """

    recall: float = 0.95
    confidence: float = 0.95
    k: int = 10
    max_ram: int | None = None

    def __post_init__(self) -> None:
        try:
            for name in ("k",) if self.max_ram is None else ("k", "max_ram"):
                object.__setattr__(self, name, at_least_one(name, getattr(self, name)))
        except VectorError as error:
            raise TuneError(str(error)) from None
        for name in ("recall", "confidence"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not _MARGIN <= value <= 1 - _MARGIN:
                raise TuneError(
                    f"{name} must lie between 0 and 1, at least {_MARGIN:g} from both, "
                    f"got {value!r}; 0.95 is 95 %"
                )


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point, measured on the queries that were not held out.

    Attributes:
        config: index config and operating point.
        recall: mean recall@k.
        lowest: the same, or under the filter that costs most of it; infinite for a full scan.
        ms: milliseconds per query searched alone, the median of the shortest times of each.
        hot_row: bytes per row that should stay in memory.
    """

    config: SegmentConfig
    recall: float
    lowest: float
    ms: float
    hot_row: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values; of the config, the fields that vary."""
        names = ("prefix", "structure", "code", "shortlist", "effort")
        measured = {name: round(getattr(self, name), 4) for name in ("recall", "ms", "hot_row")}
        return {name: self.config.as_dict()[name] for name in names} | measured


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a tuning, and how it was measured.

    Attributes:
        config: the index config and operating point.
        goal: the goal; `goal.recall` is exceeded with `goal.confidence`.
        recall: mean recall@k on the held-out queries.
        filtered: the same under filters, by the share of the rows that they let through; empty if
            the structure is not walked.
        ms: as in Point.
        rows, queries, held_out: numbers of rows searched, of all queries, of held-out queries.
        source: where the queries came from: "given" or "documents".
        question_ms: milliseconds per query besides the search, as the tuning took them.
        curve: all operating points that were measured.
    """

    config: SegmentConfig
    goal: Goal
    recall: float
    filtered: Mapping[str, float]
    ms: float
    rows: int
    queries: int
    held_out: int
    source: str
    question_ms: float
    curve: tuple[Point, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["config"]
        return values | {
            "bound": "betting (Waudby-Smith and Ramdas 2023), fixed-sequence testing",
            "goal": asdict(self.goal),
            "tried": len(self.curve),
            "curve": [point.as_dict() for point in self.curve],
        }


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

    Fewer values cannot show it.
    """
    growth = math.log1p(_STAKE / target * (1 - target))  # most that one value adds to log(capital)
    least = math.ceil(-math.log1p(-confidence) / growth)
    return bisect_left(
        range(4 * least), True, least, key=lambda n: holds(np.ones(n), target, confidence)
    )
