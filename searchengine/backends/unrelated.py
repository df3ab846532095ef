"""The cosine that counts as 0 in a fusion: that of passages that have nothing in common.

It is measured on a sample. Passages that are similar have a high one with each other, and often a
lower one with a question, so that it depends on both. Chosen in docs/results.md.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from searchengine.indexer.arrays import Floats, RowNumbers

SAMPLE = 128
"""Passages in the sample."""
MAX_UNRELATED = 0.9
"""Maximum of the mean: among nearly equal texts, cosines would count without limit. That of E5 is
0.84 at most."""
PASSAGES = 0.35
"""Weight of the cosine between passages; that between question and passages has the rest."""


def spread(count: int, size: int = SAMPLE) -> RowNumbers:
    """At most `size` of the numbers below `count`, evenly spread, rising, always the same ones."""
    return np.unique(np.linspace(0, max(count - 1, 0), size).astype(np.int64))[:count]


@dataclass(frozen=True, slots=True, eq=False)
class Unrelated:
    """A sample of passages.

    Attributes:
        mean: the mean cosine of two of them, 0–0.9.
        center: the mean of their vectors, (D,) float32; None: there are fewer than two.
    """

    mean: float = 0.0
    center: Floats | None = None

    @classmethod
    def of(cls, vectors: Floats) -> Self:
        """`vectors`: unit rows of the sample, (n, D)."""
        if len(vectors) < 2:
            return cls()
        total, count = vectors.sum(axis=0, dtype=np.float64), len(vectors)
        squares = float(np.square(vectors, dtype=np.float64).sum())
        mean = (float(total @ total) - squares) / (count * (count - 1))
        return cls(min(max(mean, 0.0), MAX_UNRELATED), (total / count).astype(np.float32))

    def cosine(self, question: Floats) -> float:
        """The cosine that counts as 0 for the vector of a question (D,): 0–0.9."""
        if self.center is None:
            return self.mean
        mean = float(self.center @ question) / float(np.linalg.norm(question))
        return max(0.0, min(self.mean, PASSAGES * self.mean + (1 - PASSAGES) * mean))
