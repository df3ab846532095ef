"""Cosines and BM25 scores of documents fused into one score."""

from dataclasses import dataclass
from typing import Any

import numpy as np

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

    def score(self, cosine: Any, bm25: Any) -> Any:
        """The scores, 0–1, of documents: numbers or arrays (n,). Without a vector: cosine −inf.

        A phrase can add more to BM25 than `scale`, hence the maximum of 1.
        """
        share = np.maximum(0.0, cosine - self.unrelated) / (1 - self.unrelated)
        return np.minimum(1.0, self.weight * share + (1 - self.weight) * bm25 / self.scale)
