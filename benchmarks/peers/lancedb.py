"""LanceDB: inverted lists over product-quantized vectors, reranked in float32, on disk."""

from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

REQUIRES = ("lancedb",)
SETTINGS = {
    "index": "IVF_PQ",  # with default parameters
    "numbers": "PQ, reranked in float32",
    "threads": "default",
}
# The first is the default: 20 lists, without reranking.
POINTS = (
    {"nprobes": 20},
    {"nprobes": 20, "refine_factor": 10},
    {"nprobes": 50, "refine_factor": 20},
)


def build(vectors: Any, folder: Any) -> Any:
    rows, width = vectors.shape
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width)
    table = lancedb.connect(folder).create_table(
        "rows", pa.table({"id": np.arange(rows), "vector": lists})
    )
    table.create_index(metric="dot", vector_column_name="vector", index_type=SETTINGS["index"])
    return table


def search(index: Any, queries: Any, k: int, nprobes: int, refine_factor: int | None = None) -> Any:
    query = index.search(queries if len(queries) > 1 else queries[0], "vector")
    query = query.select(["id"]).nprobes(nprobes).limit(k)
    if refine_factor is not None:
        query = query.refine_factor(refine_factor)
    result = query.to_arrow()
    rows = result["id"].to_numpy()
    if len(queries) == 1:
        return [rows.tolist()]
    numbers = result["query_index"].to_numpy()
    return [rows[numbers == i].tolist() for i in range(len(queries))]
