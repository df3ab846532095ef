"""txtai: its nearest-neighbour index by default, inverted lists of faiss over float32."""

from typing import Any

from txtai.ann import ANNFactory

REQUIRES = ("txtai",)
SETTINGS = {
    # Its default: 4 √n lists, of up to 5,000 rows a flat index.
    "index": "IVF (faiss)",
    "numbers": "float32",
    "threads": "of faiss, its default",
    "left out": "its documents and its encoder",
}
# The first is its default: one list of sixteen.
POINTS = ({}, {"nprobe": 64}, {"nprobe": 128})


def build(vectors: Any, folder: Any) -> Any:
    index = ANNFactory.create({"dimensions": vectors.shape[1], "backend": "faiss"})
    index.index(vectors)
    return index


def search(index: Any, queries: Any, k: int, nprobe: int | None = None) -> Any:
    index.config["faiss"] = {} if nprobe is None else {"nprobe": nprobe}
    found = index.search(queries, k)
    return [[row for row, _ in line] for line in found]
