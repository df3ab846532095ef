"""Encode all documents of a collection on a server by another encoder, and swap once.

Until the swap everybody reads and writes with the former encoder; what they change is encoded too.
The first documents are a random sample, which the rotation of the new vectors is fitted to. A
killed process loses one block at most: the next call goes on. See backends.postgresql.replacing.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from searchengine.backends.contract import Span
from searchengine.backends.folder.writer import TUNED
from searchengine.backends.mode import WEIGHT
from searchengine.backends.postgresql import schema
from searchengine.backends.postgresql.collection import ROTATION, SHORTLIST, PostgresCollection
from searchengine.backends.postgresql.replacing import Pending, Replacement
from searchengine.corpus.documents import Document
from searchengine.corpus.language_traits import EXCERPT
from searchengine.encoders.loading import CollectionEncoder, EncoderArgument
from searchengine.encoders.protocol import TextEncoder
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.rotating import Rotation
from searchengine.ingest import pipeline
from searchengine.ingest.languages import TEXTS, default_of
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import encoded
from searchengine.ingest.settings import CollectionSettings
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.reindex import (
    SPACES,
    check_same,
    check_text,
    chooses_mode,
    chosen_encoder,
    settings_for,
)

_SAMPLE = 4096  # documents encoded before the rotation is fitted


def reindex(
    collection: PostgresCollection,
    present: CollectionEncoder,
    encoder: EncoderArgument | None,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> None:
    """As upkeep.reindex.reindex. Raises CollectionBusy: another process is reindexing."""
    with collection.replacing() as replacement:
        planned = _pending(replacement)
        chosen = chosen_encoder(collection.path, planned, encoder, runtime)
        present.check_next(chosen)
        settings = settings_for(chosen, collection.settings, passages)
        work = _Reindexing(collection, replacement, chosen, settings, progress)
        work.begin(planned)
        work.encode()
        expected = present.expect(chosen, runtime)
        work.swap()
    present.settle(expected)


def is_pending(collection: PostgresCollection) -> bool:
    """Whether a reindex has begun and is not finished."""
    with collection.looking() as replacement:
        return _pending(replacement) is not None


def discard(collection: PostgresCollection) -> bool:
    """Drop the pending reindex and its vectors; False if none is pending."""
    with collection.replacing() as replacement:
        if _pending(replacement) is None:
            return False
        replacement.discard()
        return True


def _pending(replacement: Replacement) -> dict[str, Any] | None:
    """The settings after the pending reindex."""
    details = replacement.details()
    return details if details and "encoder" in details else None


class _Reindexing:
    """The work of one process."""

    def __init__(
        self,
        collection: PostgresCollection,
        replacement: Replacement,
        encoder: TextEncoder,
        settings: CollectionSettings,
        progress: Progress | None,
    ) -> None:
        self._collection, self._replacement = collection, replacement
        self._encoder, self._progress = encoder, progress
        self._reader = PassageReader(encoder, settings.passages)
        self._planned = settings.as_stored(encoder)
        del self._planned["mode"]  # see _changes
        self._rotation: Rotation | None = None
        self._total = 0

    @property
    def _config(self) -> SegmentConfig:
        return SegmentConfig.from_dict(self._planned["index"])

    def begin(self, planned: dict[str, Any] | None) -> None:
        """Begin, or go on with what is `planned`."""
        path = self._collection.path
        if planned is None:
            self._check_texts()
            self._replacement.begin(self._encoder.dim, self._planned)
            return
        check_same(path, planned, self._encoder, self._planned)
        # The same encoder may come from another folder or URL than before.
        self._planned = {**planned, "encoder": self._planned["encoder"]}
        self._replacement.note(self._planned)

    def encode(self) -> None:
        """Encode every document that lacks new passages."""
        left = self._total = self._replacement.left()
        if ROTATION not in self._planned:
            self._fit(left)
        packed = self._planned[ROTATION]
        self._rotation = None if packed is None else Rotation(schema.unpack(packed))
        for block in self._replacement.unwritten():
            self._write(block)

    def swap(self) -> None:
        """Encode what has changed meanwhile, and change to the new vectors in one commit."""
        texts = "SELECT left(title || chr(10) || text, %s) FROM documents"
        sql = f"{texts} ORDER BY hashint8(id) LIMIT %s"  # from all over the collection
        read = self._replacement.connection.execute(sql, (EXCERPT, TEXTS)).fetchall()
        self._default = default_of(self._encoder, [text for (text,) in read])
        self._collection.replaced(
            self._replacement, self._write, self._changes, self._config, self._rotation
        )

    def _fit(self, documents: int) -> None:
        """Encode a sample, fit the rotation to it, and keep both."""
        sample: list[tuple[list[Pending], Sequence[Sequence[Span]], Floats]] = []
        packed = None
        if documents >= FLAT_BELOW:
            sample = list(self._encoded(self._replacement.sample(_SAMPLE)))
            vectors = np.concatenate([part for *_, part in sample])
            rotation = self._collection.fitted(vectors, self._config)
            packed = None if rotation is None else schema.pack(rotation.matrix)
        self._planned = {**self._planned, ROTATION: packed}
        self._replacement.note(self._planned)
        self._rotation = None if packed is None else Rotation(schema.unpack(packed))
        for block, spans, part in sample:
            self._replacement.record(block, spans, part, self._rotation)

    def _write(self, block: Sequence[Pending]) -> None:
        for part, spans, vectors in self._encoded(block):
            self._replacement.record(part, spans, vectors, self._rotation)

    def _encoded(
        self, pending: Sequence[Pending]
    ) -> Iterator[tuple[list[Pending], Sequence[Sequence[Span]], Floats]]:
        """Documents in blocks, their passages, and the vectors of these."""
        read: deque[list[Pending]] = deque()  # of blocks that are being encoded

        def blocks() -> Iterator[list[Document]]:
            for block in _blocks(pending):
                read.append(block)
                for each in block:
                    check_text(self._collection.path, each.document)
                yield [each.document for each in block]

        for block in encoded(self._reader, blocks()):
            part = read.popleft()
            yield part, block.spans, block.vectors
            if self._progress is not None:
                self._progress("Encoding", len(part), self._total)

    def _changes(self) -> Mapping[str, Any]:
        """What the swap changes in the settings; and documents forget vectors of their own."""
        stored = self._collection.settings
        connection = self._replacement.connection
        connection.execute("UPDATE documents SET vectors = NULL WHERE vectors IS NOT NULL")
        changed = {**self._planned, "weight": None, TUNED: None, SHORTLIST: None}
        if self._collection.words and chooses_mode(stored):
            changed["mode"], weight = self._default
            changed["weight"] = None if weight == WEIGHT else weight
        return changed

    def _check_texts(self) -> None:
        """Raise CollectionError for a document that cannot be encoded, by its key."""
        sql = (
            "SELECT key, text, title FROM documents WHERE btrim(title, %s) = '' "
            "AND btrim(text, %s) = '' AND vectors IS NOT NULL LIMIT 1"
        )
        for row in self._replacement.connection.execute(sql, (SPACES, SPACES)).fetchall():
            check_text(self._collection.path, Document(*row))


def _blocks(pending: Sequence[Pending]) -> Iterator[list[Pending]]:
    """The documents in blocks that are encoded together."""
    documents, characters = pipeline.LARGEST_BLOCK
    block: list[Pending] = []
    size = 0
    for each in pending:
        length = len(each.document.title) + len(each.document.text)
        if block and (len(block) == documents or size + length > characters):
            yield block
            block, size = [], 0
        block.append(each)
        size += length
    if block:
        yield block
