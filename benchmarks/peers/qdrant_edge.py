"""Qdrant Edge: an HNSW graph over float32 at full width, on disk; Qdrant's engine, no server."""

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
    "m": 16,  # its default
    "ef_construct": 100,  # its default
    "threads": "its default: of one query by segments",
}
POINTS = tuple({"ef": ef} for ef in (32, 64, 128, 256))  # its default: 100
BLOCK = 1000


def build(vectors: Any, folder: Path) -> Any:
    graph = HnswIndexConfig(SETTINGS["m"], SETTINGS["ef_construct"], full_scan_threshold=10_000)
    config = EdgeConfig(EdgeVectorParams(vectors.shape[1], Distance.Dot), hnsw_config=graph)
    (folder / "shard").mkdir()
    shard = EdgeShard.create(str(folder / "shard"), config)
    for start in range(0, len(vectors), BLOCK):
        some = vectors[start : start + BLOCK].tolist()
        points = [Point(start + i, vector, {}) for i, vector in enumerate(some)]
        shard.update(UpdateOperation.upsert_points(points))
    while shard.optimize():  # does not build a graph by itself
        pass
    shard.flush()
    return shard


def search(index: Any, queries: Any, k: int, ef: int) -> Any:
    how = SearchParams(hnsw_ef=ef)
    asked = [QueryRequest(k, query=Query.Nearest(q), params=how) for q in queries.tolist()]
    found = index.query_batch(QueryBatchRequest(asked)) if len(asked) > 1 else [index.query(*asked)]
    return [[point.id for point in line] for line in found]
