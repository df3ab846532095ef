"""Chroma: an HNSW graph over float32 at full width, on disk."""

from pathlib import Path
from typing import Any

import chromadb
from chromadb.config import Settings

REQUIRES = ("chromadb",)
SETTINGS = {
    "index": "HNSW",
    "numbers": "float32",
    "max_neighbors": 16,  # default
    "ef_construction": 100,  # default
    "threads": "default",
    "left out": "documents and encoder",
}
POINTS = tuple({"ef_search": ef} for ef in (50, 100, 200))  # the default: 100


class Rows:
    """A collection in a folder. A new search setting takes effect when it is opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()
        graph = {"space": "ip", **{n: SETTINGS[n] for n in ("max_neighbors", "ef_construction")}}
        self.collection = self.client.create_collection(
            "rows", configuration={"hnsw": graph}, embedding_function=None
        )
        self.ef_search = self.collection.configuration["hnsw"]["ef_search"]

    def open(self) -> None:
        self.client = chromadb.PersistentClient(self.folder, Settings(anonymized_telemetry=False))

    def set(self, ef_search: int) -> None:
        self.collection.modify(configuration={"hnsw": {"ef_search": ef_search}})
        self.client.close()
        self.open()
        self.collection = self.client.get_collection("rows", embedding_function=None)
        self.ef_search = ef_search


def build(vectors: Any, folder: Path) -> Rows:
    rows = Rows(folder)
    size = rows.client.get_max_batch_size()
    for start in range(0, len(vectors), size):
        batch = vectors[start : start + size]
        rows.collection.add([str(start + i) for i in range(len(batch))], embeddings=batch)
    return rows


def search(index: Rows, queries: Any, k: int, ef_search: int) -> Any:
    if index.ef_search != ef_search:
        index.set(ef_search)
    result = index.collection.query(query_embeddings=queries, n_results=k, include=[])
    return [[int(key) for key in line] for line in result["ids"]]
