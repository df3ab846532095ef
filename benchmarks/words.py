"""An encoder that costs next to nothing, and as many short documents as one likes.

For benchmarks of what is around the encoder. A text's vector is the sum of its words' vectors,
each drawn once at random.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

VOCABULARY = 5000


class Words:
    """dim numbers wide; equal words give equal vectors, in every process."""

    def __init__(self, dim: int = 384) -> None:
        self.dim = dim
        self.fingerprint = f"words-{dim}"
        self._vectors = np.random.default_rng(0).normal(size=(VOCABULARY, dim)).astype(np.float32)

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        """Float32 (n, dim) unit rows."""
        words = [[int(word[1:]) for word in text.split()] for text in texts]
        sums = np.stack([self._vectors[some].sum(axis=0) for some in words])
        unit: npt.NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return unit


def documents(count: int, length: int = 12) -> Iterator[dict[str, Any]]:
    """Short documents, always the same; common words are common (Zipf)."""
    choose = np.random.default_rng(1)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    for start in range(0, count, 10_000):
        words = choose.choice(VOCABULARY, (10_000, length), p=weights / weights.sum())
        for i, some in enumerate(words[: count - start], start=start):
            text = " ".join(f"w{word}" for word in some)
            yield {"_id": f"d{i}", "text": text, "year": 1990 + i % 35}
