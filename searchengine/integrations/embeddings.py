"""Stored vectors as the embeddings of other programs, which have one for each document."""

from collections.abc import Sequence

import numpy as np

from searchengine.engine import SearchEngine


def embeddings(engine: SearchEngine, keys: Sequence[str]) -> list[list[float] | None]:
    """The mean of each document's vectors, scaled to length 1; None without a vector."""
    found: list[list[float] | None] = []
    for vectors in engine.vectors(keys):
        mean = np.zeros(1) if vectors is None or not len(vectors) else vectors.mean(axis=0)
        length = np.linalg.norm(mean)
        found.append((mean / length).tolist() if length else None)
    return found
