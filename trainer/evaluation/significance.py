"""The paired test of two settings: the mean difference, its interval, and a p-value.

The p-value is that of Fisher's randomisation test on pairs, which agrees with the bootstrap and the
t-test; Smucker, Allan and Carterette ("A Comparison of Statistical Significance Tests for
Information Retrieval Evaluation", 2007) advise against the Wilcoxon and the sign test. Seeded:
equal values give equal results.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searchengine.trainer.evaluation.intervals import RESAMPLES, Values, bootstrap

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


def compare(values: npt.ArrayLike, baseline: npt.ArrayLike) -> Comparison:
    """The paired difference of two settings: (n,) each, the same questions in the same order."""
    ours, theirs = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    differences = ours - theirs
    low, high = bootstrap(len(differences), lambda places: differences[places].mean(axis=-1))
    return Comparison(float(differences.mean()), float(low), float(high), _p(ours, theirs))


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
