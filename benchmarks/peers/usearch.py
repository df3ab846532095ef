"""usearch: an HNSW graph over bfloat16 at full width."""

from typing import Any

import numpy as np
from usearch.index import Index

REQUIRES = ("usearch",)
SETTINGS = {
    "index": "HNSW",
    "numbers": "bf16",  # the default if the processor supports it
    "connectivity": 16,  # default
    "expansion_add": 128,  # default
    "threads": "one query: 1; a batch: all cores (default)",
}
POINTS = tuple({"expansion": expansion} for expansion in (32, 64, 128, 256))  # the default: 64


def build(vectors: Any, folder: Any) -> Any:
    index = Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype=SETTINGS["numbers"],
        connectivity=SETTINGS["connectivity"],
        expansion_add=SETTINGS["expansion_add"],
    )
    index.add(np.arange(len(vectors)), vectors)
    return index


def search(index: Any, queries: Any, k: int, expansion: int) -> Any:
    index.expansion_search = expansion
    # One query returns a single row.
    return index.search(queries, k).keys.reshape(len(queries), -1)
