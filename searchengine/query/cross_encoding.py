"""The last stage of a search: a cross-encoder reads the best hits with the question, and orders
them again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from searchengine.query.hits import Hit, Hits, ordered_by
from searchengine.query.request import Query

CROSS_ENCODER = "cross_encoder"
"""The name of its score in `Hit.scores`."""


class Scorer(Protocol):
    """Scores pairs of a question and a text; trainer.cross_encoder.CrossEncoder is one."""

    def score(self, questions: Sequence[str], texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The score of each question with its text, (n,); higher is nearer."""


def reordered(
    batch: Sequence[Hits], questions: Sequence[str], query: Query, scorer: Scorer
) -> list[Hits]:
    """The hits to show, of the candidates of each question: by (−score, order before).

    The score that the earlier stages gave, by which `Hit.scores` tells their order, stands beside
    the new one under the name of the mode.
    """
    pairs = [
        (question, f"{hit.title}\n{hit.passage}".strip())
        for question, hits in zip(questions, batch, strict=True)
        for hit in hits
    ]
    scores = iter(scorer.score(*zip(*pairs, strict=True)).tolist() if pairs else ())
    batches = []
    for hits in batch:
        reranked = [_scored(hit, next(scores), query) for hit in hits]
        reranked.sort(key=lambda hit: -hit.score)  # stable
        if query.min_score is not None:
            reranked = [hit for hit in reranked if hit.score >= query.min_score]
        reranked = reranked[query.offset : query.depth]
        if query.sort_by is not None:
            reranked = ordered_by(reranked, query.sort_by)
        batches.append(Hits(reranked, facets=hits.facets))
    return batches


def _scored(hit: Hit, score: float, query: Query) -> Hit:
    return replace(
        hit, score=score, scores={**hit.scores, str(query.mode): hit.score, CROSS_ENCODER: score}
    )
