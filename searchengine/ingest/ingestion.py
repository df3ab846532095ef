"""Documents → passages → vectors → commits: what `add` does on every backend, in this order.

    read      a block of documents, without those that have no text or a key that occurred before
    compare   with what is stored: what is new or changed, and where only the metadata differs
    encode    what is new or changed, cut into passages, in a second thread (ingest.pipeline)
    commit    what differs, after SECONDS or MOST at the latest: an interruption loses no more

If another writer has changed one of the documents since they were compared, the backend refuses the
commit. They are compared again, what differs now and has no vectors yet is encoded, and the commit
is tried again. Vectors of an encoder that a reindex has replaced meanwhile are refused too: their
documents are encoded again if this engine reindexed, because it then has the new encoder.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Backend, Changed, Entry, Known, Span, as_json
from searchengine.corpus.documents import DataFrame, Document, LeftOut, as_documents
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.errors import CorpusError, DuplicateKey, EmptyCorpus, EncoderMismatch, QueryError
from searchengine.indexer.building import Progress
from searchengine.ingest import pipeline
from searchengine.ingest.defaults import Languages
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import Block, Pipeline, in_batches
from searchengine.ingest.supplied import SuppliedVectors

Documents = Iterable[Document | Mapping[str, Any]] | DataFrame
Readers = Callable[[], PassageReader]
"""Returns what cuts and encodes for the state of the collection that is shown now."""

SECONDS = 30.0
"""Maximum seconds between two commits; two more blocks may be encoded meanwhile."""
MOST = 20_000, 1 << 26
"""Passages, and characters of their documents, that are in memory until they are committed."""
MOST_SUPPLIED = 1 << 20, 1 << 28
"""The same, of documents that come with their vectors, which are not copied into memory."""
COUNTED = ("added", "changed", "metadata_updated", "unchanged")
_NONE: npt.NDArray[Any] = np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class AddOptions:
    """Options of `add`.

    Attributes:
        skip_bad: leave out a document with a key that occurred before; otherwise raise
            DuplicateKey.
        progress: called with the number of documents just done and of the tokens encoded for them.
        building: called while segments are built (indexer.building.Progress).
    """

    skip_bad: bool = False
    progress: Callable[[int, int], None] | None = None
    building: Progress | None = None


@dataclass(frozen=True, slots=True)
class AddSummary:
    """The result of `add`: numbers of documents.

    Attributes:
        added: new documents.
        changed: documents with a new title or text; encoded again.
        metadata_updated: documents with changed metadata only; not encoded again.
        unchanged: documents that were stored like this already.
        without_text: keys of documents with neither title nor text; left out.
        bad: a message for each document that was refused; left out.
        repeated: keys of records without an id that equal an earlier one; left out.
        removed: documents deleted because their files are gone.
    """

    added: int
    changed: int
    metadata_updated: int
    unchanged: int
    without_text: LeftOut
    bad: LeftOut
    repeated: LeftOut
    removed: int = 0


def add(
    backend: Backend,
    documents: Documents,
    options: AddOptions,
    readers: Readers,
    vectors: npt.ArrayLike | None = None,
    passages: Iterable[Mapping[str, Any]] | None = None,
) -> AddSummary:
    """Commit documents, which replace stored ones of the same keys; see SearchEngine.add."""
    supplied = None
    if vectors is not None:
        backend.refresh()  # the folder may have been replaced, with other settings
        if options.skip_bad:
            raise QueryError(
                "skip_bad would leave out documents, but not their vectors; leave skip_bad out, or "
                "leave those documents out with their rows"
            )
        supplied = SuppliedVectors(backend, vectors, passages)
    elif passages is not None:
        raise QueryError("passages need vectors; pass vectors too, or leave passages out")
    return Ingestion(backend, documents, options, readers, supplied).run()


def passage_reader(backend: Backend, encoder: CollectionEncoder) -> PassageReader:
    """Cuts and encodes the documents of a collection. Raises QueryError without an encoder."""
    backend.refresh()  # the folder may have been replaced, with other settings
    stored = backend.settings
    if stored["encoder"]["fingerprint"] == NO_ENCODER:
        raise QueryError(
            f"{backend.path} has no encoder; pass the vectors of the documents: "
            "add(documents, vectors), --vectors FILE.npy, or _vector over HTTP"
        )
    try:
        return PassageReader(encoder.load(stored), stored)
    except EncoderMismatch:
        if stored["encoder"] == backend.settings["encoder"]:
            raise
        return passage_reader(backend, encoder)  # reindexed meanwhile


@dataclass(slots=True)
class Item:
    """A document beside the stored one.

    Attributes:
        document: the document.
        spans, vectors: its passages; None: not encoded yet, or they stay.
        supplied: checksum of vectors that came with it.
        before: its stored state when it was compared.
        kind: the attribute of AddSummary that counts it.
        differs: whether anything is to be written.
    """

    document: Document
    spans: Sequence[Span] | None = None
    vectors: npt.NDArray[Any] | None = None
    supplied: bytes | None = None
    before: Known | None = None
    kind: str = "added"
    differs: bool = True

    @property
    def has_vectors(self) -> bool:
        """Whether passages and vectors are written; else metadata and root alone."""
        return self.kind in ("added", "changed")

    @property
    def is_pending(self) -> bool:
        """Whether it is still to be encoded."""
        return self.vectors is None and self.has_vectors

    def compare(self, before: Known | None) -> None:
        """Set `kind` and `differs` by its stored state.

        A document that comes without vectors keeps those that once came with it, if its text is
        the same.
        """
        self.before = before
        if before is None:
            self.kind, self.differs = "added", True
            return
        keeps = before.vectors != b"" if self.supplied is None else before.vectors == self.supplied
        if before.digest != self.document.digest or not keeps:
            self.kind = "changed"
        elif before.added != as_json(self.document.metadata):
            self.kind = "metadata_updated"
        else:
            self.kind = "unchanged"
        self.differs = self.kind != "unchanged" or before.root != (self.document.root or None)

    def entry(self) -> Entry:
        """What is stored.

        Values that `update` set stay until the source changes: a field of the source that differs
        from when it was last added gets its new value; all other fields keep their stored values.
        """
        document, source = self.document, None
        if self.before is not None and self.before.source is not None:
            added, stored = as_json(document.metadata), self.before.metadata
            metadata = _three_way(*map(json.loads, (self.before.source, added, stored)))
            source = None if as_json(metadata) == added else added
            document = replace(document, metadata=metadata)
        vectors = _NONE if self.vectors is None else self.vectors
        return Entry(document, tuple(self.spans or ()), vectors, source, self.supplied)


class Ingestion:
    """One call of `add`.

    Attributes:
        seen: the keys that were read.
    """

    def __init__(
        self,
        backend: Backend,
        documents: Documents,
        options: AddOptions,
        readers: Readers,
        supplied: SuppliedVectors | None = None,
    ) -> None:
        """`readers` encode what is not `supplied`."""
        self._backend, self._options = backend, options
        self._readers, self._supplied = readers, supplied
        reader = readers() if supplied is None else None
        self._settings = backend.settings if reader is None else reader.settings
        self._pipeline = Pipeline(reader)
        self._languages = None
        chooses = isinstance(backend.path, Path) and "mode" in backend.settings
        if chooses and self._is_empty(newest=False):
            self._languages = Languages(reader)  # no mode: of a reindex, which chooses at its end
        self.seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._without_text, self._bad, self._repeated = LeftOut(), LeftOut(), LeftOut()
        malformed = self._bad if options.skip_bad else None
        self._stream = as_documents(documents, malformed, needs_text=supplied is None)
        self._items: list[Item] = []  # of the next commit
        self._passages = self._characters = self._commits = 0
        self._committed = monotonic()

    def run(self, *, may_be_empty: bool = False) -> AddSummary:
        """Read, encode and commit all documents. The second thread has ended when this returns.

        Raises DuplicateKey, EmptyCorpus, and whatever the stream or the encoder raises.
        """
        try:
            started: deque[tuple[list[Item], Block | None]] = deque()
            for block in self._blocks():
                started.append(block)
                if len(started) >= pipeline.AHEAD:
                    self._finish(*started.popleft())
            for each in started:
                self._finish(*each)
            if self._supplied is not None:
                self._supplied.check_end(self.seen)
            self._commit()
        finally:
            self._pipeline.close()
        if not may_be_empty:
            self.check_not_empty()
        is_resumed = self._counts["unchanged"] > pipeline.LARGEST_BLOCK[0]
        finished = self._counts.total() if self._commits > 1 or is_resumed else 0
        self._backend.upsert((), finished=finished, progress=self._options.building)
        counts = {name: self._counts[name] for name in COUNTED}
        return AddSummary(
            **counts, without_text=self._without_text, bad=self._bad, repeated=self._repeated
        )

    def check_not_empty(self) -> None:
        """Raise EmptyCorpus if nothing of the stream is stored."""
        if self._counts:
            return
        without_text, bad = self._without_text.count, self._bad
        reasons = [f"{without_text} without text"] if without_text else []
        reasons += [f"{bad.count} bad, the first: {bad.first[0]}"] if bad.count else []
        why = f" ({', '.join(reasons)})" if reasons else ""
        raise EmptyCorpus(f"no document to index{why}; nothing was changed")

    # ------------------------------------------------------------------------ read, compare, encode

    def _blocks(self) -> Iterator[tuple[list[Item], Block | None]]:
        """Read and compare documents, and give those without vectors to the second thread.

        Yields documents, and the block of those that are encoded.
        """
        while read := self._read():
            items = self._compared(self._storable(read))
            if self._options.progress is not None and len(read) > len(items):
                self._options.progress(len(read) - len(items), 0)
            while items:
                count = self._fitting(items)
                part, items = items[:count], items[count:]
                late = [item.document for item in part if item.is_pending]
                yield part, self._pipeline.start(late) if late else None

    def _read(self) -> list[Document]:
        """The next documents of the stream, to compare at once; none at its end."""
        (count, characters), until = pipeline.LARGEST_BLOCK, monotonic() + pipeline.SECONDS
        read: list[Document] = []
        for document in self._stream:
            read.append(document)
            characters -= len(document.title) + len(document.text)
            if len(read) >= count or characters <= 0 or monotonic() >= until:
                break
        return read

    def _storable(self, read: Sequence[Document]) -> list[Item]:
        """The documents with a text or vector and a new key; counts the others."""
        supplied = {} if self._supplied is None else self._supplied.next_for(read)
        items = []
        for document in read:
            vectors = supplied.get(document.key, ())
            if not document.full_text and not (vectors and vectors[0]):
                self._without_text.add(document.key)
            elif vectors and not vectors[0]:
                where = f"{document.origin or 'add'}: the key {document.key!r} has no passage"
                raise CorpusError(f"{where}, so no search finds it; add one, or leave it out")
            elif document.key not in self.seen:
                self.seen.add(document.key)
                items.append(Item(document, *vectors))
            elif document.derived:
                self._repeated.add(document.key)
            else:
                self._refuse(document, "occurs twice; give it another key or leave it out")
        # The first block, unless another writer was quicker.
        if self._languages is not None and len(self.seen) == len(items) and self._is_empty():
            reader = self._languages.look([item.document for item in items])
            if reader is not None:
                self._encode_by(reader)
        return items

    def _fitting(self, items: Sequence[Item]) -> int:
        """How many of the items the encoder takes at once, and at least one."""
        documents, characters = self._pipeline.size
        for count, item in enumerate(items, 1):
            if item.is_pending:
                documents, characters = documents - 1, characters - len(item.document.text)
                if documents <= 0 or characters <= 0:
                    return count
        return len(items)

    def _compared(self, items: Sequence[Item]) -> list[Item]:
        """Compare documents with the stored ones, without those that must not replace them."""
        with self._backend.reading(newest=True) as snapshot:
            known = snapshot.known([item.document.key for item in items])
        kept = []
        for item in items:
            document, before = item.document, known.get(item.document.key)
            item.compare(before)
            root = (before and before.root) or document.root
            if document.root and root != document.root and _is_there(root, document.file):
                self._refuse(
                    document,
                    f"is that of a file of {root}; give the keys of one of the two folders a "
                    "prefix: --key-prefix NAME/",
                )
            else:
                kept.append(item)
        return kept

    def _refuse(self, document: Document, why: str) -> None:
        """Count a document that skip_bad leaves out; else raise DuplicateKey."""
        message = f"{document.origin or 'add'}: the key {document.key!r} {why}"
        if not self._options.skip_bad:
            raise DuplicateKey(message)
        self._bad.add(message)

    def _is_empty(self, *, newest: bool = True) -> bool:
        with self._backend.reading(newest=newest) as snapshot:
            return not snapshot.ids_after(-1, None, 1).size

    def _encode_by(self, reader: PassageReader) -> None:
        """Go on with another encoder; what waits for its commit is encoded again."""
        self._pipeline.reader, self._settings = reader, reader.settings
        for item in self._items:
            item.spans = item.vectors = None

    # --------------------------------------------------------------------------------------- commit

    def _finish(self, items: list[Item], block: Block | None) -> None:
        """Wait until a block is encoded, and commit if it is time."""
        if block is not None:
            self._give_vectors(items, block)
        self._items += items
        if self._options.progress is not None:
            self._options.progress(len(items), 0 if block is None else block.tokens)
        passages, characters = MOST if self._supplied is None else MOST_SUPPLIED
        self._passages += sum(max(1, len(item.spans or ())) for item in items)
        self._characters += sum(len(item.document.text) for item in items)
        is_full = self._passages >= passages or self._characters >= characters
        if is_full or monotonic() - self._committed >= SECONDS:
            self._commit()

    def _commit(self) -> None:
        """Write the documents finished since the last commit.

        Tries again if others have changed them, or the encoder, meanwhile.
        """
        while True:
            items = self._items
            if not any(item.differs for item in items):
                break
            late = [item for item in items if item.is_pending]
            for batch in in_batches(late, pipeline.LARGEST_BLOCK[0]):  # changed since compared
                self._give_vectors(batch, self._pipeline.start([item.document for item in batch]))
            try:
                self._backend.upsert(
                    [item.entry() for item in items if item.has_vectors],
                    {item.document.key: item.before for item in items if item.before is not None},
                    self._settings,
                    metadata=[i.entry() for i in items if i.differs and not i.has_vectors],
                    unchanged=[item.document.key for item in items if not item.differs],
                    choose=None if self._languages is None else self._languages.choose,
                    progress=self._options.building,
                )
            except Changed:
                self._items = self._compared(items)
            except EncoderMismatch:
                if self._supplied is not None:
                    raise
                self._backend.refresh()
                self._encode_by(self._readers())
            else:
                self._commits += 1
                break
        self._counts.update(item.kind for item in self._items)
        self._items, self._passages, self._characters = [], 0, 0
        self._committed = monotonic()

    def _give_vectors(self, items: Iterable[Item], block: Block) -> None:
        vectors = self._pipeline.result(block)
        if block.reader is self._pipeline.reader:  # else `_commit` encodes them
            late = [item for item in items if item.is_pending]
            for item, spans, rows in zip(late, block.spans, vectors, strict=True):
                item.spans, item.vectors = spans, rows


def _is_there(root: str, file: str) -> bool:
    """Whether a file of a folder is there, or nobody can tell: the folder may be another user's."""
    try:
        return Path(root, file).exists()
    except OSError:
        return True


def _three_way(
    old: Mapping[str, Any], new: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """`stored`, with the changes from `old` to `new` applied."""
    result = dict(stored)
    for name in {**old, **new}:
        if name in old and name in new and json.dumps(old[name]) == json.dumps(new[name]):
            continue  # as JSON: to Python 1 and true are equal
        values: list[Any] = [each.get(name) for each in (old, new, stored)]
        if all(isinstance(value, dict) for value in values):
            result[name] = _three_way(*values)
        elif name in new:
            result[name] = new[name]
        else:
            result.pop(name, None)
    return result
