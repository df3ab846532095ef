"""Significance of means over questions: intervals, and tests of paired differences.

interval(values)                   # interval of the mean over other samples of questions
compare(values, baseline)          # mean difference, its interval, and a p-value
holm([p, …])                       # p-values of several comparisons, corrected

The interval is the percentile bootstrap over questions (Efron, "Bootstrap Methods: Another Look at
the Jackknife", 1979). The p-value is that of Fisher's randomisation test on pairs. Smucker, Allan
and Carterette ("A Comparison of Statistical Significance Tests for Information Retrieval
Evaluation", 2007) find that it agrees with the bootstrap and the t-test, and advise against the
Wilcoxon and the sign test. Everything is seeded: equal values give equal results.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.errors import QueryError

Values = npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 9999
"""Samples of the bootstrap, and assignments of the randomisation test: p is at least 2 / 10,000."""

MIN_QUESTIONS = 10
"""Questions that an interval needs: of one it has no width, of a few it is too narrow."""

_BATCH = 1 << 22  # numbers resampled at a time, which bounds memory


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two settings on the same questions.

    Attributes:
        difference: mean of the paired differences; above 0 the first setting is better.
        low, high: its 95 % interval.
        p: probability of a difference at least as large, in either direction, if the two results
            of each question are swapped at random.
    """

    difference: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return (
            f"difference {self.difference:+.4f}, 95 % interval {self.low:+.4f} to "
            f"{self.high:+.4f}, p {self.p:.2g}"
        )


def interval(values: npt.ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The ends of the bootstrap interval of the mean of values (n,), one per question.

    One value, or equal values, give the mean twice: they have no variance. Raises QueryError for no
    values, or values that are not finite.
    """
    return intervals(np.asarray(values, np.float64)[None], confidence)[0]


def intervals(values: npt.ArrayLike, confidence: float = CONFIDENCE) -> list[tuple[float, float]]:
    """`interval` of every row of (m, n), with the same samples of questions."""
    rows = _checked(values)
    if rows.shape[1] == 1:
        return [(mean, mean) for mean in rows[:, 0].tolist()]
    low, high = bootstrap(
        rows.shape[1],
        lambda places: rows[:, places].mean(axis=-1),
        RESAMPLES,
        max(1, _BATCH // rows.size),
        confidence,
    )
    equal, means = np.ptp(rows, axis=1) == 0, rows[:, 0]  # without rounding errors of a mean
    low, high = np.where(equal, means, low), np.where(equal, means, high)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def bootstrap(
    n: int,
    statistic: Callable[[npt.NDArray[np.int64]], Values],
    resamples: int,
    batch: int,
    confidence: float = CONFIDENCE,
) -> Values:
    """The ends of the percentile interval of a statistic of n values, (2, …).

    statistic: places (b, n), the values of b samples → (…, b). `batch` samples at a time, seeded.
    """
    rng, found = np.random.default_rng(0), []
    for start in range(0, resamples, batch):
        found.append(statistic(rng.integers(0, n, (min(batch, resamples - start), n))))
    tail = (1 - confidence) / 2
    ends: Values = np.quantile(np.concatenate(found, axis=-1), (tail, 1 - tail), axis=-1)
    return ends


def compare(values: npt.ArrayLike, baseline: npt.ArrayLike) -> Comparison:
    """The paired difference of two settings: (n,) each, the same questions in the same order.

    Raises QueryError for different numbers of questions, and as `interval`.
    """
    ours, theirs = _checked(np.asarray(values)[None])[0], _checked(np.asarray(baseline)[None])[0]
    if len(ours) != len(theirs):
        raise QueryError(
            f"a comparison must have the same questions, got {len(ours)} and {len(theirs)} values"
        )
    low, high = interval(ours - theirs)
    return Comparison(float((ours - theirs).mean()), low, high, _p(ours, theirs))


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected so that the probability of any false positive among them stays below p.

    The step-down correction of Holm ("A Simple Sequentially Rejective Multiple Test Procedure",
    1979): the i-th smallest of m is multiplied by m − i + 1; values stay in order, and at most 1.
    """
    order = np.argsort(ps, kind="stable")
    steps = np.arange(len(ps), 0, -1) * np.asarray(ps, np.float64)[order]
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(p) for p in corrected]


def significant(value: Any, digits: int = 6) -> Any:
    """Numbers, in lists and dicts too, rounded to significant digits; other values as they are.

    For what is printed: the product of a p-value and a number of comparisons may be 0.0012 and be
    computed as 0.0012000000000000001.
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: significant(item, digits) for name, item in value.items()}
    if isinstance(value, list):
        return [significant(item, digits) for item in value]
    return value


def _p(values: Values, baseline: Values) -> float:
    """The p-value of the two-sided randomisation test; exact if there are few assignments."""
    differences = (values - baseline)[values != baseline]  # a swap of equal values changes nothing
    n = len(differences)
    if n < 2:
        return 1.0
    exact = 2**n <= RESAMPLES
    sums = np.concatenate([(signs * differences).sum(axis=1) for signs in _signs(n, exact)])
    observed = differences.sum()
    near = abs(observed) * 100 * np.finfo(np.float64).eps  # equal but for rounding
    least = min((sums <= observed + near).sum(), (sums >= observed - near).sum())
    others = 0 if exact else 1  # the assignment observed, which a sample may lack
    return float(min(1, 2 * (least + others) / (len(sums) + others)))


def _signs(n: int, exact: bool) -> Iterator[npt.NDArray[np.int64]]:
    """Rows (b, n) of 1 and −1: all assignments of n pairs, or RESAMPLES of them, seeded."""
    if exact:
        yield 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return
    rng, batch = np.random.default_rng(0), min(RESAMPLES, max(1, _BATCH // (2 * n)))
    order = np.tile(np.arange(2), (batch, n, 1))
    for start in range(0, RESAMPLES, batch):
        yield 1 - 2 * rng.permuted(order, axis=-1)[: RESAMPLES - start, :, 0]


def _checked(values: npt.ArrayLike) -> Values:
    """Float64 (m, n) of finite numbers."""
    rows = np.asarray(values, np.float64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise QueryError(f"expected one value per question, got an array of shape {rows.shape[1:]}")
    if not np.isfinite(rows).all():
        raise QueryError("values of questions must be finite numbers")
    return rows
