"""hnswlib: an HNSW graph over float32 at full width."""

from typing import Any

import hnswlib

REQUIRES = ("hnswlib",)
SETTINGS = {
    "index": "HNSW",
    "numbers": "float32",
    "M": 16,  # default
    "ef_construction": 200,  # default
    "threads": "one query: 1; a batch: all cores (default)",
}
POINTS = tuple({"ef": ef} for ef in (32, 64, 128, 256))  # the default, 10, is k


def build(vectors: Any, folder: Any) -> Any:
    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    index.init_index(
        len(vectors), M=SETTINGS["M"], ef_construction=SETTINGS["ef_construction"], random_seed=0
    )
    index.add_items(vectors)
    return index


def search(index: Any, queries: Any, k: int, ef: int) -> Any:
    index.set_ef(max(ef, k))
    return index.knn_query(queries, k)[0]
