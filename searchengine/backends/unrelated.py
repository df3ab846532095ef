"""The mean cosine of passages that have nothing to do with each other, from a sample of them."""

from dataclasses import dataclass

import numpy as np

from searchengine.backends.contract import Ids
from searchengine.indexer.arrays import Floats

SAMPLE = 128
"""Passages in the sample."""
MAX_UNRELATED = 0.95
"""Maximum of the mean: among nearly equal texts, cosines would count without limit."""


def spread(count: int, size: int = SAMPLE) -> Ids:
    """At most `size` of the numbers below `count`, evenly spread, rising, always the same ones."""
    return np.unique(np.linspace(0, max(count - 1, 0), size).astype(np.int64))


def unrelated(vectors: Floats) -> float:
    """The mean cosine of two different rows of unit vectors (n, D), n ≥ 2: 0–0.95."""
    total, count = vectors.sum(axis=0, dtype=np.float64), len(vectors)
    squares = float(np.square(vectors, dtype=np.float64).sum())
    mean = (float(total @ total) - squares) / (count * (count - 1))
    return min(max(mean, 0.0), MAX_UNRELATED)


@dataclass
class MeanCosine:
    """The mean as last measured, where it would be too much work to do so for every commit.

    Attributes:
        measured: the revision of the settings, the number of documents, and the mean.
    """

    measured: tuple[str, int, float] = ("", 0, 0.0)

    def holds(self, revision: str, documents: int) -> bool:
        """Whether the mean is still that of a collection in this state."""
        before, counted, _ = self.measured
        return revision == before and 8 * abs(documents - counted) <= counted
