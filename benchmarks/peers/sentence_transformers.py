"""sentence-transformers: util.semantic_search, exact, over float32."""

from typing import Any

import torch
from sentence_transformers import util

REQUIRES = ("sentence-transformers",)
SETTINGS = {
    "index": "exact",
    "numbers": "float32",
    "score": "dot_score",  # the default scales all rows for every query
    "threads": "torch default",
}
POINTS = ({},)


def build(vectors: Any, folder: Any) -> Any:
    return torch.from_numpy(vectors)


def search(index: Any, queries: Any, k: int) -> Any:
    results = util.semantic_search(
        torch.from_numpy(queries), index, top_k=k, score_function=util.dot_score
    )
    return [[hit["corpus_id"] for hit in line] for line in results]
