"""BM25 as SQLite's FTS5 computes it: its constants, and the weight of a term."""

import math

K1, B = 1.2, 0.75
"""How soon a repeated term counts no more, and how much the length of a document counts."""
_MIN_WEIGHT = 1e-6  # of FTS5, for a term in half of the documents or more


def weight(documents: int, having: int) -> float:
    """The inverse document frequency of a term that `having` of the documents have."""
    value = math.log((documents - having + 0.5) / (having + 0.5))
    return value if value > 0 else _MIN_WEIGHT


def greatest(documents: int, having: int) -> float:
    """What a term adds to the score of a document at most, however often it occurs there."""
    return weight(documents, having) * (K1 + 1)
