"""A map of a collection: documents, a question and its hits on the two main directions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from searchengine.engine import SearchEngine, contract
from searchengine.indexer.arrays import Floats
from searchengine.server.page_filters import sample_ids

_PASSAGES = 64  # of a document, whose mean is its place
_DOCUMENTS = 50  # whose passages are listed at a time


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
        with engine.collection.reading() as snapshot:
            ids, vectors = _document_vectors(snapshot, sample_ids(snapshot, sample))
            mean = vectors.mean(axis=0) if ids else np.zeros(vectors.shape[1], np.float32)
            _, sizes, axes = np.linalg.svd(vectors - mean, full_matrices=False)
            two = np.zeros((2, len(mean)), np.float32)
            two[: len(axes[:2])] = axes[:2]
            energy = sizes**2
            explained = float(energy[:2].sum() / energy.sum()) if energy.any() else 0.0
            found = cls(mean, two, explained, [], current_version(engine))
            return replace(found, points=found._shown(snapshot, ids, vectors))

    def place(self, vectors: Floats) -> list[list[float]]:
        """The coordinates [x, y] of vectors (n, D)."""
        coordinates: list[list[float]] = ((vectors - self.mean) @ self.axes.T).tolist()
        return coordinates

    def hits(self, engine: SearchEngine, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The documents with these keys, as JSON; those without a vector are left out."""
        with engine.collection.reading() as snapshot:
            stored = snapshot.known(keys)
            ids = [stored[key].id for key in keys if key in stored]
            return self._shown(snapshot, *_document_vectors(snapshot, ids))

    def _shown(
        self, snapshot: contract.Snapshot, ids: Sequence[int], vectors: Floats
    ) -> list[dict[str, Any]]:
        names = snapshot.documents(ids, texts=False)
        return [
            {"key": named.key, "title": named.title, "x": x, "y": y}
            for named, (x, y) in zip(names, self.place(vectors), strict=True)
        ]


def current_version(engine: SearchEngine) -> str:
    """The id of the commit that is shown; of a server, which has none, its number of documents."""
    with engine.collection.reading() as snapshot:
        return str(snapshot.settings.get("commit_id") or snapshot.count())


def _document_vectors(snapshot: contract.Snapshot, ids: Sequence[int]) -> tuple[list[int], Floats]:
    """The documents with vectors, and the mean vector of passages of each (n, D).

    Reads no texts, and of a long document _PASSAGES passages at most, at even distances.
    """
    chosen: dict[int, list[int]] = {}
    for start in range(0, len(ids), _DOCUMENTS):
        passages: dict[int, list[int]] = {}
        stored, documents, *_ = snapshot.passages(of=ids[start : start + _DOCUMENTS])
        for row, document in zip(stored.tolist(), documents.tolist(), strict=True):
            passages.setdefault(document, []).append(row)
        for document, rows in passages.items():
            chosen[document] = rows[:: -(-len(rows) // _PASSAGES)]
    having = [i for i in ids if i in chosen]
    if not having:
        return [], np.zeros((0, snapshot.settings["encoder"]["dim"]), np.float32)
    vectors = snapshot.vectors(np.array([row for i in having for row in chosen[i]]))
    sizes = np.array([len(chosen[i]) for i in having])
    sums = np.add.reduceat(vectors, np.cumsum(sizes) - sizes)
    return having, (sums / sizes[:, None]).astype(np.float32)
