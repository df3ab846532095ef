"""Documents → passages → vectors → commits: what `add` does, in this order.

    read      a block of documents, without those that have no text or a key that occurred before
    compare   with what is stored: what is new or changed, and where only the metadata differs
    cut       what is new or changed into passages
    encode    the passages, in a second thread
    spool     documents and vectors in temporary files, so that memory stays bounded
    build     the segment of a large commit, with its graph and words (backends.folder.ahead)
    commit    compare again with what is stored by now, and write all of it in one transaction

Only `commit` holds the write lock. What another process commits before that is seen by the second
comparison: a document that it has stored meanwhile is not written again, and one that it has
changed or deleted is encoded then. In both cases the segment is built again. What was encoded by an
encoder that a reindex has replaced meanwhile is not stored: it is encoded again, if the reindex was
one of this engine, which then has the new encoder.

While the second thread encodes, this one reads, cuts and writes what comes next. So that there is
something to encode while a commit is written, the first block of the next one is read before. If
that fails, the commit is completed, and then the error is raised. Where a commit is a single block,
nothing is read ahead: the next document may take long to come.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, Self

import numpy.typing as npt

from searchengine.backends.contract import Known, Span
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.changes import Comparison, compare
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.writer import Writer, built_ahead
from searchengine.corpus.documents import DataFrame, Document, LeftOut, as_documents
from searchengine.encoders.protocol import Vectors
from searchengine.errors import EmptyCorpus, EncoderMismatch
from searchengine.ingest.blocks import Block, Encode, Encoding, Stopped
from searchengine.ingest.keys import Keys
from searchengine.ingest.languages import Languages
from searchengine.ingest.passages import BATCH, PassageReader
from searchengine.ingest.settings import AddOptions, AddSummary
from searchengine.ingest.spool import Ranges, Spool, Spooled, Supplied, extend, number

# Documents and characters of the first and of the largest block; each is twice the one before: the
# encoder soon has something to do, and meanwhile twice as much is read. The texts of a block are
# sorted by length and encoded together. In batches of 4096 tokens, padding adds 28 % to sentences
# in blocks of 512 and 8 % in blocks of 2048; to abstracts 2 % where 2^19 characters end a block.
# Larger blocks would save little more, take more memory, and report progress less often.
_FIRST_BLOCK = 512, 1 << 16
_LARGEST_BLOCK = 2048, 1 << 19  # exceeded only by a single document
Readers = Callable[[], PassageReader]
"""Returns what cuts and encodes for the state of the collection that is shown now."""

_PENDING = 2  # batches in the second thread: one is encoded, the next one waits


def add(
    collection: Collection,
    documents: Iterable[Document | Mapping[str, Any]] | DataFrame,
    readers: Readers,
    options: AddOptions,
) -> AddSummary:
    """Commit documents, in place of those of the same keys; see SearchEngine.add."""
    with Ingestion(collection, documents, readers, options) as ingestion:
        return ingestion.run()


class Ingestion:
    """One call of `add`. A context manager: the second thread has ended when it is left."""

    def __init__(
        self,
        collection: Collection,
        documents: Iterable[Document | Mapping[str, Any]] | DataFrame,
        readers: Readers | None,
        options: AddOptions,
    ) -> None:
        """Without `readers`, the vectors come with the documents (ingest.supplied).

        Raises CollectionError when there is no room for temporary files."""
        collection.follow()
        self._collection = collection
        self._identity = collection.store.identity  # another folder may replace this one
        self._readers = readers
        self._reader = reader = None if readers is None else readers()
        self._settings = collection.settings if reader is None else reader.settings
        self._options = options
        self._languages = Languages(None if reader is None else reader.encoder)
        self._block_size = _FIRST_BLOCK
        self._next_block: Block | None = None  # read ahead of the commit before
        self._made: set[SegmentRow] = set()
        self._pending: deque[Encoding] = deque()
        self._stop = Event()
        self._added = self._changed = self._metadata_updated = self._unchanged = 0
        bad = LeftOut()
        malformed = bad if options.skip_bad else None
        self._stream = as_documents(documents, malformed, needs_text=readers is not None)
        self._peeked: Document | None = None
        self._spool = Spool(collection.path)
        self._keys = Keys(self._spool, options.skip_bad, bad)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoding")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)
        self._spool.close()

    def run(self) -> AddSummary:
        """Commit until the documents end.

        Raises DuplicateKey, EmptyCorpus, and whatever the stream or the encoder raises.
        """
        every = self._options.commit_every
        more = True
        while more:
            differs, full = self._prepare()
            batch = None
            if full:
                try:
                    self._next_block = self._read_block(every)
                    batch = next(self._next_block.batches, None) if self._next_block else None
                except Exception:
                    self._collect(0)
                    self._commit(differs)
                    self._merge()
                    raise
            if batch is not None:
                self._collect(_PENDING - 1)
                self._start(batch)
            self._collect(int(batch is not None))
            self._commit(differs)
            # The stream may wait, or fork: nothing that can write is open while it is read.
            more = self._more()
            finished = every is not None and not more
            if differs or finished:
                self._merge(self._gone_through if finished else 0)
        counts = self._added, self._changed, self._metadata_updated, self._unchanged
        left_out = self._keys.without_text, self._keys.bad, self._keys.repeated
        return AddSummary(*counts, *left_out)

    # ------------------------------------------------------------------- read, compare, cut, encode

    def _prepare(self) -> tuple[bool, bool]:
        """Read and encode until a commit is full or the documents end.

        Returns whether anything is to be written, and whether several blocks have filled a commit.
        """
        every = self._options.commit_every
        self._spool.clear()
        documents = new = blocks = 0
        differs = False
        while (every is None or new < every) and (block := self._take_block(new)):
            spans = block.spans
            self._spool.add(
                [(each, spans.get(each.key)) for each in block.documents], block.supplied
            )
            for batch in block.batches:
                self._collect(_PENDING - 1)
                self._start(batch)
            self._count(block)
            while self._pending and self._pending[0].vectors.done():
                self._collect(len(self._pending) - 1)
            documents += len(block.documents)
            new += len(block.spans)
            blocks += bool(block.spans)
            differs |= block.differs
        if not differs:
            self._unchanged += documents
            self._check_not_empty()
        return differs, new == every and blocks > 1

    def _take_block(self, new: int) -> Block | None:
        """The block that was read ahead, or else the next one of a commit with `new` documents."""
        block, self._next_block = self._next_block, None
        every = self._options.commit_every
        return block or self._read_block(None if every is None else every - new)

    def _read_block(self, most: int | None) -> Block | None:
        """At most `most` documents of the stream; None at its end."""
        if not self._more():
            return None
        read = self._read(most)
        supplied = self._supplied(read)
        documents = self._keys.storable(read, supplied)
        with self._collection.reader(self._identity) as store:
            stored = self._known(store, documents)
            self._languages.look(store, documents)
        documents = [each for each in documents if self._keys.may_replace(each, stored)]
        comparison = compare(documents, stored, {k: each.checksum for k, each in supplied.items()})
        return Block(
            read=len(read),
            documents=documents,
            differs=bool(comparison.changed or comparison.metadata),
            supplied=supplied,
            **self._cut_block(comparison.changed),
        )

    def _cut_block(self, changed: Sequence[Document]) -> dict[str, Any]:
        """What a block holds of the documents to encode."""
        spans, tokens = self._cut(changed)
        by_key = {each.key: cut for each, cut in zip(changed, spans, strict=True)}
        return {"spans": by_key, "tokens": tokens, "batches": self._batches(changed, spans)}

    def _known(
        self, store: Store, documents: Sequence[Document], writer: Writer | None = None
    ) -> dict[str, Known]:
        """Key → stored state of documents; `writer` during a commit."""
        return store.known([document.key for document in documents])

    def _supplied(self, documents: Sequence[Document]) -> Mapping[str, Supplied]:
        """The vectors that come with documents just read; here they are encoded."""
        return {}

    def _cut(self, documents: Sequence[Document]) -> tuple[Sequence[Sequence[Span]], int]:
        """The passages of documents, and the tokens to encode."""
        assert self._reader is not None
        return self._reader.cut(documents)

    def _vectors(self, rows: Ranges) -> npt.NDArray[Any] | Iterable[Vectors]:
        """The vectors in these ranges of rows."""
        return self._spool.vectors(rows)

    def _more(self) -> bool:
        """Whether there are documents left; one is read ahead to know."""
        if self._next_block is None and self._peeked is None:
            self._peeked = next(self._stream, None)
        return self._next_block is not None or self._peeked is not None

    def _read(self, most: int | None) -> list[Document]:
        count, characters = self._block_size
        self._block_size = min(2 * count, _LARGEST_BLOCK[0]), min(2 * characters, _LARGEST_BLOCK[1])
        count = count if most is None else min(count, most)
        documents: list[Document] = []
        while len(documents) < count and characters > 0 and self._more():
            assert self._peeked is not None
            documents.append(self._peeked)
            characters -= len(self._peeked.title) + len(self._peeked.text)
            self._peeked = None
        return documents

    def _batches(
        self, documents: Sequence[Document], spans: Sequence[Sequence[Span]]
    ) -> Iterator[Encode]:
        assert self._reader is not None
        passages = [(d, span) for d, cut in zip(documents, spans, strict=True) for span in cut]
        is_long = any(len(each.text) > _LARGEST_BLOCK[1] for each in documents)
        on_batch = partial(self._on_batch, len(passages) if is_long else 0)
        for start in range(0, len(passages), BATCH):
            batch = passages[start : start + BATCH]
            yield partial(self._reader.encode, batch, self._reader.texts(batch), on_batch)

    def _start(self, batch: Encode) -> None:
        """Encode a batch in the second thread, when all before it are done."""
        self._pending.append(Encoding(self._thread.submit(batch)))

    def _on_batch(self, total: int, encoded: int) -> None:
        """Report passages of a long document; `total` 0: there is none. Raises Stopped."""
        if self._stop.is_set():
            raise Stopped
        if total and self._options.building is not None:
            self._options.building("Passages", encoded, total)

    def _count(self, block: Block) -> None:
        """Report a block when everything that was started so far is encoded."""
        if not self._pending:
            return self._report(block.read, block.tokens)
        self._pending[-1].documents += block.read
        self._pending[-1].tokens += block.tokens

    def _collect(self, left: int) -> None:
        """Spool the vectors of the oldest batches until `left` are pending; waits for them."""
        while len(self._pending) > left:
            self._spool.add_vectors(self._pending[0].vectors.result())
            done = self._pending.popleft()
            self._report(done.documents, done.tokens)

    def _report(self, documents: int, tokens: int) -> None:
        if self._options.progress is not None and documents:
            self._options.progress(documents, tokens)

    # --------------------------------------------------------------------------------------- commit

    def _commit(self, differs: bool) -> None:
        """Write the spooled documents that are not stored yet."""
        while differs:
            try:
                return self._write()
            except EncoderMismatch:
                if self._readers is None:
                    raise
                self._encode_again()

    def _encode_again(self) -> None:
        """Encode what is not committed by the encoder that a reindex of this engine has brought.

        Raises EncoderMismatch if the engine does not have it.
        """
        assert self._readers is not None
        self._collection.refresh()
        self._reader = self._readers()
        self._settings = self._reader.settings
        while self._pending:  # read ahead, by the former encoder
            self._pending.popleft().vectors.exception()
        self._spool.clear_vectors()
        for spooled in self._spool.documents():
            documents = [each.document for each in spooled if each.spans is not None]
            spans, _ = self._cut(documents)
            self._spool.place({d.key: cut for d, cut in zip(documents, spans, strict=True)})
            for batch in self._batches(documents, spans):
                self._spool.add_vectors(batch())
        if (block := self._next_block) is not None:
            changed = [each for each in block.documents if each.key in block.spans]
            self._next_block = replace(block, **self._cut_block(changed))

    def _write(self) -> None:
        expected = self._spool.ranges()
        rows: Ranges = []  # of the spool's vectors
        with (
            self._collection.own_store(self._identity) as store,
            built_ahead(
                self._collection,
                store,
                self._settings,
                number(expected),
                lambda: self._vectors(expected),
                self._spool.texts,
                self._options.building,
            ) as ahead,
            self._collection.writing(store, made_by=self._settings) as writer,
        ):
            self._languages.settle(writer)
            passage = writer.changes.next_passage()
            for spooled in self._spool.documents():
                stored = self._known(store, [each.document for each in spooled], writer)
                replacing = [
                    each for each in spooled if self._keys.may_replace(each.document, stored)
                ]
                checksums = {s.document.key: s.vectors for s in replacing if s.vectors is not None}
                comparison = compare([each.document for each in replacing], stored, checksums)
                changed = self._encoded(replacing, comparison.changed)
                spans = [each.spans or [] for each in changed]
                writer.changes.write(comparison.changed, spans, stored, passage, checksums)
                writer.changes.set_metadata(comparison.metadata, stored)
                passage += sum(map(len, spans))
                extend(rows, ((each.row, len(each.spans or ())) for each in changed))
                self._summarize(comparison, stored)
            if rows:
                same = ahead if rows == expected else None
                writer.append(self._vectors(rows), self._options.building, number(rows), same)
            self._made.update(writer.opened)

    def _encoded(self, spooled: Sequence[Spooled], changed: Sequence[Document]) -> list[Spooled]:
        """The spooled documents that have changed, all with vectors.

        Documents that another process has changed or deleted meanwhile are encoded now.
        """
        keys = {document.key for document in changed}
        result = [each for each in spooled if each.document.key in keys]
        late = [each.document for each in result if each.spans is None]
        if not late:
            return result
        spans, _ = self._cut(late)
        encoded, row = {}, self._spool.rows
        for document, cut in zip(late, spans, strict=True):
            encoded[document.key] = Spooled(document, cut, row)
            row += len(cut)
        for batch in self._batches(late, spans):
            self._spool.add_vectors(batch())
        return [encoded.get(each.document.key, each) for each in result]

    def _summarize(self, comparison: Comparison, stored: Mapping[str, Known]) -> None:
        replaced = sum(document.key in stored for document in comparison.changed)
        self._changed += replaced
        self._added += len(comparison.changed) - replaced
        self._metadata_updated += comparison.metadata_updated
        self._unchanged += comparison.unchanged

    def _merge(self, finished: int = 0) -> None:
        with self._collection.own_store(self._identity) as store:
            self._collection.merge_due(
                store, self._options.building, written=self._made, finished=finished
            )

    @property
    def _gone_through(self) -> int:
        """Number of documents that are stored now, by this call or before."""
        return self._added + self._changed + self._metadata_updated + self._unchanged

    def _check_not_empty(self) -> None:
        """Raise EmptyCorpus if the stream ended and nothing of it is stored."""
        if self._gone_through or self._more():
            return
        raise EmptyCorpus(f"no document to index{self._keys.reasons}; nothing was changed")
