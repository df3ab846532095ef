"""Rankings of judged questions: the metrics of every question.

ir-measures computes nDCG@10, recall@100, the reciprocal rank among the first ten, average
precision, and whether the first document is relevant; all but the first two count grades from 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Qrels = dict[str, dict[str, int]]
"""Question → document → grade."""
Run = Mapping[str, Mapping[str, float]]
"""Question → document → score, best first; the scores of a question fall strictly."""

_MEASURES = {
    "ndcg@10": "nDCG@10",
    "recall@100": "R@100",
    "mrr@10": "RR@10",
    "map": "AP",
    "success@1": "Success@1",
}
METRICS = tuple(_MEASURES)
MAIN = "ndcg@10"
"""The metric that compares settings."""


def per_question(
    run: Run, keys: Sequence[str], qrels: Qrels, names: Sequence[str] = METRICS
) -> dict[str, NDArray[np.float64]]:
    """Metric → float64 (q,), one value for each of the judged questions `keys`.

    A question that the run lacks counts 0 (trec_eval's -c).
    """
    import ir_measures

    measures = {ir_measures.parse_measure(_MEASURES[name]): name for name in names}
    row = {key: i for i, key in enumerate(keys)}
    values = {name: np.zeros(len(keys)) for name in names}
    # Ranks replace scores: the tools of the library break ties differently.
    rankings = {
        key: {document: -float(rank) for rank, document in enumerate(run[key])}
        for key in keys
        if run.get(key)
    }
    judged = {key: qrels[key] for key in keys}
    for result in ir_measures.iter_calc(list(measures), judged, rankings):
        values[measures[result.measure]][row[result.query_id]] = result.value
    return values
