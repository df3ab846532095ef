"""Runs against judgements: metrics of every question, and the table of several settings.

The metrics come from ir-measures: nDCG@10, recall@100, and of grades from 1 the reciprocal rank of
the first ten and the average precision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from searchengine.errors import QueryError
from searchengine.evaluate.judgements import Qrels
from searchengine.evaluate.runs import Run
from searchengine.evaluate.significance import Comparison, Values, compare, holm, intervals

try:
    import ir_measures
except ModuleNotFoundError as error:
    raise ImportError(
        "ir-measures is not installed: pip install 'searchengine[eval]' to evaluate retrieval"
    ) from error

_MEASURES = {
    "ndcg@10": ir_measures.nDCG @ 10,
    "recall@100": ir_measures.R @ 100,
    "mrr@10": ir_measures.RR @ 10,
    "map": ir_measures.AP,
}
METRICS = tuple(_MEASURES)
MAIN = "ndcg@10"
"""The metric by which settings are compared."""
EXACT = "exact"
"""What exact search is called."""
DEPTH = 100
"""Ranks kept of a search, for recall@100; average precision is over them as well."""


def per_question(
    run: Run, keys: Sequence[str], qrels: Qrels, names: Sequence[str] = METRICS
) -> dict[str, Values]:
    """Metric → float64 (q,), one value for each of the questions `keys`, all of them judged.

    A question that is not in the run found nothing, and counts 0 (trec_eval's -c).
    """
    wanted = {_MEASURES[name]: name for name in names}
    row = {key: i for i, key in enumerate(keys)}
    values = {name: np.zeros(len(keys)) for name in names}
    # Ranks stand for scores: each of the library's tools breaks ties in a way of its own.
    found = {
        key: {document: -float(rank) for rank, document in enumerate(run[key])}
        for key in keys
        if run.get(key)
    }
    judged = {key: qrels[key] for key in keys}
    for each in ir_measures.iter_calc(list(wanted), judged, found):
        values[wanted[each.measure]][row[each.query_id]] = each.value
    return values


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to search, measured.

    Attributes:
        name: what it is called.
        run: what it found.
        scores: metric → (q,), the questions in the order they were given.
        dim, shortlist: of a prefix and of full width, see evaluate.retrieval; else None.
        prefix_ndcg_10: nDCG@10 of the ranking by the prefix alone.
        exact_recall_10: share of the ten documents of exact search that are among its first ten.
    """

    name: str
    run: Run
    scores: Mapping[str, Values]
    dim: int | None = None
    shortlist: int | None = None
    prefix_ndcg_10: float | None = None
    exact_recall_10: float | None = None

    @classmethod
    def of(cls, name: str, run: Run, keys: Sequence[str], qrels: Qrels, **told: Any) -> "Setting":
        """A run, measured on the questions `keys`; `told` are the other fields."""
        return cls(name, run, per_question(run, keys, qrels), **told)

    @property
    def ndcg_10(self) -> float:
        """Mean nDCG@10."""
        return float(self.scores["ndcg@10"].mean())


@dataclass(frozen=True, slots=True)
class RetrievalRow:
    """A setting's line of the table.

    Attributes:
        setting: what was measured.
        questions: how many.
        means: metric → mean over the questions.
        intervals: metric → its 95 % interval, see searchengine.evaluate.significance.
        baseline: the setting that this one is compared with; None for that one itself.
        comparison: difference in nDCG@10 to the baseline, its interval, and the p-value.
        p: that p-value, corrected for the number of rows that are compared (Holm).
    """

    setting: Setting
    questions: int
    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    baseline: str | None = None
    comparison: Comparison | None = None
    p: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the metrics' own names, ready for JSON."""
        told = self.comparison
        return {
            "setting": self.setting.name,
            "dim": self.setting.dim,
            "shortlist": self.setting.shortlist,
            "questions": self.questions,
            **self.means,
            "prefix_ndcg@10": self.setting.prefix_ndcg_10,
            "exact_recall@10": self.setting.exact_recall_10,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "baseline": self.baseline,
            "difference": None if told is None else told.difference,
            "difference_interval": None if told is None else [told.low, told.high],
            "p": self.p,
            "p_uncorrected": None if told is None else told.p,
        }

    def as_cells(self) -> dict[str, Any]:
        """The same for people: the interval of nDCG@10 alone, differences with their signs."""
        low, high = self.intervals[MAIN]
        told = self.comparison
        return {
            "setting": self.setting.name,
            "shortlist": self.setting.shortlist,
            MAIN: f"{self.means[MAIN]:.3f} [{low:.3f}–{high:.3f}]",
            **{name: f"{self.means[name]:.3f}" for name in METRICS if name != MAIN},
            "exact_recall@10": _rounded(self.setting.exact_recall_10),
            "prefix_ndcg@10": _rounded(self.setting.prefix_ndcg_10),
            "difference": None if told is None else f"{told.difference:+.3f}",
            "p": None if self.p is None else "<0.001" if self.p < 0.001 else f"{self.p:.3f}",
        }


def table(settings: Sequence[Setting], baseline: str | None = None) -> list[RetrievalRow]:
    """A row for every setting, compared with one of them.

    `baseline` as for `position`, and the same error.
    """
    base = settings[position([setting.name for setting in settings], baseline)]
    rows = [_row(setting) for setting in settings]
    others = [i for i, setting in enumerate(settings) if setting is not base]
    told = [compare(settings[i].scores[MAIN], base.scores[MAIN]) for i in others]
    for i, comparison, p in zip(others, told, holm([each.p for each in told]), strict=True):
        rows[i] = replace(rows[i], baseline=base.name, comparison=comparison, p=p)
    return rows


def position(names: Sequence[str], name: str | None) -> int:
    """Which of some settings is meant; None: exact search where it is one of them, else the first.

    Raises QueryError where no setting is called so.
    """
    if name is None:
        return names.index(EXACT) if EXACT in names else 0
    if name not in names:
        raise QueryError(f"no row is called {name!r:.80}; there are {', '.join(names)}")
    return names.index(name)


def cells(rows: Sequence[RetrievalRow]) -> list[dict[str, Any]]:
    """The table for people, without the columns that are empty."""
    lines = [row.as_cells() for row in rows]
    filled = [name for name in lines[0] if any(line[name] is not None for line in lines)]
    return [{name: line[name] for name in filled} for line in lines]


def _row(setting: Setting) -> RetrievalRow:
    values = np.stack([setting.scores[name] for name in METRICS])
    means = dict(zip(METRICS, values.mean(axis=1).tolist(), strict=True))
    ends = dict(zip(METRICS, intervals(values), strict=True))
    return RetrievalRow(setting, values.shape[1], means, ends)


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
