"""The last stage of a search: a cross-encoder reads the best hits with the question, and orders
them again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.backends.mode import CANDIDATES
from searchengine.errors import QueryError
from searchengine.query.hits import Hit, Hits
from searchengine.query.request import Query

CROSS_ENCODER = "cross_encoder"
"""The name of its score in `Hit.scores`."""
MAX_CANDIDATES = 1000
"""Most documents that a server lets a cross-encoder read for a question."""


class Scorer(Protocol):
    """Scores pairs of a question and a text; trainer.cross_encoder.CrossEncoder is one."""

    def score(self, questions: Sequence[str], texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The score of each question with its text, (n,); higher is nearer."""


def reordered(
    batch: Sequence[Hits], questions: Sequence[str], query: Query, scorer: Scorer
) -> list[Hits]:
    """The hits to show, of the candidates of each question: by (−score, order before).

    `Hit.scores` keeps the score of the earlier stages, under the name of the mode, next to the new
    one.
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
        batches.append(Hits(reranked, facets=hits.facets))
        batches[-1].replaced = hits.replaced
    return batches


def _scored(hit: Hit, score: float, query: Query) -> Hit:
    return replace(
        hit, score=score, scores={**hit.scores, str(query.mode): hit.score, CROSS_ENCODER: score}
    )


@dataclass(frozen=True, slots=True)
class CrossEncoding:
    """What a server lets its callers ask of a cross-encoder; they never name a model.

    Attributes:
        source: a folder or hub name.
        candidates: most documents that it reads for a question, so that no question takes long.

    Raises QueryError for more than MAX_CANDIDATES.
    """

    source: str
    candidates: int = CANDIDATES

    def __post_init__(self) -> None:
        if not 1 <= self.candidates <= MAX_CANDIDATES:
            raise QueryError(
                f"candidates must be between 1 and {MAX_CANDIDATES}, got {self.candidates}"
            )

    def options(self, k: int, offset: int, candidates: int | None = None) -> dict[str, Any]:
        """The options of a search by it. `candidates`: fewer, if a caller says so.

        Raises QueryError for more documents than it reads.
        """
        if candidates is not None and candidates > self.candidates:
            raise QueryError(f"candidates must be at most {self.candidates}, got {candidates}")
        if offset + k > self.candidates:
            raise QueryError(
                f"the cross-encoder orders the best {self.candidates} documents, and offset + k "
                f"must not exceed them, got {offset + k}"
            )
        return {
            "cross_encoder": self.source,
            "candidates": self.candidates if candidates is None else candidates,
        }
