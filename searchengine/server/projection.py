"""A map of a collection: documents, a question and its hits on the two main directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from searchengine.engine import SearchEngine, contract
from searchengine.indexer.arrays import Floats
from searchengine.server.page_filters import sample_ids

SAMPLE = 500
"""Documents on a map."""
_PASSAGES = 64  # of a document, whose mean is its place
_DOCUMENTS = 50  # whose passages are listed at a time


@dataclass(frozen=True, slots=True)
class Projection:
    """The first two principal components of a sample of documents.

    Attributes:
        mean: (D,). axes: (2, D), unit rows, or zeros where the sample has fewer directions.
        explained: share of the variance that they show.
        sample: ids of the documents, and their vectors (n, D).
        version: the id of the commit that it was computed from.
    """

    mean: Floats
    axes: Floats
    explained: float
    sample: tuple[list[int], Floats]
    version: str

    @classmethod
    def of(cls, snapshot: contract.Snapshot) -> "Projection":
        """The projection of documents that have vectors, at most SAMPLE."""
        ids, vectors = _document_vectors(snapshot, sample_ids(snapshot, SAMPLE))
        mean = vectors.mean(axis=0) if ids else np.zeros(vectors.shape[1], np.float32)
        _, sizes, axes = np.linalg.svd(vectors - mean, full_matrices=False)
        two = np.zeros((2, len(mean)), np.float32)
        two[: len(axes[:2])] = axes[:2]
        energy = sizes**2
        explained = float(energy[:2].sum() / energy.sum()) if energy.any() else 0.0
        return cls(mean, two, explained, (ids, vectors), _version(snapshot))

    def place(self, vectors: Floats) -> list[list[float]]:
        """The coordinates [x, y] of vectors (n, D)."""
        coordinates: list[list[float]] = ((vectors - self.mean) @ self.axes.T).tolist()
        return coordinates

    def points(
        self, snapshot: contract.Snapshot, ids: Sequence[int], vectors: Floats
    ) -> list[dict[str, Any]]:
        """Documents with their coordinates."""
        named = snapshot.documents(ids, texts=False)
        return [
            {"key": document.key, "title": document.title, "x": x, "y": y}
            for document, (x, y) in zip(named, self.place(vectors), strict=True)
        ]


class Remembers(Protocol):
    """Where the last projection of a collection is kept."""

    projection: Projection | None


def locate(
    kept: Remembers,
    query: str | None,
    keys: Sequence[str],
    version: str | None,
    engine: SearchEngine,
) -> dict[str, Any]:
    """The map, with a question and the documents of these keys that have vectors."""
    vectors = None if query is None else engine.encode_questions([query])
    with engine.collection.reading() as snapshot:
        projection = kept.projection
        if projection is None or projection.version != _version(snapshot):
            projection = kept.projection = Projection.of(snapshot)
        question = None
        if vectors is not None:
            ((x, y),) = projection.place(vectors)
            question = {"x": x, "y": y}
        stored = snapshot.known(keys)
        found = _document_vectors(snapshot, [stored[key].id for key in keys if key in stored])
        is_known = projection.version == version
        return {
            "version": projection.version,
            "points": None if is_known else projection.points(snapshot, *projection.sample),
            "question": question,
            "hits": projection.points(snapshot, *found),
            "explained": projection.explained,
        }


def _version(snapshot: contract.Snapshot) -> str:
    """The id of the commit that is shown; of a server, which has none, its number of documents."""
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
