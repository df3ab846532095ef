"""Settings compared: the metrics of their rankings, and a table of them.

Metrics as trec_eval computes them: nDCG@10, whose gains are the grades, recall@100, the reciprocal
rank among the first ten, average precision, and whether the first document is relevant. Documents
of grade 1 and above are relevant.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from searchengine.errors import QueryError
from searchengine.measure.judgements import Qrels, Run, Task
from searchengine.measure.significance import (
    MIN_QUESTIONS,
    Comparison,
    compare,
    holm,
    intervals,
)
from searchengine.trainer.evaluation.intervals import Values

METRICS = ("ndcg@10", "recall@100", "mrr@10", "map", "success@1")
MAIN = "ndcg@10"
"""The metric that compares settings."""
EXACT = "exact"
"""Name of the setting exact search."""
DEPTH = 100
"""Ranks kept of a search, for recall@100 and average precision."""


def per_question(
    run: Run, keys: Sequence[str], qrels: Qrels, names: Sequence[str] = METRICS
) -> dict[str, Values]:
    """Metric → float64 (q,), one value for each of the judged questions `keys`.

    A question that the run lacks counts 0 (trec_eval's -c).
    """
    values = {name: np.zeros(len(keys)) for name in METRICS}
    for row, key in enumerate(keys):
        grades = qrels[key]
        gains = np.maximum([grades.get(document, 0) for document in run.get(key, ())], 0.0)
        ideal = np.sort(np.maximum([*grades.values()], 0.0))[::-1]
        relevant = np.flatnonzero(gains)
        if not len(relevant):
            continue
        total, first = np.count_nonzero(ideal), relevant[0]
        values["ndcg@10"][row] = _discounted(gains) / _discounted(ideal)
        values["recall@100"][row] = (relevant < 100).sum() / total
        values["mrr@10"][row] = 1 / (first + 1) if first < 10 else 0
        values["map"][row] = (np.arange(1, len(relevant) + 1) / (relevant + 1)).sum() / total
        values["success@1"][row] = first == 0
    return {name: values[name] for name in names}


def ndcg(task: Task, rankings: Iterable[Sequence[str]]) -> Values:
    """nDCG@10 of the questions, (q,): of the keys of their documents, best first."""
    run: dict[str, dict[str, float]] = {}
    for key, names in zip(task.keys, rankings, strict=True):
        others = [name for name in names if not task.is_self(key, name)]
        run[key] = dict.fromkeys(others[:10], 0.0)
    return per_question(run, task.keys, task.qrels, [MAIN])[MAIN]


def _discounted(gains: Values) -> float:
    """The discounted cumulative gain of the first ten."""
    return float((gains[:10] / np.log2(np.arange(2, len(gains[:10]) + 2))).sum())


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to search, measured.

    Attributes:
        name: name of the setting.
        run: its results.
        scores: metric → (q,), in the order of the questions.
        dim, shortlist: of a prefix and of full width, see measure.retrieval; else None.
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
        return float(self.scores["ndcg@10"].mean())


@dataclass(frozen=True, slots=True)
class RetrievalRow:
    """The row of a setting in the table.

    Attributes:
        setting: the setting.
        questions: number of questions.
        means: metric → mean over the questions.
        intervals: metric → its 95 % interval (searchengine.measure.significance); empty
            with fewer than MIN_QUESTIONS questions.
        exact_recall_10: share of exact search's first ten among the first ten, by vectors.
        baseline: name of the setting to compare with; None for the baseline itself.
        comparison: difference in nDCG@10 to the baseline, its interval, and the p-value.
        p: the p-value, corrected for the number of comparisons (Holm).
    """

    setting: Setting
    questions: int
    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    exact_recall_10: float | None = None
    baseline: str | None = None
    comparison: Comparison | None = None
    p: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values by metric name, ready for JSON."""
        comparison = self.comparison
        return {
            "setting": self.setting.name,
            "mode": self.setting.mode,
            "default": self.setting.default,
            "dim": self.setting.dim,
            "shortlist": self.setting.shortlist,
            "questions": self.questions,
            **self.means,
            "exact_recall@10": self.exact_recall_10,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "baseline": self.baseline,
            "difference": None if comparison is None else comparison.difference,
            "difference_interval": None
            if comparison is None or not self.intervals
            else [comparison.low, comparison.high],
            "p": self.p,
            "p_uncorrected": None if comparison is None else comparison.p,
        }


def table(settings: Sequence[Setting], baseline: str | None = None) -> list[RetrievalRow]:
    """A row per setting, compared with one of them.

    `baseline` and errors as for `position`.
    """
    base = settings[position([setting.name for setting in settings], baseline)]
    comparisons = [
        None if setting is base else compare(setting.scores[MAIN], base.scores[MAIN])
        for setting in settings
    ]
    corrected = iter(holm([each.p for each in comparisons if each is not None]))
    exact, rows = next((each.run for each in settings if each.name == EXACT), {}), []
    for setting, comparison in zip(settings, comparisons, strict=True):
        values = np.stack([setting.scores[name] for name in METRICS])
        means, questions = values.mean(axis=1).tolist(), values.shape[1]
        ends = intervals(values) if questions >= MIN_QUESTIONS else []
        row = RetrievalRow(
            setting,
            questions,
            dict(zip(METRICS, means, strict=True)),
            dict(zip(METRICS, ends, strict=bool(ends))),
            _share(setting.run, exact) if setting.mode == "vector" else None,
        )
        if comparison is not None:
            row = replace(row, baseline=base.name, comparison=comparison, p=next(corrected))
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


def cells(rows: Sequence[RetrievalRow]) -> list[dict[str, str]]:
    """The table as text that fits a terminal: of one row all metrics, of several the differences.

    nDCG@10 with its interval. A p-value has Holm's correction.
    """
    shown, lines = METRICS if len(rows) == 1 else METRICS[:2], []
    for row in rows:
        values = {name: f"{row.means[name]:.3f}" for name in shown}
        if row.intervals:
            low, high = row.intervals[MAIN]
            values[MAIN] += f" [{low:.3f}–{high:.3f}]"
        line = {"setting": row.setting.name + (" (default)" if row.setting.default else "")}
        line |= values
        if len(rows) > 1:
            gain, p = row.comparison, row.p
            line["difference"] = "–" if gain is None else f"{gain.difference:+.3f}"
            line["p"] = "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
        lines.append(line)
    return lines
