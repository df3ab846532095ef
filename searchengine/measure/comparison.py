"""Settings compared: the metrics of their rankings, and a table of them.

Metrics as trec_eval computes them: nDCG@10, whose gains are the grades, recall@100, the reciprocal
rank among the first ten, average precision, and whether the first document is relevant. Documents
of grade 1 and above are relevant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from searchengine.errors import QueryError
from searchengine.measure.formatting import fitted
from searchengine.measure.judgements import Qrels, Run
from searchengine.measure.significance import (
    MIN_QUESTIONS,
    Comparison,
    compare,
    holm,
    intervals,
    significant,
)
from searchengine.trainer.evaluation.intervals import Values

METRICS = ("ndcg@10", "recall@100", "mrr@10", "map", "success@1")
MAIN = "ndcg@10"
"""The metric that compares settings."""
EXACT = "exact"
"""Name of the setting exact search."""
OPTIONAL = (
    *("recall@100", "exact_recall@10", "mrr@10", "map", "success@1"),
    *("prefix_ndcg@10", "shortlist"),
)
"""Columns of a table that a short line leaves out; the first ones take the room there is."""
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
        dim, shortlist: of a prefix and of full width, see evaluate.retrieval; else None.
        mode: search mode.
        default: True for what a search of the collection that names no mode finds.
        prefix_ndcg_10: nDCG@10 of the ranking by the prefix alone.
        exact_recall_10: share of exact search's first ten documents among its first ten.
    """

    name: str
    run: Run
    scores: Mapping[str, Values]
    dim: int | None = None
    shortlist: int | None = None
    mode: str | None = None
    default: bool = False
    prefix_ndcg_10: float | None = None
    exact_recall_10: float | None = None

    @classmethod
    def from_run(
        cls, name: str, run: Run, keys: Sequence[str], qrels: Qrels, **fields: Any
    ) -> "Setting":
        """A run, measured on the questions `keys`; `fields` are the other attributes."""
        return cls(name, run, per_question(run, keys, qrels), **fields)

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
        baseline: name of the setting to compare with; None for the baseline itself.
        comparison: difference in nDCG@10 to the baseline, its interval, and the p-value.
        p: the p-value, corrected for the number of comparisons (Holm).
    """

    setting: Setting
    questions: int
    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    baseline: str | None = None
    comparison: Comparison | None = None
    p: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values by metric name, ready for JSON, with six significant digits."""
        comparison = self.comparison
        values = {
            "setting": self.setting.name,
            "mode": self.setting.mode,
            "default": self.setting.default,
            "dim": self.setting.dim,
            "shortlist": self.setting.shortlist,
            "questions": self.questions,
            **self.means,
            "prefix_ndcg@10": self.setting.prefix_ndcg_10,
            "exact_recall@10": self.setting.exact_recall_10,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "baseline": self.baseline,
            "difference": None if comparison is None else comparison.difference,
            "difference_interval": None
            if comparison is None or not self.intervals
            else [comparison.low, comparison.high],
            "p": self.p,
            "p_uncorrected": None if comparison is None else comparison.p,
        }
        return {name: significant(value) for name, value in values.items()}

    def as_cells(self) -> dict[str, Any]:
        """The row as text: with the interval of nDCG@10 only, and signed differences."""
        comparison, main = self.comparison, f"{self.means[MAIN]:.3f}"
        if self.intervals:
            low, high = self.intervals[MAIN]
            main += f" [{low:.3f}–{high:.3f}]"
        return {
            "setting": self.setting.name + (" (default)" if self.setting.default else ""),
            "shortlist": self.setting.shortlist,
            MAIN: main,
            **{name: f"{self.means[name]:.3f}" for name in METRICS if name != MAIN},
            "exact_recall@10": _rounded(self.setting.exact_recall_10),
            "prefix_ndcg@10": _rounded(self.setting.prefix_ndcg_10),
            "difference": None if comparison is None else f"{comparison.difference:+.3f}",
            "p": None if self.p is None else "<0.001" if self.p < 0.001 else f"{self.p:.3f}",
        }


def table(settings: Sequence[Setting], baseline: str | None = None) -> list[RetrievalRow]:
    """A row per setting, compared with one of them.

    `baseline` and errors as for `position`.
    """
    base = settings[position([setting.name for setting in settings], baseline)]
    rows = [_row(setting) for setting in settings]
    compared = [i for i, setting in enumerate(settings) if setting is not base]
    comparisons = [compare(settings[i].scores[MAIN], base.scores[MAIN]) for i in compared]
    for i, comparison, p in zip(
        compared, comparisons, holm([c.p for c in comparisons]), strict=True
    ):
        rows[i] = replace(rows[i], baseline=base.name, comparison=comparison, p=p)
    return rows


def position(names: Sequence[str], name: str | None) -> int:
    """The position of a setting; None: exact search if it is there, else the first.

    Raises QueryError for an unknown name.
    """
    if name is None:
        return names.index(EXACT) if EXACT in names else 0
    if name not in names:
        raise QueryError(f"no row is called {name!r:.80}; rows: {', '.join(names)}")
    return names.index(name)


def cells(rows: Sequence[RetrievalRow], width: int | None = None) -> list[dict[str, Any]]:
    """The table as text, without empty columns.

    `width`: characters of a line; the OPTIONAL columns that do not fit are left out.
    """
    return fitted([row.as_cells() for row in rows], width, OPTIONAL)


def _row(setting: Setting) -> RetrievalRow:
    values = np.stack([setting.scores[name] for name in METRICS])
    means = dict(zip(METRICS, values.mean(axis=1).tolist(), strict=True))
    questions = values.shape[1]
    ends = intervals(values) if questions >= MIN_QUESTIONS else []
    return RetrievalRow(setting, questions, means, dict(zip(METRICS, ends, strict=bool(ends))))


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
