"""txtai: its default nearest-neighbour index, inverted lists of faiss over float32."""

from typing import Any

from txtai.ann import ANNFactory

REQUIRES = ("txtai",)
SETTINGS = {
    # The default: 4 √n lists; a flat index up to 5,000 rows.
    "index": "IVF (faiss)",
    "numbers": "float32",
    "threads": "faiss default",
    "left out": "documents and encoder",
}
# The first is the default: one list in sixteen.
POINTS = ({}, {"nprobe": 64}, {"nprobe": 128})


def build(vectors: Any, folder: Any) -> Any:
    index = ANNFactory.create({"dimensions": vectors.shape[1], "backend": "faiss"})
    index.index(vectors)
    return index


def search(index: Any, queries: Any, k: int, nprobe: int | None = None) -> Any:
    index.config["faiss"] = {} if nprobe is None else {"nprobe": nprobe}
    results = index.search(queries, k)
    return [[row for row, _ in line] for line in results]
