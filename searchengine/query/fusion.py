"""Rankings fused into one.

Fusion(scored.scale).all(cosines, bm25)               # [(document id, score), …], best first
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from searchengine.backends.contract import Scored
from searchengine.backends.mode import WEIGHT


@dataclass(frozen=True, slots=True)
class Fusion:
    """Cosine and BM25 of a document as one score; chosen in docs/quality.md.

        weight · max(0, cosine − unrelated) / (1 − unrelated) + (1 − weight) · BM25 / scale

    A convex combination, as in Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid
    Retrieval", 2023. Both scales belong to the collection and the question, not to the result: an
    encoder that does not read the question gives cosines that hardly differ, and they stay so.

    Attributes:
        scale: the BM25 that counts as 1.
        unrelated: the cosine of unrelated passages, which counts as 0, as does any below.
        weight: weight of the cosine, 0–1.
    """

    scale: float
    unrelated: float = 0.0
    weight: float = WEIGHT

    def score(self, cosine: float | None, bm25: float) -> float:
        """The score of a document, 0–1; None: it has no vector, and counts as unrelated.

        A phrase can add more to BM25 than `scale`, hence the maximum of 1.
        """
        above = 0.0 if cosine is None else max(0.0, cosine - self.unrelated)
        share = above / (1 - self.unrelated)
        return min(1.0, self.weight * share + (1 - self.weight) * bm25 / self.scale)

    def all(self, cosines: Mapping[int, float], bm25: Mapping[int, float]) -> Scored:
        """The scores of ids, by (−score, −cosine, id). An id without BM25 has 0."""
        scores = [
            (-self.score(cosine, bm25.get(name, 0.0)), -cosine, name)
            for name, cosine in cosines.items()
        ]
        scores += [
            (-self.score(None, score), math.inf, name)
            for name, score in bm25.items()
            if name not in cosines
        ]
        scores.sort()
        return [(name, -score) for score, _, name in scores]
