"""zvec: an HNSW graph over codes of 8 bits, whose results are scored in float32."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zvec

REQUIRES = ("zvec",)
SETTINGS = {
    "index": "HNSW",
    "numbers": "uniform_uint8, refined by float32",
    "m": 32,
    "ef_construction": 200,
    "threads": "one query: 1; a batch: all cores, by threads of Python",
}
POINTS = tuple({"ef": ef} for ef in (16, 32, 48, 64, 96, 128, 256))
CORES = os.cpu_count() or 1
POOL = ThreadPoolExecutor(CORES)
BLOCK = 1000  # documents that are inserted at a time, nearly its limit


def build(vectors: Any, folder: Any) -> Any:
    zvec.init(log_level=zvec.LogLevel.ERROR)
    parameters = zvec.HnswIndexParam(
        metric_type=zvec.MetricType.L2,  # the order of unit rows is that of their cosines
        m=SETTINGS["m"],
        ef_construction=SETTINGS["ef_construction"],
        quantize_type=zvec.QuantizeType.UNIFORM_UINT8,
        use_contiguous_memory=True,
    )
    width = vectors.shape[1]
    field = zvec.VectorSchema("vector", zvec.DataType.VECTOR_FP32, width, parameters)
    path = str(Path(folder) / "collection")
    collection = zvec.create_and_open(path, zvec.CollectionSchema("rows", vectors=[field]))
    for start in range(0, len(vectors), BLOCK):
        rows = enumerate(vectors[start : start + BLOCK], start)
        collection.insert([zvec.Doc(str(i), vectors={"vector": row}) for i, row in rows])
    collection.optimize()
    collection.close()
    return zvec.open(path, zvec.CollectionOption(read_only=True))


def search(index: Any, queries: Any, k: int, ef: int) -> Any:
    parameters = zvec.HnswQueryParam(ef=max(ef, k), is_using_refiner=True)

    def one(query: Any) -> Any:
        asked = zvec.Query("vector", vector=query, param=parameters)
        return index.query_internal_ids(asked, topk=k)  # in the order inserted

    if len(queries) == 1:
        return [one(queries[0])]
    return list(POOL.map(one, queries))
