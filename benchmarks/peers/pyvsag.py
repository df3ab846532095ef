"""vsag: HGraph, a graph over codes of 4 bits or more, whose results are scored in float32."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyvsag

REQUIRES = ("pyvsag",)
SETTINGS = {
    "index": "HGraph",
    "numbers": "sq8_uniform, reordered by fp32",
    "max_degree": 32,
    "ef_construction": 300,
    "threads": "one query: 1; a batch: all cores, by threads of Python",
}
POINTS = tuple({"ef": ef} for ef in (16, 32, 48, 64, 96, 128, 256))
CORES = os.cpu_count() or 1
POOL = ThreadPoolExecutor(CORES)


def build(vectors: Any, folder: Any) -> Any:
    pyvsag.set_logger_off()
    described = {
        "dtype": "float32",
        "metric_type": "ip",
        "dim": vectors.shape[1],
        "index_param": {
            "base_quantization_type": "sq8_uniform",
            "use_reorder": True,
            "precise_quantization_type": "fp32",
            "max_degree": SETTINGS["max_degree"],
            "ef_construction": SETTINGS["ef_construction"],
            "build_thread_count": CORES,
        },
    }
    index = pyvsag.Index("hgraph", json.dumps(described))
    index.build(
        vectors=vectors.ravel(),
        ids=np.arange(len(vectors)),
        num_elements=len(vectors),
        dim=vectors.shape[1],
    )
    return index


def search(index: Any, queries: Any, k: int, ef: int) -> Any:
    settings = json.dumps({"hgraph": {"ef_search": max(ef, k)}})

    def one(query: Any) -> Any:
        return index.knn_search(vector=query, k=k, parameters=settings)[0]

    if len(queries) == 1:
        return [one(queries[0])]
    return list(POOL.map(one, queries))
