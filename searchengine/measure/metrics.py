"""The metrics of rankings, as trec_eval computes them.

nDCG@10, whose gains are the grades, recall@100, the reciprocal rank among the first ten, average
precision, and whether the first document is relevant. Documents of grade 1 and above are relevant.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from searchengine.measure.judgements import Qrels, Run, Task
from searchengine.trainer.evaluation.intervals import Values

METRICS = ("ndcg@10", "recall@100", "mrr@10", "map", "success@1")
MAIN = "ndcg@10"
"""The metric that compares settings."""


def per_question(run: Run, keys: Sequence[str], qrels: Qrels) -> dict[str, Values]:
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
    return values


def ndcg(task: Task, rankings: Iterable[Sequence[str]]) -> Values:
    """nDCG@10 of the questions, (q,): of the keys of their documents, best first."""
    run: dict[str, dict[str, float]] = {}
    for key, names in zip(task.keys, rankings, strict=True):
        others = [name for name in names if not task.is_self(key, name)]
        run[key] = dict.fromkeys(others[:10], 0.0)
    return per_question(run, task.keys, task.qrels)[MAIN]


def _discounted(gains: Values) -> float:
    """The discounted cumulative gain of the first ten."""
    return float((gains[:10] / np.log2(np.arange(2, len(gains[:10]) + 2))).sum())
