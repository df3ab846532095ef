"""rabitqlib: SymphonyQG, a graph whose nodes hold the codes of their neighbours."""

import os
from typing import Any

from rabitqlib import SymqgIndex

REQUIRES = ("rabitqlib",)
SETTINGS = {
    "index": "SymphonyQG",
    "numbers": "RaBitQ codes for the walk, float32",  # default
    "max_degree": 64,  # a multiple of 32; 32 is slower at a recall of 0.98
    "ef_construction": 200,
    "init": "pipnn",  # default
    "threads": "one query: 1; a batch: all cores",
}
POINTS = tuple({"ef": ef} for ef in (16, 32, 48, 64, 96, 128, 256))
CORES = os.cpu_count() or 1


def build(vectors: Any, folder: Any) -> Any:
    index = SymqgIndex(vectors.shape[1], SETTINGS["max_degree"], metric="ip")
    index.build(vectors, SETTINGS["ef_construction"], num_threads=CORES, init=SETTINGS["init"])
    return index


def search(index: Any, queries: Any, k: int, ef: int) -> Any:
    if len(queries) == 1:
        return index.search(queries, k, max(ef, k))[0]
    return index.search_batch(queries, k, max(ef, k), num_threads=CORES)[0]
