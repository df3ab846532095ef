"""Documents as points of Qdrant, and back.

A document is one point: its passages are the rows of two multivectors, its texts and metadata are
the payload. So Qdrant, which has no transactions, still replaces a document as a whole.

    id         a UUID from the key, so that a key has one point whoever writes it
    coarse     (passages, prefix) the prefix of each rotated vector, scaled to length one
    full       (passages, D) the rotated vectors; only the coarse ones have a graph
    payload    number (documents are numbered as they are added), key, title, text, metadata (JSON
               as it was stored), source, root, digest, supplied, spans, size (passages); and what
               filters read: filters.py

The point 0 is no document: its payload holds the settings, and the next number. The rotation is the
payload of another point, which the settings name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

import numpy as np

from searchengine.backends.contract import Entry
from searchengine.backends.folder.documents.changes import Known, Span, as_json
from searchengine.backends.folder.documents.tables import Passage
from searchengine.backends.qdrant import filters
from searchengine.corpus.documents import Document
from searchengine.errors import CorpusError
from searchengine.indexer.arrays import Floats, prefix, unit_rows
from searchengine.indexer.search.rotating import Rotation

if TYPE_CHECKING:
    from qdrant_client import models

COARSE, FULL = "coarse", "full"
CONTROL = 0
"""The id of the point that holds the settings."""
PASSAGE_BITS = 16
"""Lowest bits of a passage's id: its place in the document. The rest is the document's number."""
_KEYS = UUID("5b0c3e0e-6a0f-4a53-9d5f-6f6e0f0b7c11")  # the namespace of documents' ids
_MAX_NUMBERS = 1 << 20  # in a multivector: a limit of the server


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it was read, in one piece.

    Attributes:
        payload: of its point.
        vectors: (passages, D) float32, rotated; None: not read.
    """

    payload: Mapping[str, Any]
    vectors: Floats | None = None

    @classmethod
    def of(cls, point: Any, dim: int) -> "Stored":
        """From a point that Qdrant returned, with or without its vectors."""
        if point.vector is None:
            return cls(point.payload)
        rows = np.array(point.vector.get(FULL, ()), np.float32).reshape(-1, dim)
        return cls(point.payload, rows)

    @property
    def number(self) -> int:
        """The document's number."""
        return int(self.payload["number"])

    @property
    def spans(self) -> tuple[Span, ...]:
        """The passages' offsets."""
        return tuple((start, end) for start, end in self.payload["spans"])

    @property
    def passages(self) -> list[Passage]:
        """The passages."""
        first = self.number << PASSAGE_BITS
        return [Passage(first + i, self.number, *span) for i, span in enumerate(self.spans)]

    @property
    def document(self) -> Document:
        """The document."""
        key, text, title = (self.payload[name] for name in ("key", "text", "title"))
        return Document.stored(key, text, title, self.metadata)

    @property
    def metadata(self) -> Any:
        """The metadata."""
        return json.loads(self.payload["metadata"])

    @property
    def known(self) -> Known:
        """What change detection compares."""
        payload, supplied = self.payload, self.payload.get("supplied")
        return Known(
            self.number,
            bytes.fromhex(payload["digest"]),
            payload["metadata"],
            payload.get("source"),
            payload.get("root"),
            None if supplied is None else bytes.fromhex(supplied),
        )

    def entry(self, rotation: Rotation | None) -> Entry:
        """The entry, with vectors in the encoder's basis. The vectors must have been read."""
        assert self.vectors is not None
        vectors = self.vectors
        if rotation is not None and len(vectors):
            vectors = rotation.undo(vectors)
        document, known = self.document, self.known
        document = Document(
            document.key, document.text, document.title, document.metadata, root=known.root or ""
        )
        return Entry(document, self.spans, vectors, known.source, known.vectors)


def id_of(key: str) -> str:
    """The id of a document's point."""
    return str(uuid5(_KEYS, key))


def check(entry: Entry, dim: int) -> None:
    """Raise CorpusError for what a point cannot hold."""
    most = min((1 << PASSAGE_BITS) - 1, _MAX_NUMBERS // dim)
    if len(entry.spans) > most:
        raise CorpusError(
            f"document {entry.document.key!r:.80} has {len(entry.spans)} passages, and Qdrant "
            f"stores at most {most} of {dim} dimensions with a document; split it into several "
            "documents, nothing was changed"
        )


def point_of(
    entry: Entry, number: int, size: int, rotation: Rotation | None
) -> "models.PointStruct":
    """The point of a document. `size`: of the prefix."""
    from qdrant_client import models

    document = entry.document
    payload = {
        "number": number,
        "key": document.key,
        "title": document.title,
        "text": document.text,
        "metadata": as_json(document.metadata),
        "source": entry.source,
        "root": document.root or None,
        "digest": document.digest.hex(),
        "supplied": None if entry.supplied is None else entry.supplied.hex(),
        "spans": [list(span) for span in entry.spans],
        "size": len(entry.spans),
    }
    stored = {name: value for name, value in payload.items() if value is not None}
    vectors: dict[str, Any] = {}
    if entry.spans:
        rows = stored_rows(entry.vectors, rotation)
        vectors = {COARSE: prefix(rows, size).tolist(), FULL: rows.tolist()}
    return models.PointStruct(
        id=id_of(document.key),
        vector=vectors,
        payload=stored | filters.payload_of(document.metadata),
    )


def stored_rows(vectors: Floats, rotation: Rotation | None) -> Floats:
    """Unit rows in the basis of the collection, with the values that float16 has."""
    rows = unit_rows(vectors)
    if rotation is not None:
        rows = unit_rows(rows.astype(np.float64) @ rotation.matrix.astype(np.float64))
    return rows.astype(np.float16).astype(np.float32)


def batches(points: Sequence["models.PointStruct"], limit: int = 8_000_000) -> Any:
    """Points in requests of about `limit` bytes: a server takes 32 MB."""
    batch: list[models.PointStruct] = []
    size = 0
    for point in points:
        vectors: Any = point.vector
        numbers = sum(len(rows) * len(rows[0]) for rows in vectors.values())
        own = 20 * numbers + 4 * len(str(point.payload))
        if batch and size + own > limit:
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += own
    if batch:
        yield batch
