"""Significance of means over questions: intervals, corrected p-values, digits that mean something.

interval(values)                   # interval of the mean over other samples of questions
holm([p, …])                       # p-values of several comparisons, corrected
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.trainer.evaluation.intervals import Interval, bootstrap

MIN_QUESTIONS = 10
"""Questions that an interval needs: of one it has no width, of a few it is too narrow."""


def interval(values: npt.ArrayLike) -> Interval:
    """The ends of the 95 % interval of the mean of values (n,), one per question.

    One value, or equal values, give the mean twice: they have no variance.
    """
    return intervals(np.asarray(values, np.float64)[None])[0]


def intervals(values: npt.ArrayLike) -> list[Interval]:
    """`interval` of every row of (m, n), with the same samples of questions."""
    rows = np.asarray(values, np.float64)
    low, high = bootstrap(rows.shape[1], lambda places: rows[:, places].mean(axis=-1), len(rows))
    equal, means = np.ptp(rows, axis=1) == 0, rows[:, 0]  # without rounding errors of a mean
    low, high = np.where(equal, means, low), np.where(equal, means, high)
    return list(zip(low.tolist(), high.tolist(), strict=True))


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
