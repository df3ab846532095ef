"""scalable-vs: a Vamana graph over float16 at full width.

Its LVQ and LeanVec refuse processors of other makers than Intel.
"""

import os
from typing import Any

import numpy as np
import svs

REQUIRES = ("scalable-vs",)
SETTINGS = {
    "index": "Vamana",
    "numbers": "float16",
    "graph_max_degree": 64,
    "window_size": 128,
    "alpha": 0.95,  # default for inner products
    "threads": "one query: 1; a batch: all cores",
}
POINTS = tuple({"window": window} for window in (10, 16, 24, 32, 48, 64, 128, 256))
CORES = os.cpu_count() or 1


def build(vectors: Any, folder: Any) -> Any:
    parameters = svs.VamanaBuildParameters(
        alpha=SETTINGS["alpha"],
        graph_max_degree=SETTINGS["graph_max_degree"],
        window_size=SETTINGS["window_size"],
    )
    return svs.Vamana.build(parameters, vectors.astype(np.float16), svs.MIP, num_threads=CORES)


def search(index: Any, queries: Any, k: int, window: int) -> Any:
    index.num_threads = 1 if len(queries) == 1 else CORES
    index.search_window_size = max(window, k)
    return index.search(queries, k)[0]
