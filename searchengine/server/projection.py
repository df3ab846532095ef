"""A map of a collection: documents, a question and its hits on the two main directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from searchengine.backends.contract import Snapshot
from searchengine.corpus.documents import Document
from searchengine.engine import SearchEngine
from searchengine.indexer.arrays import Floats


@dataclass(frozen=True, slots=True)
class Projection:
    """The first two principal components of a sample of documents.

    Attributes:
        mean: (D,). axes: (2, D), unit rows, or zeros where the sample has fewer directions.
        explained: share of the variance that they show.
        points: the documents of the sample, as JSON.
        version: the id of the commit that it was computed from.
    """

    mean: Floats
    axes: Floats
    explained: float
    points: list[dict[str, Any]]
    version: str

    @classmethod
    def from_engine(cls, engine: SearchEngine, sample: int) -> "Projection":
        """The projection of at most `sample` documents that have vectors."""
        version = current_version(engine)  # before the rest: a newer commit makes it out of date
        documents = engine.sample(sample)
        with engine.collection.reading() as snapshot:
            documents, vectors = document_vectors(snapshot, documents)
            dim = snapshot.settings["encoder"]["dim"]
        mean = vectors.mean(axis=0) if len(vectors) else np.zeros(dim, np.float32)
        centred = vectors - mean
        _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
        two = np.zeros((2, dim), np.float32)
        two[: len(axes[:2])] = axes[:2]
        energy = sizes**2
        explained = float(energy[:2].sum() / energy.sum()) if energy.any() else 0.0
        points = [
            {"key": document.key, "title": document.title, "x": float(x), "y": float(y)}
            for document, (x, y) in zip(documents, centred @ two.T, strict=True)
        ]
        return cls(mean, two, explained, points, version)

    def place(self, vectors: Floats) -> list[list[float]]:
        """The coordinates [x, y] of vectors (n, D)."""
        coordinates: list[list[float]] = ((vectors - self.mean) @ self.axes.T).tolist()
        return coordinates

    def hits(self, engine: SearchEngine, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The documents with these keys, as JSON; those without a vector are left out."""
        stored = [document for document in engine.get(list(keys)) if document is not None]
        with engine.collection.reading() as snapshot:
            documents, vectors = document_vectors(snapshot, stored)
        return [
            {"key": document.key, "title": document.title, "x": x, "y": y}
            for document, (x, y) in zip(documents, self.place(vectors), strict=True)
        ]


def current_version(engine: SearchEngine) -> str:
    """The id of the commit that is shown."""
    with engine.collection.reading() as snapshot:
        return str(snapshot.commit_id)


def document_vectors(
    snapshot: Snapshot, documents: Sequence[Document]
) -> tuple[list[Document], Floats]:
    """The documents that have vectors, and the mean of each one's passages (n, D)."""
    ids = snapshot.store.ids_of([document.key for document in documents])
    passages = snapshot.store.passages_of(ids.values())
    dim = snapshot.settings["encoder"]["dim"]
    if not passages:
        return [], np.zeros((0, dim), np.float32)
    vectors = snapshot.vectors(np.array([passage.id for passage in passages]))
    rows: dict[int, list[int]] = {}
    for row, passage in enumerate(passages):
        rows.setdefault(passage.document, []).append(row)
    having = [document for document in documents if ids.get(document.key) in rows]
    means = [vectors[rows[ids[document.key]]].mean(axis=0) for document in having]
    return having, np.stack(means)
