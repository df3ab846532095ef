"""Documents → committed passages: what `add` does, a commit at a time.

    prepare    read a block, compare it with what is stored, cut what is new, encode it; no lock
    commit     compare again with what is stored now, write it, and the vectors as a segment

What another process commits between the two is seen by the second comparison: a document that it
has stored meanwhile is not written again, and one that it has changed or deleted is encoded then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from indexer.building.build import Progress
from searchengine.corpus.documents import Document, LeftOut
from searchengine.errors import CollectionError, EmptyCorpus, QueryError
from searchengine.ingest.intake import Intake
from searchengine.ingest.pipeline import AHEAD, Encode, Encoding, OnBatch, Vectors
from searchengine.ingest.spool import Spool, Spooled
from searchengine.storage.collection import Collection
from searchengine.storage.documents.changes import Known, Span, as_json, known
from searchengine.storage.documents.store import Store
from searchengine.storage.writer import Writer

_PASSAGES = 4096  # encoded at a time, so that one huge document stays bounded too


class Reading(Protocol):
    """How documents are read: cut into passages, and those into vectors."""

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document as character offsets, and how many tokens they hold."""

    def texts(self, passages: Sequence[tuple[Document, Span]]) -> list[str]:
        """What is encoded for each passage."""

    def encode(
        self, passages: Sequence[tuple[Document, Span]], texts: Sequence[str], on_batch: OnBatch
    ) -> Vectors:
        """Float32 (n, D) unit rows of those texts; called in a thread of its own.

        `on_batch` may be called with the texts just encoded; what it raises is to be let through.
        """


@dataclass(frozen=True, slots=True)
class AddOptions:
    """How to add.

    Attributes:
        skip_bad: leave out keys that come twice, which otherwise raise DuplicateKey.
        commit_every: documents to a commit; None makes one of all.
        progress: called with the number of documents just done and of the tokens encoded for them.
        building: called with what is done to the vectors after that (build.Progress).
    """

    skip_bad: bool = False
    commit_every: int | None = None
    progress: Callable[[int, int], None] | None = None
    building: Progress | None = None

    def __post_init__(self) -> None:
        every = self.commit_every
        if every is not None and (type(every) is not int or every < 1):
            raise QueryError(f"commit_every must be at least 1 document or None, got {every!r}")


@dataclass(frozen=True, slots=True)
class AddSummary:
    """What `add` did with the documents it was given.

    Attributes:
        added: new ones.
        changed: those whose title or text replaced what was stored, encoded anew.
        relabelled: those of which only the metadata has changed; not encoded again.
        unchanged: those stored as they are already.
        without_text, bad: those left out.
        repeated: records without an id that were the same as one before, left out too.
    """

    added: int
    changed: int
    relabelled: int
    unchanged: int
    without_text: LeftOut
    bad: LeftOut
    repeated: LeftOut


@dataclass(frozen=True, slots=True)
class _Compared:
    """Documents beside what is stored.

    Attributes:
        known: what is stored under their keys.
        changed: those to encode: new ones, and those whose title or text is another than stored.
        labels: of the others, those whose metadata or root is another than was added last.
        relabelled: how many of `labels` have other metadata.
        unchanged: how many are stored as they are.
    """

    known: dict[str, Known]
    changed: list[Document]
    labels: list[Document]
    relabelled: int
    unchanged: int

    @classmethod
    def of(cls, documents: Sequence[Document], stored: dict[str, Known]) -> Self:
        changed, labels, relabelled, same = [], [], 0, 0
        for document in documents:
            before = stored.get(document.key)
            if before is None or before.digest != document.digest:
                changed.append(document)
                continue
            other = before.added != as_json(document.metadata)
            relabelled += other
            same += not other
            if other or before.root != (document.root or None):
                labels.append(document)
        return cls(stored, changed, labels, relabelled, same)


@dataclass(frozen=True, slots=True)
class _Part:
    """A block of documents, compared and cut.

    Attributes:
        read: how many documents were read for it.
        documents: those that can be stored.
        spans: key → the passages of those that have changed.
        tokens: how many those hold.
        jobs: what is left to encode of them.
        differs: whether any of it is to be written.
    """

    read: int
    documents: Sequence[Document]
    spans: Mapping[str, list[Span]]
    tokens: int
    jobs: Iterator[Encode]
    differs: bool


class Adding:
    """One call of `add`, which may take several commits: `prepare` and `commit` for each.

    While passages are encoded in another thread, this one reads, cuts and writes what comes next,
    and builds what is encoded. So that there is something to encode while a commit is built, the
    first block of the next one is begun before; if that fails, it is the next one's failure. Where
    a commit is but one block, nothing is read ahead of it: it may be all there is for a long while.

    To be used as a context manager: the thread has ended when it is left.
    """

    def __init__(
        self,
        path: Path,
        look: Callable[[], AbstractContextManager[Store]],
        documents: Iterable[Document],
        reading: Reading,
        options: AddOptions,
    ) -> None:
        """`look` opens the tables to read. Raises CollectionError when there is no room."""
        self._look = look
        self._begun = False
        self._reading = reading
        self._options = options
        self._spool = Spool(path)
        self._intake = Intake(path, documents, self._spool, options.skip_bad)
        self._encoding = Encoding(options.progress)
        self._ahead: _Part | Exception | None = None
        self._stored = 0  # rows of the spool that documents were given
        self._added = self._changed = self._relabelled = self._unchanged = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoding.__exit__()
        self._spool.close()

    @property
    def goes_on(self) -> bool:
        """Whether there is something left to prepare."""
        return not self._begun or self._ahead is not None or self._intake.more()

    def prepare(self) -> bool:
        """Read and encode documents until a commit is full or there are no more.

        Returns whether there is anything to commit. Raises DuplicateKey, EmptyCorpus, and whatever
        reading or the encoder raises.
        """
        self._begun = True
        self._spool.clear()
        encoding, every = self._encoding, self._options.commit_every
        parts = taken = documents = 0
        differs = False
        self._stored = 0
        while part := self._next(taken):
            self._spool.add(self._spooled(part))
            for encode in part.jobs:
                self._keep(encoding.taken(AHEAD - 1))
                encoding.start(encode)
            encoding.count(part.read, part.tokens)
            self._keep(encoding.done())
            taken += len(part.spans)
            parts += bool(part.spans)
            differs |= part.differs
            documents += len(part.documents)
        begun = 0
        if taken == every and parts > 1 and (first := self._look_ahead()):
            self._keep(encoding.taken(AHEAD - 1))
            encoding.start(first)
            begun = 1
        self._keep(encoding.taken(begun))
        if not differs:
            self._unchanged += documents
            if not self._seen and not self._intake.more():
                raise EmptyCorpus(self._intake.nothing())
        return differs

    def commit(self, writer: Writer) -> None:
        """Write what was prepared, as far as it is not stored now."""
        passage = writer.changes.next_passage()
        ranges: list[tuple[int, int]] = []
        for spooled in self._spool.documents():
            stored = writer.changes.known([each.document.key for each in spooled])
            every = {
                each.document.key: each
                for each in spooled
                if self._may_replace(each.document, stored)  # else stored since `prepare`
            }
            compared = _Compared.of([each.document for each in every.values()], stored)
            cut = self._encoded([every[document.key] for document in compared.changed])
            spans = [passages for _, passages, _ in cut]
            writer.changes.write(compared.changed, spans, compared.known, passage)
            writer.changes.set_metadata(compared.labels, compared.known)
            for _, passages, row in cut:
                ranges.append((row, row + len(passages)))
                passage += len(passages)
            self._count(compared)
        if ranges:
            writer.append(self._spool.vectors(_joined(ranges)), self._options.building)

    def summary(self) -> AddSummary:
        """What has been done."""
        return AddSummary(
            self._added,
            self._changed,
            self._relabelled,
            self._unchanged,
            self._intake.without_text,
            self._intake.bad,
            self._intake.repeated,
        )

    @property
    def _seen(self) -> int:
        return self._added + self._changed + self._relabelled + self._unchanged

    def _next(self, taken: int) -> _Part | None:
        """The next part of a commit that has `taken` new documents; None when it is full."""
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            raise ahead
        if ahead is not None:
            return ahead
        every = self._options.commit_every
        if every is not None and taken >= every:
            return None
        return self._read(None if every is None else every - taken)

    def _read(self, most: int | None) -> _Part | None:
        block = self._intake.block(most)
        if block is None:
            return None
        with self._look() as store:
            stored = known(store, [document.key for document in block.documents])
        documents = [each for each in block.documents if self._may_replace(each, stored)]
        compared = _Compared.of(documents, stored)
        spans, tokens = self._reading.cut(compared.changed)
        passages = [
            (document, span)
            for document, own in zip(compared.changed, spans, strict=True)
            for span in own
        ]
        return _Part(
            block.read,
            documents,
            {document.key: own for document, own in zip(compared.changed, spans, strict=True)},
            tokens,
            self._jobs(passages),
            bool(compared.changed or compared.labels),
        )

    def _may_replace(self, document: Document, stored: Mapping[str, Known]) -> bool:
        """False for a file that another folder has under the same key, if that is no error."""
        before = stored.get(document.key)
        if before is None or not before.root or not document.root:
            return True
        if before.root == document.root:
            return True
        below = Path(document.origin).relative_to(document.root)
        if not (Path(before.root) / below).exists():  # the folder was moved
            return True
        self._intake.refuse(
            document,
            f"is that of a file of {before.root}; give the keys of one of the two folders a "
            "prefix: --key-prefix NAME/",
        )
        return False

    def _jobs(self, passages: Sequence[tuple[Document, Span]]) -> Iterator[Encode]:
        for start in range(0, len(passages), _PASSAGES):
            batch = passages[start : start + _PASSAGES]
            yield partial(self._reading.encode, batch, self._reading.texts(batch))

    def _spooled(self, part: _Part) -> Iterator[Spooled]:
        """The part's documents with the rows that their vectors will have."""
        for document in part.documents:
            spans = part.spans.get(document.key)
            yield Spooled(document, spans, self._stored)
            self._stored += len(spans or ())

    def _keep(self, vectors: Iterable[Vectors]) -> None:
        for block in vectors:
            self._spool.add_vectors(block)

    def _encoded(self, changed: Sequence[Spooled]) -> list[tuple[Document, list[Span], int]]:
        """Documents with their passages and first rows; those that lack a vector are encoded."""
        missing = [each.document for each in changed if each.spans is None]
        late: dict[str, tuple[list[Span], int]] = {}
        if missing:
            spans, _ = self._reading.cut(missing)
            passages: list[tuple[Document, Span]] = []
            for document, own in zip(missing, spans, strict=True):
                late[document.key] = own, self._spool.rows + len(passages)
                passages += [(document, span) for span in own]
            for encode in self._jobs(passages):
                self._spool.add_vectors(encode(lambda _: None))
        return [
            (document, *(late[document.key] if spans is None else (list(spans), row)))
            for document, spans, row in changed
        ]

    def _look_ahead(self) -> Encode | None:
        """Read the first block of the next commit; what to encode of it first, if anything."""
        try:
            part = self._read(self._options.commit_every)
            if part is None:
                return None
            self._ahead = part
            return next(part.jobs, None)
        except CollectionError:
            raise
        except Exception as error:
            self._ahead = error
            return None

    def _count(self, compared: _Compared) -> None:
        replaced = sum(document.key in compared.known for document in compared.changed)
        self._changed += replaced
        self._added += len(compared.changed) - replaced
        self._relabelled += compared.relabelled
        self._unchanged += compared.unchanged


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that follow each other as one."""
    start = end = 0
    for first, last in ranges:
        if first != end:
            if end > start:
                yield start, end
            start = first
        end = last
    if end > start:
        yield start, end


def add(
    collection: Collection, documents: Iterable[Document], reading: Reading, options: AddOptions
) -> AddSummary:
    """Commit documents, in place of those of the same keys; see SearchEngine.add.

    The write lock is held to commit, not to read and encode.
    """
    collection.follow()
    identity = collection.store.identity
    adding = Adding(
        collection.path, lambda: collection.reader(identity), documents, reading, options
    )
    with adding:
        while adding.goes_on:
            differs = adding.prepare()
            if differs:
                with collection.own_store(identity) as store, collection.writing(store) as writer:
                    adding.commit(writer)
            # The stream may wait, or fork: nothing that can write is open while it is asked.
            finished = options.commit_every is not None and not adding.goes_on
            if differs or finished:
                with collection.own_store(identity) as store:
                    collection.merge_due(store, options.building, finished=finished)
    return adding.summary()
