"""LanceDB: inverted lists over product-quantized vectors, re-scored in float32, on disk."""

from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

REQUIRES = ("lancedb",)
SETTINGS = {
    "index": "IVF_PQ",  # its default, and of what size the parts are
    "numbers": "PQ, re-scored in float32",
    "threads": "its default",
}
# Its default is the first: 20 lists, and no row scored at full width.
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
    asked = index.search(queries if len(queries) > 1 else queries[0], "vector")
    asked = asked.select(["id"]).nprobes(nprobes).limit(k)
    if refine_factor is not None:
        asked = asked.refine_factor(refine_factor)
    found = asked.to_arrow()
    rows = found["id"].to_numpy()
    if len(queries) == 1:
        return [rows.tolist()]
    of = found["query_index"].to_numpy()
    return [rows[of == i].tolist() for i in range(len(queries))]
