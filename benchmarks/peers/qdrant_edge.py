"""Qdrant Edge: an HNSW graph over float32 at full width, on disk; Qdrant without a server."""

from pathlib import Path
from typing import Any

from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    HnswIndexConfig,
    Point,
    Query,
    QueryBatchRequest,
    QueryRequest,
    SearchParams,
    UpdateOperation,
)

REQUIRES = ("qdrant-edge-py",)
SETTINGS = {
    "index": "HNSW",
    "numbers": "float32",
    "m": 16,  # default
    "ef_construct": 100,  # default
    "threads": "default: one query by segments",
}
POINTS = tuple({"ef": ef} for ef in (32, 64, 128, 256))  # the default: 100
BLOCK = 1000


def build(vectors: Any, folder: Path) -> Any:
    graph = HnswIndexConfig(SETTINGS["m"], SETTINGS["ef_construct"], full_scan_threshold=10_000)
    config = EdgeConfig(EdgeVectorParams(vectors.shape[1], Distance.Dot), hnsw_config=graph)
    (folder / "shard").mkdir()
    shard = EdgeShard.create(str(folder / "shard"), config)
    for start in range(0, len(vectors), BLOCK):
        batch = vectors[start : start + BLOCK].tolist()
        points = [Point(start + i, vector, {}) for i, vector in enumerate(batch)]
        shard.update(UpdateOperation.upsert_points(points))
    while shard.optimize():  # a graph is not built automatically
        pass
    shard.flush()
    return shard


def search(index: Any, queries: Any, k: int, ef: int) -> Any:
    params = SearchParams(hnsw_ef=ef)
    requests = [QueryRequest(k, query=Query.Nearest(q), params=params) for q in queries.tolist()]
    if len(requests) > 1:
        results = index.query_batch(QueryBatchRequest(requests))
    else:
        results = [index.query(*requests)]
    return [[point.id for point in line] for line in results]
