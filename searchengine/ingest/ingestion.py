"""Documents → passages → vectors → commits: what `add` does on every backend, in this order.

    read      a block of documents, without those that have no text or a key that occurred before
    compare   with what is stored: what is new or changed, and where only the metadata differs
    encode    what is new or changed, cut into passages, in a second thread (ingest.pipeline)
    spool     documents and vectors in temporary files, so that memory stays bounded
    commit    compare again with what is stored by now, and write all that differs

A folder is written in one transaction, which alone holds the write lock; the segment of a large
commit, with its graph and words, is built before (built_ahead in folder/writer.py). On a server
each block of documents is a commit, which is tried again if another writer has changed one of them
meanwhile.

What another process commits before that is seen by the second comparison: a document that it has
stored meanwhile is not written again, and one that it has changed or deleted is encoded then.
Vectors of an encoder that a reindex has replaced meanwhile are not stored: their documents are
encoded again if this engine reindexed, because it then has the new encoder.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Backend, Changed, Entry, Known
from searchengine.backends.folder.documents.changes import Comparison, compare, merged
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.writer import Writer, built_ahead
from searchengine.backends.opening import in_folder, is_url
from searchengine.corpus.documents import DataFrame, Document, LeftOut, as_documents
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import Vectors
from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    DuplicateKey,
    EmptyCorpus,
    EncoderMismatch,
    QueryError,
)
from searchengine.ingest import pipeline
from searchengine.ingest.languages import Languages
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import Block, Pipeline, in_batches
from searchengine.ingest.settings import AddOptions, AddSummary, CollectionSettings
from searchengine.ingest.spool import Ranges, Spool, Spooled, Supplied, extend, number
from searchengine.ingest.supplied import SuppliedVectors, VectorsArgument

Documents = Iterable[Document | Mapping[str, Any]] | DataFrame
Readers = Callable[[], PassageReader]
"""Returns what cuts and encodes for the state of the collection that is shown now."""

_SERVER_BLOCK = 2000  # documents in a commit on a server
_TRIES = 100  # to write a block that other writers change


def add(
    backend: Backend,
    documents: Documents | None,
    options: AddOptions,
    *,
    readers: Readers | None = None,
    vectors: VectorsArgument | None = None,
    passages: Iterable[Mapping[str, Any]] | None = None,
) -> AddSummary:
    """Commit documents, which replace stored ones of the same keys; see SearchEngine.add.

    Either `readers` encode them, or they come with `vectors`.
    """
    kind = ServerIngestion if is_url(backend.address) else FolderIngestion
    if vectors is None:
        assert readers is not None and documents is not None
        with kind(backend, documents, options, readers=readers) as ingestion:
            return ingestion.run()
    if documents is None and passages is not None:
        raise QueryError("passages need documents; leave them out, or pass documents")
    backend.follow()
    supplied = SuppliedVectors.checked(backend, vectors, passages, options.skip_bad)
    if documents is not None:
        with kind(backend, documents, options, supplied=supplied) as ingestion:
            return ingestion.run()
    highest = backend.highest_number()
    numbers = range(highest + 1, highest + 1 + supplied.documents)
    stream = (Document(str(number), "") for number in numbers)
    with kind(backend, stream, options, supplied=supplied, numbered=True) as ingestion:
        summary = ingestion.run()
    backend.remember_number(highest + supplied.documents)
    return summary


def passage_reader(backend: Backend, encoder: CollectionEncoder) -> PassageReader:
    """Cuts and encodes the documents of a collection. Raises QueryError without an encoder."""
    backend.follow()  # the folder may have been replaced, with other settings
    stored = backend.settings
    settings = CollectionSettings.from_stored(stored)
    if not settings.encodes:
        raise QueryError(
            f"{backend.path} has no encoder; pass the vectors of the documents: "
            "add(documents, vectors)"
        )
    try:
        return PassageReader(encoder.load(stored), settings.passages, stored)
    except EncoderMismatch:
        if stored["encoder"] == backend.settings["encoder"]:
            raise
        return passage_reader(backend, encoder)  # reindexed meanwhile


@dataclass(slots=True)
class ReadBlock(Block):
    """Documents read together and compared with the stored ones; new and changed ones are a Block.

    Attributes:
        read: how many documents were read, including those left out.
        storable: the documents that can be stored.
        supplied: key → vectors that came with the document.
        differs: whether anything must be written.
    """

    read: int = 0
    storable: Sequence[Document] = ()
    supplied: Mapping[str, Supplied] = field(default_factory=dict)
    differs: bool = False


class Ingestion(ABC):
    """One call of `add`. A context manager: the second thread has ended when it is left."""

    def __init__(
        self,
        backend: Backend,
        documents: Documents,
        options: AddOptions,
        *,
        readers: Readers | None = None,
        supplied: SuppliedVectors | None = None,
        numbered: bool = False,
    ) -> None:
        """`numbered`: vectors without documents, under new numbers.

        Raises CollectionError when there is no room for temporary files.
        """
        self._backend = backend
        self._options = options
        spool_in, self._every = self._begin()
        self._readers, self._vectors_of, self._numbered = readers, supplied, numbered
        reader = None if readers is None else readers()
        self._settings = backend.settings if reader is None else reader.settings
        self._block_size = pipeline.FIRST_BLOCK
        self._added = self._changed = self._metadata_updated = self._unchanged = 0
        self.without_text, self.bad, self.repeated = LeftOut(), LeftOut(), LeftOut()
        malformed = self.bad if options.skip_bad else None
        self._stream = as_documents(documents, malformed, needs_text=supplied is None)
        self._peeked: Document | None = None
        self._spool = Spool(spool_in)
        report = options.building and partial(options.building, "Passages")
        self._pipeline = Pipeline(reader, report)
        self._blocks = self._pipeline.encoded(self._read_blocks())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._pipeline.__exit__(*details)
        self._blocks = iter(())  # an unfinished one is a cycle, which would keep the encoder
        self._spool.close()
        if self._vectors_of is not None:
            self._vectors_of.close()

    def run(self) -> AddSummary:
        """Commit until the documents end.

        Raises DuplicateKey, EmptyCorpus, and whatever the stream or the encoder raises.
        """
        ended = False
        while not ended:
            differs, ended = self._fill()
            if not differs:
                self._check_not_empty()
            while differs:
                try:
                    self._write()
                    break
                except EncoderMismatch:
                    if self._readers is None:
                        raise
                    self._encode_again(self._readers)
            # The stream may wait, or fork: nothing that can write is open while it is read.
            ended = ended or not self._more()
            finished = self._options.commit_every is not None and ended
            if differs or finished:
                self._merge(self._gone_through if finished else 0)
        counts = self._added, self._changed, self._metadata_updated, self._unchanged
        return AddSummary(*counts, self.without_text, self.bad, self.repeated)

    # --------------------------------------------------------------- what differs between backends

    @abstractmethod
    def _begin(self) -> tuple[Path, int | None]:
        """The folder for temporary files, and the new documents of a commit; None: all."""

    @abstractmethod
    def _known(self, documents: Sequence[Document]) -> dict[str, Known]:
        """Key → stored state of documents just read."""

    @abstractmethod
    def _write(self) -> None:
        """Commit the spooled documents that are not stored yet."""

    @abstractmethod
    def _merge(self, finished: int) -> None:
        """Merge segments if a merge is due. `finished`: see Collection.merge_due."""

    # ------------------------------------------------------------------------ read, compare, encode

    def _fill(self) -> tuple[bool, bool]:
        """Spool documents and vectors until a commit is full or the documents end.

        Returns whether anything is to be written, and whether the documents have ended.
        """
        self._spool.clear()
        documents, differs, ended = 0, False, True
        for block in self._blocks:
            spans = {d.key: cut for d, cut in zip(block.documents, block.spans, strict=True)}
            self._spool.add(((d, spans.get(d.key)) for d in block.storable), block.supplied)
            for vectors in block.batches:
                self._spool.add_vectors(vectors)
            if self._options.progress is not None:
                self._options.progress(block.read, block.tokens)
            documents += len(block.storable)
            differs |= block.differs
            if block.ends_commit:
                ended = False
                break
        if not differs:
            self._unchanged += documents
        if self._vectors_of is not None and not self._more():
            self._vectors_of.check_end(self._spool.seen, self._options.skip_bad)
        return differs, ended

    def _read_blocks(self) -> Iterator[ReadBlock]:
        documents = blocks = 0  # to encode, of this commit
        while self._more():
            block = self._read_block(None if self._every is None else self._every - documents)
            documents += len(block.documents)
            blocks += bool(block.documents)
            if documents == self._every:
                block.ends_commit, block.is_commit = True, blocks == 1
                documents = blocks = 0
            yield block

    def _read_block(self, most: int | None) -> ReadBlock:
        """The next block of the stream, of at most `most` documents."""
        count, characters = self._block_size
        largest = pipeline.LARGEST_BLOCK
        self._block_size = min(2 * count, largest[0]), min(2 * characters, largest[1])
        count = count if most is None else min(count, most)
        read: list[Document] = []
        while len(read) < count and characters > 0 and self._more():
            assert self._peeked is not None
            read.append(self._peeked)
            characters -= len(self._peeked.title) + len(self._peeked.text)
            self._peeked = None
        supplied = {} if self._vectors_of is None else self._vectors_of.next_for(read)
        storable = self._storable(read, supplied)
        stored = self._known(storable)
        storable = [document for document in storable if self._may_replace(document, stored)]
        comparison = self._compare(storable, stored, supplied)
        return ReadBlock(
            comparison.changed,
            read=len(read),
            storable=storable,
            supplied=supplied,
            differs=bool(comparison.changed or comparison.metadata),
        )

    def _more(self) -> bool:
        """Whether there are documents left; one is read ahead to know."""
        if self._pipeline.has_more:
            return True
        if self._peeked is None:
            self._peeked = next(self._stream, None)
        return self._peeked is not None

    def _storable(
        self, documents: Sequence[Document], supplied: Mapping[str, Supplied]
    ) -> list[Document]:
        """Documents with a text or vector and a new key; counts the others."""
        accepted: dict[str, Document] = {}
        seen = self._spool.seen([document.key for document in documents])
        for document in documents:
            vectors = supplied.get(document.key)
            if not document.full_text and not (vectors and vectors.spans):
                self.without_text.add(document.key)
            elif document.key not in seen and document.key not in accepted:
                accepted[document.key] = document
            elif document.derived:
                self.repeated.add(document.key)
            else:
                self._refuse(document, "occurs twice; give it another key or leave it out")
        self._spool.remember(accepted)
        return list(accepted.values())

    def _may_replace(self, document: Document, stored: Mapping[str, Known]) -> bool:
        """False for a file that skip_bad leaves out: a file of another folder has its key."""
        before = stored.get(document.key)
        if before is None or not before.root or before.root == document.root or not document.root:
            return True
        if not (Path(before.root) / document.file).exists():  # the folder was moved
            return True
        self._refuse(
            document,
            f"is that of a file of {before.root}; give the keys of one of the two folders a "
            "prefix: --key-prefix NAME/",
        )
        return False

    def _refuse(self, document: Document, why: str) -> None:
        message = f"{document.origin or 'add'}: the key {document.key!r} {why}"
        if not self._options.skip_bad:
            raise DuplicateKey(message)
        self.bad.add(message)

    def _compare(
        self,
        documents: Sequence[Document],
        stored: Mapping[str, Known],
        supplied: Mapping[str, Supplied],
    ) -> Comparison:
        if self._numbered and stored:
            raise CollectionBusy(
                f"{self._backend.path}: another writer has just used the number "
                f"{next(iter(stored))}; add the vectors again, their numbers then follow it"
            )
        checksums = {key: vectors.checksum for key, vectors in supplied.items()}
        return compare(documents, stored, checksums)

    # --------------------------------------------------------------------------------------- commit

    def _encode_again(self, readers: Readers) -> None:
        """Encode the uncommitted documents again: a reindex of this engine changed the encoder.

        Raises EncoderMismatch if the engine does not have it.
        """
        self._backend.refresh()
        reader = readers()
        self._settings = reader.settings
        self._pipeline.renew(reader)
        self._spool.clear_vectors()
        for spooled in self._spool.documents():
            block = self._pipeline.encode([s.document for s in spooled if s.spans is not None])
            spans = zip(block.documents, block.spans, strict=True)
            self._spool.place({document.key: cut for document, cut in spans})
            for vectors in block.batches:
                self._spool.add_vectors(vectors)

    def _changes(
        self, spooled: Sequence[Spooled], stored: Mapping[str, Known]
    ) -> tuple[Comparison, list[Spooled]]:
        """The spooled documents compared with the stored ones; and the changed ones, with vectors.

        Documents that another process has changed or deleted meanwhile are encoded now.
        """
        spooled = [s for s in spooled if self._may_replace(s.document, stored)]
        supplied = {
            s.document.key: Supplied(s.row, s.spans or (), s.vectors)
            for s in spooled
            if s.vectors is not None
        }
        comparison = self._compare([s.document for s in spooled], stored, supplied)
        keys = {document.key for document in comparison.changed}
        changed = [s for s in spooled if s.document.key in keys]
        late = [s.document for s in changed if s.spans is None]
        if not late:
            return comparison, changed
        block, row = self._pipeline.encode(late), self._spool.rows
        encoded = {}
        for document, cut in zip(block.documents, block.spans, strict=True):
            encoded[document.key] = Spooled(document, cut, row)
            row += len(cut)
        for vectors in block.batches:
            self._spool.add_vectors(vectors)
        return comparison, [encoded.get(s.document.key, s) for s in changed]

    def _vectors(self, rows: Ranges) -> npt.NDArray[Any] | Iterable[Vectors]:
        """The vectors in these ranges of rows."""
        source = self._spool if self._vectors_of is None else self._vectors_of
        return source.vectors(rows)

    def _summarize(self, comparison: Comparison, stored: Mapping[str, Known]) -> None:
        replaced = sum(document.key in stored for document in comparison.changed)
        self._changed += replaced
        self._added += len(comparison.changed) - replaced
        self._metadata_updated += comparison.metadata_updated
        self._unchanged += comparison.unchanged

    @property
    def _gone_through(self) -> int:
        """Number of documents that are stored now, by this call or before."""
        return self._added + self._changed + self._metadata_updated + self._unchanged

    def _check_not_empty(self) -> None:
        """Raise EmptyCorpus if the stream ended and nothing of it is stored."""
        if self._gone_through or self._more():
            return
        if self._vectors_of is not None and self._vectors_of.is_empty_export(
            self._options.skip_bad
        ):
            return
        reasons = []
        if self.without_text.count:
            reasons.append(f"{self.without_text.count} without text")
        if self.bad.count:
            reasons.append(f"{self.bad.count} bad, the first: {self.bad.first[0]}")
        why = f" ({', '.join(reasons)})" if reasons else ""
        raise EmptyCorpus(f"no document to index{why}; nothing was changed")


class FolderIngestion(Ingestion):
    """Ingestion into a folder: a commit is one transaction."""

    def _begin(self) -> tuple[Path, int | None]:
        self._collection = in_folder(self._backend)
        self._collection.follow()
        self._identity = self._collection.store.identity  # another folder may replace this one
        self._written: set[SegmentRow] = set()
        self._languages: Languages | None = None
        return self._collection.path, self._options.commit_every

    def _known(self, documents: Sequence[Document]) -> dict[str, Known]:
        first, reader = self._languages is None, self._pipeline.reader
        if self._languages is None:
            may_change = reader is not None and reader.instead is not None
            encoder = None if reader is None else reader.encoder
            self._languages = Languages(encoder, may_change=may_change)
        with self._collection.reader(self._identity) as store:
            changes = self._languages.look(store, documents)
        if changes and reader is not None and reader.instead is not None:
            reader = reader.instead()
            self._pipeline.renew(reader)
            self._languages.encoder = reader.encoder
            if first:  # what the first encoder has encoded before must be encoded again
                self._settings = reader.settings
        with self._collection.reader(self._identity) as store:
            return self._known_in(store, documents)

    def _known_in(
        self, store: Store, documents: Sequence[Document], writer: Writer | None = None
    ) -> dict[str, Known]:
        """Key → stored state of documents; `writer` during a commit."""
        return store.known([document.key for document in documents])

    def _write(self) -> None:
        expected = self._spool.ranges()
        rows: Ranges = []  # of the spool's vectors
        building = self._options.building
        with (
            self._collection.own_store(self._identity) as store,
            built_ahead(
                self._collection,
                store,
                self._settings,
                number(expected),
                lambda: self._vectors(expected),
                self._spool.texts,
                building,
            ) as ahead,
            self._collection.writing(store, made_by=self._settings) as writer,
        ):
            assert self._languages is not None
            self._languages.settle(writer)
            passage = writer.changes.next_passage()
            for spooled in self._spool.documents():
                stored = self._known_in(store, [s.document for s in spooled], writer)
                comparison, changed = self._changes(spooled, stored)
                spans = [s.spans or () for s in changed]
                checksums = {s.document.key: s.vectors for s in changed if s.vectors is not None}
                writer.changes.write(comparison.changed, spans, stored, passage, checksums)
                writer.changes.set_metadata(comparison.metadata, stored)
                passage += sum(map(len, spans))
                extend(rows, ((s.row, len(s.spans or ())) for s in changed))
                self._summarize(comparison, stored)
            if rows:
                built = ahead if rows == expected else None
                writer.append(self._vectors(rows), building, number(rows), built)
            self._written.update(writer.opened)

    def _merge(self, finished: int = 0) -> None:
        with self._collection.own_store(self._identity) as store:
            self._collection.merge_due(
                store, self._options.building, written=self._written, finished=finished
            )


class ServerIngestion(Ingestion):
    """Ingestion into a collection on a server: each block of documents is a commit."""

    def _begin(self) -> tuple[Path, int | None]:
        self._read: dict[str, Known] = {}  # of the documents that are not written yet
        return Path(gettempdir()), min(_SERVER_BLOCK, self._options.commit_every or _SERVER_BLOCK)

    def run(self) -> AddSummary:
        """As Ingestion.run; returns when the index of vectors is built."""
        summary = super().run()
        self._backend.wait_ready()
        return summary

    def _known(self, documents: Sequence[Document]) -> dict[str, Known]:
        known = self._backend.known([document.key for document in documents])
        self._read |= known
        return known

    def _write(self) -> None:
        for block in in_batches(chain.from_iterable(self._spool.documents()), _SERVER_BLOCK):
            self._write_block(block)
        self._read.clear()

    def _write_block(self, spooled: Sequence[Spooled]) -> None:
        documents = [s.document for s in spooled]
        for attempt in range(_TRIES):
            # If that has changed since it was read, the transaction says so.
            read = {d.key: self._read[d.key] for d in documents if d.key in self._read}
            stored = self._known(documents) if attempt else read
            comparison, changed = self._changes(spooled, stored)
            encoded = {s.document.key: s for s in changed}
            spooled = [encoded.get(s.document.key, s) for s in spooled]
            try:
                if entries := self._entries(comparison, changed, stored):
                    self._backend.upsert(entries, stored, self._settings)
            except Changed:  # compare again; only new changes are encoded
                continue
            return self._summarize(comparison, stored)
        raise CollectionError(
            f"{self._backend.path}: other writers changed the same documents {_TRIES} times in "
            "a row; nothing was added since the last commit, try again"
        )

    def _entries(
        self, comparison: Comparison, changed: Sequence[Spooled], stored: Mapping[str, Known]
    ) -> list[Entry]:
        """What to store. Raises Changed if another writer has deleted some of it."""
        rows: Ranges = []
        counts = [len(s.spans or ()) for s in changed]
        extend(rows, ((s.row, count) for s, count in zip(changed, counts, strict=True)))
        vectors = np.empty((0, self._backend.settings["encoder"]["dim"]), np.float32)
        if rows:
            blocks = self._vectors(rows)
            joined = blocks if isinstance(blocks, np.ndarray) else np.concatenate(list(blocks))
            vectors = joined.astype(np.float32, copy=False)
        parts = np.split(vectors, np.cumsum(counts)[:-1]) if counts else []
        entries = [
            _entry(s.document, s.spans or (), part, stored, s.vectors)
            for s, part in zip(changed, parts, strict=True)
        ]
        stored_entries = self._backend.entries([document.key for document in comparison.metadata])
        by_key = {entry.document.key: entry for entry in stored_entries}
        for document in comparison.metadata:
            before = by_key.get(document.key)
            if before is None:
                raise Changed
            entries.append(_entry(document, before.spans, before.vectors, stored, before.supplied))
        return entries

    def _merge(self, finished: int) -> None:
        """Nothing: a server keeps its own index."""


def _entry(
    document: Document,
    spans: Sequence[tuple[int, int]],
    vectors: Vectors,
    stored: Mapping[str, Known],
    supplied: bytes | None,
) -> Entry:
    """The entry of a document; values that `update` has set stay, see `merged`."""
    metadata, source = merged(stored.get(document.key), document)
    document = replace(document, metadata=json.loads(metadata), origin="", file="")
    return Entry(document, tuple(spans), vectors, source, supplied)
