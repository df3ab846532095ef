"""The map of the page: documents, a question and its hits on the two main directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

from searchengine.engine import SearchEngine, contract, entries
from searchengine.indexer.arrays import Floats
from searchengine.server.models import MapRequest
from searchengine.server.responses import json_object, respond
from searchengine.server.served import Collection

SAMPLE = 500
"""Documents on a map."""
_PASSAGES = 64  # of a document, whose mean is its place
_DOCUMENTS = 50  # whose passages are listed at a time
router = APIRouter(tags=["page"], prefix="/v1/collections/{name}")


@router.post("/map")
async def show_map(served: Collection, body: MapRequest) -> Response:
    """A sample of documents, a question and its hits, on the two main directions of the sample.

    `points` is null if `version`, which names the sample, is that of the request. `explained`:
    share of the variance of the sample that is shown.
    """

    def work(engine: SearchEngine) -> dict[str, Any]:
        vectors = None if body.query is None else engine.encode_questions([body.query])
        with engine.collection.reading() as snapshot:
            # A commit has an id; a server, which has none, is known by its number of documents.
            version = str(snapshot.settings.get("commit_id") or snapshot.count())
            projection = served.projection
            if projection is None or projection.version != version:
                projection = served.projection = Projection.of(snapshot, version)
            question = None
            if vectors is not None:
                ((x, y),) = projection.place(vectors)
                question = {"x": x, "y": y}
            stored = snapshot.known(body.keys)
            hits = document_vectors(snapshot, [stored[k].id for k in body.keys if k in stored])
            is_known = version == body.version
            return {
                "version": version,
                "points": None if is_known else projection.points(snapshot, *projection.sample),
                "question": question,
                "hits": projection.points(snapshot, *hits),
                "explained": projection.explained,
            }

    return respond(json_object(**await served.read(work)))


@dataclass(frozen=True, slots=True)
class Projection:
    """The first two principal components of a sample of documents.

    Attributes:
        mean: (D,). axes: (2, D), unit rows, or zeros where the sample has fewer directions.
        explained: share of the variance that they show.
        sample: ids of the documents, and their vectors (n, D).
        version: the commit that it was computed from.
    """

    mean: Floats
    axes: Floats
    explained: float
    sample: tuple[list[int], Floats]
    version: str

    @classmethod
    def of(cls, snapshot: contract.Snapshot, version: str) -> "Projection":
        """The projection of documents that have vectors, at most SAMPLE."""
        ids, vectors = document_vectors(snapshot, sample_ids(snapshot, SAMPLE))
        mean = vectors.mean(axis=0) if ids else np.zeros(vectors.shape[1], np.float32)
        _, sizes, axes = np.linalg.svd(vectors - mean, full_matrices=False)
        two = np.zeros((2, len(mean)), np.float32)
        two[: len(axes[:2])] = axes[:2]
        energy = sizes**2
        explained = float(energy[:2].sum() / energy.sum()) if energy.any() else 0.0
        return cls(mean, two, explained, (ids, vectors), version)

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


def sample_ids(snapshot: contract.Snapshot, n: int) -> list[int]:
    """Ids of n documents drawn at random, ascending; all if they are few. Reads all ids."""
    ids = np.concatenate([np.zeros(0, np.int64), *entries.ids(snapshot)])
    chosen = sorted(Random(0).sample(range(len(ids)), min(n, len(ids))))
    return [int(i) for i in ids[chosen]]


def document_vectors(snapshot: contract.Snapshot, ids: Sequence[int]) -> tuple[list[int], Floats]:
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
