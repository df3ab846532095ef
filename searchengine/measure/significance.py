"""Settings compared on the same questions: intervals, paired tests, and a table of them.

intervals([values, …])             # intervals of means over other samples of questions
compare(values, baseline)          # difference of two settings, its interval and p-value
holm([p, …])                       # p-values of several comparisons, corrected
table([setting, …])                # all of this, a row per setting

The p-value is that of Fisher's randomisation test on pairs, which agrees with the bootstrap and the
t-test; Smucker, Allan and Carterette ("A Comparison of Statistical Significance Tests for
Information Retrieval Evaluation", 2007) advise against the Wilcoxon and the sign test. Seeded:
equal values give equal results.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.errors import QueryError
from searchengine.measure.judgements import Run
from searchengine.measure.metrics import MAIN, METRICS
from searchengine.trainer.evaluation.intervals import RESAMPLES, Interval, Values, bootstrap

MIN_QUESTIONS = 10
"""Questions that an interval needs: of one it has no width, of a few it is too narrow."""
EXACT = "exact"
"""Name of exact search, as a setting and as a point of a bench."""
_BATCH = 1 << 22  # numbers resampled at a time, which bounds memory


def intervals(values: npt.ArrayLike) -> list[Interval]:
    """The ends of the 95 % interval of the mean of every row of (m, n), one value per question.

    All have the same samples of questions. Equal values give the mean twice: they do not vary.
    """
    rows = np.asarray(values, np.float64)
    low, high = bootstrap(rows.shape[1], lambda places: rows[:, places].mean(axis=-1), len(rows))
    equal, means = np.ptp(rows, axis=1) == 0, rows[:, 0]  # without rounding errors of a mean
    low, high = np.where(equal, means, low), np.where(equal, means, high)
    return list(zip(low.tolist(), high.tolist(), strict=True))


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


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to search, measured.

    Attributes:
        name: name of the setting.
        run: its results.
        scores: metric → (q,), in the order of the questions.
        dim, shortlist: of a prefix and of full width; else None.
        mode: search mode.
        default: True for what a search of the collection that names no mode finds.
    """

    name: str
    run: Run
    scores: Mapping[str, Values]
    dim: int | None = None
    shortlist: int | None = None
    mode: str | None = None
    default: bool = False

    @property
    def ndcg_10(self) -> float:
        """Mean nDCG@10."""
        return float(self.scores[MAIN].mean())


def table(settings: Sequence[Setting], baseline: str | None = None) -> list[dict[str, Any]]:
    """A row per setting, of plain values, compared with one of them by nDCG@10.

    docs/measuring.md explains the fields. `baseline` and errors as for `position`.
    """
    base = settings[position([setting.name for setting in settings], baseline)]
    gains = [
        None if setting is base else compare(setting.scores[MAIN], base.scores[MAIN])
        for setting in settings
    ]
    corrected = iter(holm([gain.p for gain in gains if gain is not None]))
    exact, rows = next((each.run for each in settings if each.name == EXACT), {}), []
    for setting, gain in zip(settings, gains, strict=True):
        values = np.stack([setting.scores[name] for name in METRICS])
        ends = intervals(values) if values.shape[1] >= MIN_QUESTIONS else []
        row: dict[str, Any] = {
            "setting": setting.name,
            **{name: getattr(setting, name) for name in ("mode", "default", "dim", "shortlist")},
            "questions": values.shape[1],
            **dict(zip(METRICS, values.mean(axis=1).tolist(), strict=True)),
            "exact_recall@10": _share(setting.run, exact) if setting.mode == "vector" else None,
            "intervals": dict(zip(METRICS, map(list, ends), strict=bool(ends))),
            **dict.fromkeys(("baseline", "difference", "difference_interval", "p")),
            "p_uncorrected": None,
        }
        if gain is not None:
            row |= {"baseline": base.name, "difference": gain.difference, "p": next(corrected)}
            row["difference_interval"] = [gain.low, gain.high] if ends else None
            row["p_uncorrected"] = gain.p
        rows.append(row)
    return rows


def _share(run: Run, exact: Run) -> float | None:
    """The mean share of the first ten of `exact` that are among the first ten of `run`."""
    shares = [
        len(best & {*list(run[key])[:10]}) / len(best)
        for key, documents in exact.items()
        if (best := {*list(documents)[:10]})
    ]
    return float(np.mean(shares)) if shares else None


def position(names: Sequence[str], name: str | None) -> int:
    """The position of a setting; None: exact search if it is there, else the first.

    Raises QueryError for an unknown name.
    """
    if name is None:
        return names.index(EXACT) if EXACT in names else 0
    if name not in names:
        raise QueryError(f"no row is called {name!r:.80}; rows: {', '.join(names)}")
    return names.index(name)


def cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The columns that fit a terminal: of one row all metrics, of several the differences."""
    shown = METRICS if len(rows) == 1 else (*METRICS[:2], "difference", "p")
    return [
        {
            "setting": row["setting"] + (" (default)" if row["default"] else ""),
            MAIN: row[MAIN],
            "interval": tuple(row["intervals"].get(MAIN, ())) or None,
        }
        | {name: row[name] for name in shown}
        for row in rows
    ]
