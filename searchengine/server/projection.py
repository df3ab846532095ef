"""A map of a collection: documents, a question and its hits on the two main directions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
        documents, vectors = document_vectors(engine, engine.sample(sample))
        dim = vectors.shape[1]
        mean = vectors.mean(axis=0) if len(vectors) else np.zeros(dim, np.float32)
        centred = vectors - mean
        _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
        two = np.zeros((2, dim), np.float32)
        two[: len(axes[:2])] = axes[:2]
        energy = sizes**2
        explained = float(energy[:2].sum() / energy.sum()) if energy.any() else 0.0
        found = cls(mean, two, explained, [], version)
        return replace(found, points=found._shown(documents, vectors))

    def place(self, vectors: Floats) -> list[list[float]]:
        """The coordinates [x, y] of vectors (n, D)."""
        coordinates: list[list[float]] = ((vectors - self.mean) @ self.axes.T).tolist()
        return coordinates

    def hits(self, engine: SearchEngine, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The documents with these keys, as JSON; those without a vector are left out."""
        stored = [document for document in engine.get(list(keys)) if document is not None]
        return self._shown(*document_vectors(engine, stored))

    def _shown(self, documents: Sequence[Document], vectors: Floats) -> list[dict[str, Any]]:
        return [
            {"key": document.key, "title": document.title, "x": x, "y": y}
            for document, (x, y) in zip(documents, self.place(vectors), strict=True)
        ]


def current_version(engine: SearchEngine) -> str:
    """The id of the commit that is shown."""
    with engine.collection.reading() as snapshot:
        return str(snapshot.commit_id)


def document_vectors(
    engine: SearchEngine, documents: Sequence[Document]
) -> tuple[list[Document], Floats]:
    """The documents with vectors, and the mean vector of each document's passages (n, D)."""
    having, means = [], [np.zeros((0, engine.collection.settings["encoder"]["dim"]), np.float32)]
    vectors = engine.vectors([document.key for document in documents])
    for document, rows in zip(documents, vectors, strict=True):
        if rows is not None and len(rows):
            having.append(document)
            means.append(rows.mean(axis=0, keepdims=True))
    return having, np.concatenate(means)
