"""Documents → passages → vectors → commits: what `add` does on every backend, in this order.

    read      a block of documents, without those that have no text or a key that occurred before
    compare   with what is stored: what is new or changed, and where only the metadata differs
    encode    what is new or changed, cut into passages, in a second thread (ingest.pipeline)
    commit    what differs, after SECONDS or PASSAGES at the latest: an interruption loses no more

If another writer has changed one of the documents since they were compared, the backend refuses the
commit. They are compared again, what differs now and has no vectors yet is encoded, and the commit
is tried again. Vectors of an encoder that a reindex has replaced meanwhile are refused too: their
documents are encoded again if this engine reindexed, because it then has the new encoder.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Backend, Changed, Entry, Known, Span, as_json
from searchengine.corpus.documents import DataFrame, Document, LeftOut, as_documents
from searchengine.encoders.loading import CollectionEncoder
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
from searchengine.ingest.supplied import Supplied, SuppliedVectors, VectorsArgument

Documents = Iterable[Document | Mapping[str, Any]] | DataFrame
Readers = Callable[[], PassageReader]
"""Returns what cuts and encodes for the state of the collection that is shown now."""

SECONDS = 30.0
"""Maximum seconds between two commits; two more chunks may be encoded meanwhile."""
MOST = 20_000, 1 << 26
"""Passages, and characters of their documents, that are in memory until they are committed."""
MOST_SUPPLIED = 1 << 20, 1 << 28
"""The same, of documents that come with their vectors, which are not copied into memory."""
FIRST_READ = 512, 1 << 16
"""Documents and characters read at first; each time twice as many, up to LARGEST_BLOCK."""
COUNTED = ("added", "changed", "metadata_updated", "unchanged", "moved")
_NONE: npt.NDArray[Any] = np.empty((0, 0), np.float32)
_TRIES = 100  # to commit documents that other writers change


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
    if vectors is None:
        assert readers is not None and documents is not None
        with Ingestion(backend, documents, options, readers=readers) as ingestion:
            return ingestion.run()
    if documents is None and passages is not None:
        raise QueryError("passages need documents; leave them out, or pass documents")
    backend.follow()
    supplied = SuppliedVectors.checked(backend, vectors, passages, options.skip_bad)
    if documents is not None:
        with Ingestion(backend, documents, options, supplied=supplied) as ingestion:
            return ingestion.run()
    highest = backend.highest_number()
    numbers = range(highest + 1, highest + 1 + supplied.documents)
    stream = (Document(str(number), "") for number in numbers)
    with Ingestion(backend, stream, options, supplied=supplied, numbered=True) as ingestion:
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
class Item:
    """A document beside the stored one.

    Attributes:
        document: the document.
        before: its stored state when it was compared.
        kind: the attribute of AddSummary that counts it.
        differs: whether anything is to be written.
        supplied: checksum of vectors that came with it.
        spans, vectors: its passages; None: not encoded yet, or they stay.
        former: the state of a moved document, under another key.
    """

    document: Document
    before: Known | None
    kind: str = "added"
    differs: bool = True
    supplied: bytes | None = None
    spans: Sequence[Span] | None = None
    vectors: npt.NDArray[Any] | None = None
    former: Known | None = None

    @property
    def has_vectors(self) -> bool:
        """Whether passages and vectors are written; else metadata and root alone."""
        return self.kind in ("added", "changed", "moved")

    def entry(self) -> Entry:
        """What is stored. Values that `update` has set stay: see `merged`."""
        document, source = self.document, None
        before = self.former or self.before
        if before is not None and before.source is not None:
            metadata, source = merged(before, document)
            document = replace(document, metadata=json.loads(metadata))
        vectors = _NONE if self.vectors is None else self.vectors
        return Entry(document, tuple(self.spans or ()), vectors, source, self.supplied)


@dataclass(slots=True)
class Chunk:
    """Documents that are encoded together.

    Attributes:
        read: how many documents it stands for, with those that are left out.
        items: the others.
        begun: when it was read, by the clock `monotonic`.
        block: those of `items` that have no vectors yet, which the encoder has been given.
        ends_commit: the commit has as many new documents as the caller wants.
    """

    read: int
    items: list[Item]
    begun: float
    block: Block | None
    ends_commit: bool


class Ingestion:
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
        """`numbered`: vectors without documents, under new numbers."""
        backend.follow()
        self._backend, self._options, self._identity = backend, options, backend.identity
        self._readers, self._supplied, self._numbered = readers, supplied, numbered
        reader = None if readers is None else readers()
        self._settings = backend.settings if reader is None else reader.settings
        self._left = options.commit_every
        self._size = FIRST_READ
        self._counts: Counter[str] = Counter()
        self._seen: set[str] = set()
        self.without_text, self.bad, self.repeated = LeftOut(), LeftOut(), LeftOut()
        malformed = self.bad if options.skip_bad else None
        self._stream = as_documents(documents, malformed, needs_text=supplied is None)
        self._peeked: Document | None = None
        self._languages = Languages(reader) if backend.has_segments else None
        report = options.building and partial(options.building, "Passages")
        self._pipeline = None if reader is None else Pipeline(reader, report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._pipeline is not None:
            self._pipeline.__exit__(*details)

    def run(self) -> AddSummary:
        """Commit until the documents end.

        Raises DuplicateKey, EmptyCorpus, and whatever the stream or the encoder raises.
        """
        commits = 0
        for items in self._commits():
            for part in in_batches(items, self._backend.largest_commit or len(items)):
                commits += self._commit(part)
        self._check_not_empty()
        is_resumed = self._counts["unchanged"] > FIRST_READ[0]
        is_long = commits > 1 or is_resumed or self._options.commit_every is not None
        finished = self._counts.total() if is_long else 0
        self._backend.wait_ready(finished=finished, progress=self._options.building)
        return AddSummary(
            **{name: self._counts[name] for name in COUNTED},
            without_text=self.without_text,
            bad=self.bad,
            repeated=self.repeated,
        )

    # ------------------------------------------------------------------------ read, compare, encode

    def _commits(self) -> Iterator[list[Item]]:
        """The documents, one list for each commit."""
        items: list[Item] = []
        most = MOST if self._supplied is None else MOST_SUPPLIED
        passages = characters = 0
        begun = 0.0
        for chunk in self._started():
            begun = begun if items else chunk.begun
            self._take_vectors(chunk)
            items += chunk.items
            if self._options.progress is not None:
                tokens = 0 if chunk.block is None else chunk.block.tokens
                self._options.progress(chunk.read, tokens)
            passages += sum(max(1, len(item.spans or ())) for item in chunk.items)
            characters += sum(len(item.document.text) for item in chunk.items)
            is_late = self._pipeline is not None and monotonic() - begun >= SECONDS
            if chunk.ends_commit or is_late or passages >= most[0] or characters >= most[1]:
                yield items
                items, passages, characters = [], 0, 0
        if self._supplied is not None:
            self._supplied.check_end(self._seen, self._options.skip_bad)
        yield items

    def _started(self) -> Iterator[Chunk]:
        """The chunks; the next ones are being encoded while the caller has one.

        After one that ends a commit the caller writes first: the next document may take long.
        """
        waiting: deque[Chunk] = deque()
        chunks = self._chunks()
        while True:
            while len(waiting) < pipeline.AHEAD and not (waiting and waiting[-1].ends_commit):
                if (chunk := next(chunks, None)) is None:
                    break
                waiting.append(chunk)
            if not waiting:
                return
            yield waiting.popleft()

    def _chunks(self) -> Iterator[Chunk]:
        """Read, and give what is to be encoded to the second thread."""
        while self._more():
            begun = monotonic()
            read, items = self._read_block()
            ends = self._left == 0
            if ends:
                self._left = self._options.commit_every
            while read:
                part, block = items, None
                if self._pipeline is not None:
                    part = _fitting(items, *self._pipeline.size)
                    if late := [item.document for item in part if _lacks_vectors(item)]:
                        block = self._pipeline.start(late)
                items = items[len(part) :]
                count = len(part) if items else read
                yield Chunk(count, part, begun, block, ends and not items)
                read -= count
                begun = monotonic()

    def _read_block(self) -> tuple[int, list[Item]]:
        """Read documents of the stream, and compare them; returns how many, and those to store."""
        count, characters = self._size
        self._size = (
            min(2 * count, pipeline.LARGEST_BLOCK[0]),
            min(2 * characters, pipeline.LARGEST_BLOCK[1]),
        )
        count = count if self._left is None else min(count, self._left)
        until = monotonic() + pipeline.SECONDS
        read: list[Document] = []
        while len(read) < count and characters > 0 and monotonic() < until and self._more():
            assert self._peeked is not None
            read.append(self._peeked)
            characters -= len(self._peeked.title) + len(self._peeked.text)
            self._peeked = None
        supplied = {} if self._supplied is None else self._supplied.next_for(read)
        documents = self._storable(read, supplied)
        self._look_at_languages(documents)
        known = self._backend.known([document.key for document in documents])
        items = []
        for document in documents:
            item = Item(document, None)
            if document.key in supplied:
                item.spans, item.vectors, item.supplied = supplied[document.key]
            if self._compare(item, known):
                items.append(item)
        self._adopt_moved(items)
        if self._left is not None:
            self._left -= sum(item.kind in ("added", "changed") for item in items)
        return len(read), items

    def _more(self) -> bool:
        """Whether there are documents left; one is read ahead to know."""
        if self._peeked is None:
            self._peeked = next(self._stream, None)
        return self._peeked is not None

    def _storable(
        self, documents: Sequence[Document], supplied: Mapping[str, Supplied]
    ) -> list[Document]:
        """Documents with a text or vector and a new key; counts the others."""
        storable = []
        for document in documents:
            vectors = supplied.get(document.key)
            if not document.full_text and not (vectors and vectors.spans):
                self.without_text.add(document.key)
            elif document.key not in self._seen:
                self._seen.add(document.key)
                storable.append(document)
            elif document.derived:
                self.repeated.add(document.key)
            else:
                self._refuse(document, "occurs twice; give it another key or leave it out")
        return storable

    def _compare(self, item: Item, known: Mapping[str, Known]) -> bool:
        """Compare a document with the stored one; False if it is left out."""
        document, before = item.document, known.get(item.document.key)
        item.before, item.kind = before, _kind(document, before, item.supplied)
        item.differs = item.kind != "unchanged"
        if before is None:
            item.kind = item.kind if item.former is None else "moved"
            return True
        item.former = None
        if self._numbered:
            raise CollectionBusy(
                f"{self._backend.path}: another writer has just used the number "
                f"{document.key}; add the vectors again, their numbers then follow it"
            )
        is_other_file = before.root and document.root and before.root != document.root
        if is_other_file and (Path(before.root or "") / document.file).exists():  # not moved
            self._refuse(
                document,
                f"is that of a file of {before.root}; give the keys of one of the two folders a "
                "prefix: --key-prefix NAME/",
            )
            return False
        item.differs |= before.root != (document.root or None)
        return True

    def _refuse(self, document: Document, why: str) -> None:
        """Count a document that skip_bad leaves out; else raise DuplicateKey."""
        message = f"{document.origin or 'add'}: the key {document.key!r} {why}"
        if not self._options.skip_bad:
            raise DuplicateKey(message)
        self.bad.add(message)

    def _adopt_moved(self, items: Sequence[Item]) -> None:
        """Give new documents the vectors of those that they take the place of."""

    def _look_at_languages(self, documents: Sequence[Document]) -> None:
        """While the collection is empty: warn of the languages, or change the encoder for them."""
        languages = self._languages
        if languages is None or not languages.wants_more or not self._is_empty():
            return
        is_first = languages.is_new
        reader = languages.look(documents, self._backend.settings)
        if reader is not None and self._pipeline is not None:
            self._pipeline.reader = reader
            if is_first:  # later, `_commit` sees that encoded chunks have other settings
                self._settings = reader.settings

    def _is_empty(self) -> bool:
        for snapshot_of in (self._backend.reading, self._backend.newest):
            with snapshot_of() as snapshot:
                if snapshot.store.ids_after(-1, None, 1).size:
                    return False
        return True

    def _take_vectors(self, chunk: Chunk) -> None:
        """Wait until a chunk is encoded. What another encoder has encoded stays without vectors."""
        if chunk.block is None or self._pipeline is None:
            return
        late = filter(_lacks_vectors, chunk.items)
        parts = zip(late, chunk.block.spans, chunk.block.parts, strict=True)
        self._pipeline.adapt(chunk.block)
        if chunk.block.reader is self._pipeline.reader:
            for item, spans, vectors in list(parts):
                item.spans, item.vectors = spans, vectors

    # --------------------------------------------------------------------------------------- commit

    def _commit(self, items: list[Item]) -> bool:
        """Write documents; False if all are stored already.

        Tries again if others have changed them, or the encoder, meanwhile.
        """
        for _ in range(_TRIES):
            if not any(item.differs for item in items):
                self._counts.update(item.kind for item in items)
                return False
            self._encode(filter(_lacks_vectors, items))
            try:
                self._backend.upsert(
                    [item.entry() for item in items if item.has_vectors],
                    {item.document.key: item.before for item in items if item.before is not None},
                    self._settings,
                    metadata=[i.entry() for i in items if i.differs and not i.has_vectors],
                    unchanged=[item.document.key for item in items if not item.differs],
                    choose=None if self._languages is None else self._languages.choose,
                    identity=self._identity,
                    progress=self._options.building,
                )
            except Changed:
                known = self._backend.known([item.document.key for item in items])
                items = [item for item in items if self._compare(item, known)]
            except EncoderMismatch:
                if self._readers is None or self._pipeline is None:
                    raise
                self._backend.refresh()
                self._pipeline.reader = reader = self._readers()
                self._settings = reader.settings
                for item in items:
                    item.spans = item.vectors = None
            else:
                self._counts.update(item.kind for item in items)
                return True
        raise CollectionError(
            f"{self._backend.path}: other writers changed the same documents {_TRIES} times in "
            "a row; nothing was added since the last commit, try again"
        )

    def _encode(self, items: Iterable[Item]) -> None:
        """Encode documents that others have changed or deleted since they were compared."""
        for late in in_batches(items, pipeline.LARGEST_BLOCK[0]):
            assert self._pipeline is not None
            block = self._pipeline.start([item.document for item in late])
            for item, spans, vectors in zip(late, block.spans, block.parts, strict=True):
                item.spans, item.vectors = spans, vectors

    def _check_not_empty(self) -> None:
        """Raise EmptyCorpus if nothing of the stream is stored."""
        if self._counts or (
            self._supplied is not None and self._supplied.is_empty_export(self._options.skip_bad)
        ):
            return
        reasons = []
        if self.without_text.count:
            reasons.append(f"{self.without_text.count} without text")
        if self.bad.count:
            reasons.append(f"{self.bad.count} bad, the first: {self.bad.first[0]}")
        why = f" ({', '.join(reasons)})" if reasons else ""
        raise EmptyCorpus(f"no document to index{why}; nothing was changed")


def _kind(document: Document, before: Known | None, supplied: bytes | None) -> str:
    """The attribute of AddSummary that counts a document.

    One that comes without vectors keeps those that once came with it, if its text is the same.
    """
    if before is None:
        return "added"
    keeps = before.vectors != b"" if supplied is None else before.vectors == supplied
    if before.digest != document.digest or not keeps:
        return "changed"
    return "unchanged" if before.added == as_json(document.metadata) else "metadata_updated"


def _lacks_vectors(item: Item) -> bool:
    return item.has_vectors and item.vectors is None


def _fitting(items: Sequence[Item], documents: int, characters: int) -> list[Item]:
    """The first items: at most `documents` and `characters` to encode, and at least one item."""
    part: list[Item] = []
    for item in items:
        if part and (documents <= 0 or characters <= 0):
            break
        part.append(item)
        if _lacks_vectors(item):
            documents, characters = documents - 1, characters - len(item.document.text)
    return part


def merged(before: Known | None, document: Document) -> tuple[str, str | None]:
    """The metadata to store for a document, and its source if that differs; as JSON.

    Values that `update` set stay until the source changes: a field of the source that differs from
    when it was last added gets its new value; all other fields keep their stored values.
    """
    added = as_json(document.metadata)
    if before is None or before.source is None:
        return added, None
    stored = _three_way(json.loads(before.source), json.loads(added), json.loads(before.metadata))
    written = as_json(stored)
    return written, None if written == added else added


def _three_way(
    old: Mapping[str, Any], new: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """`stored`, with the changes from `old` to `new` applied."""
    result = dict(stored)
    for name in {**old, **new}:
        if name in old and name in new and json.dumps(old[name]) == json.dumps(new[name]):
            continue  # as JSON: to Python 1 and true are equal
        before, now, current = old.get(name), new.get(name), stored.get(name)
        if isinstance(before, dict) and isinstance(now, dict) and isinstance(current, dict):
            result[name] = _three_way(before, now, current)
        elif name in new:
            result[name] = new[name]
        else:
            result.pop(name, None)
    return result
