"""Documents → committed passages: what `add` does, a commit at a time."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self

from indexer.build import Progress
from searchengine.changes import Span
from searchengine.corpus import Document, LeftOut
from searchengine.errors import CollectionError, EmptyCorpus, QueryError, SearchEngineError
from searchengine.intake import Block, Intake
from searchengine.pipeline import AHEAD, Encode, Encoding, OnBatch, Vectors
from searchengine.store import Store
from searchengine.writer import Writer

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
        progress: hears how many documents were just done, and tokens encoded for them.
        building: hears what is done with the vectors after that (indexer.build.Progress).
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
    """

    added: int
    changed: int
    relabelled: int
    unchanged: int
    without_text: LeftOut
    bad: LeftOut


def as_documents(
    given: Iterable[Document | Mapping[str, Any]], malformed: list[str] | None
) -> Iterator[Document]:
    """Documents of what may be mappings. Why one is none goes to `malformed`; None raises it.

    Raises CorpusError.
    """
    for position, document in enumerate(given, start=1):
        if isinstance(document, Document):
            yield document
            continue
        try:
            yield Document.from_mapping(document, origin=f"document {position}")
        except SearchEngineError as error:
            if malformed is None:
                raise
            malformed.append(str(error))


class CallersOwn(Exception):
    """Carries an OSError of the caller's documents or encoder past what is said of the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class _Part:
    """A block of documents, cut.

    Attributes:
        block: the documents.
        spans: the passages of those that have changed.
        tokens: how many those hold.
        jobs: what is left to encode of them.
    """

    block: Block
    spans: list[list[Span]]
    tokens: int
    jobs: Iterator[Encode]


class Adding:
    """One call of `add`, which may take several commits; `take` does one.

    While passages are encoded in another thread, this one reads, cuts and writes what comes next,
    and builds what is encoded. So that there is something to encode while a commit is built, the
    first block of the next one is begun before; if that fails, it is the next one's failure. Where
    a commit is but one block, nothing is read ahead of it: it may be all there is for a long while.

    To be used as a context manager: the thread has ended when it is left.

    Raises, of `take`: DuplicateKey, EmptyCorpus, and whatever reading raises. The commit is then
    undone; those before it stay.
    """

    def __init__(
        self, path: Path, documents: Iterable[Document], reading: Reading, options: AddOptions
    ) -> None:
        self._begun = False
        self._intake = Intake(path, documents, options.skip_bad)
        self._reading = reading
        self._options = options
        self._encoding = Encoding(options.progress)
        self._ahead: _Part | Exception | None = None
        self._added = self._changed = self._relabelled = self._unchanged = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoding.__exit__()

    @property
    def goes_on(self) -> bool:
        """Whether there is something left to commit."""
        return not self._begun or self._ahead is not None or self._intake.more()

    def take(self, writer: Writer) -> None:
        """Write documents until a commit is full or there are no more."""
        self._begun = True
        try:
            with closing(self._vectors(writer)) as vectors:
                first = next(vectors, None)
                if first is not None:
                    writer.append(chain((first,), vectors), self._options.building)
                elif not self._seen and not self._intake.more():
                    raise EmptyCorpus(self._intake.nothing())
        except CallersOwn as own:
            raise own.error from None

    def summary(self) -> AddSummary:
        """What has been done."""
        return AddSummary(
            self._added,
            self._changed,
            self._relabelled,
            self._unchanged,
            self._intake.without_text,
            self._intake.bad,
        )

    @property
    def _seen(self) -> int:
        return self._added + self._changed + self._relabelled + self._unchanged

    def _vectors(self, writer: Writer) -> Generator[Vectors]:
        """Vectors of what is new in the documents of one commit, which are written on the way."""
        passage = writer.changes.next_passage()
        encoding, every = self._encoding, self._options.commit_every
        parts = taken = 0
        try:
            while part := self._next(writer.store, taken):
                block = part.block
                writer.changes.write(block.changed, part.spans, block.known, passage)
                writer.changes.set_metadata(block.relabelled)
                self._count(block)
                for encode in part.jobs:
                    yield from encoding.taken(AHEAD - 1)
                    encoding.start(encode)
                encoding.count(block.read, part.tokens)
                yield from encoding.done()
                passage += sum(map(len, part.spans))
                taken += len(block.changed)
                parts += bool(block.changed)
            begun = 0
            if taken == every and parts > 1 and (first := self._look_ahead(writer.store)):
                yield from encoding.taken(AHEAD - 1)
                encoding.start(first)
                begun = 1
            yield from encoding.taken(begun)
        except OSError as error:
            raise CallersOwn(error) from error

    def _next(self, store: Store, taken: int) -> _Part | None:
        """The next part of a commit of which so many documents are taken; None when it is full."""
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            raise ahead
        if ahead is not None:
            block = self._intake.again(store, ahead.block)
            if block.known == ahead.block.known:
                return ahead
            self._encoding.drop()  # another has written between the two commits
            return self._part(block)
        every = self._options.commit_every
        if every is not None and taken >= every:
            return None
        next_block = self._intake.block(store, None if every is None else every - taken)
        return None if next_block is None else self._part(next_block)

    def _part(self, block: Block) -> _Part:
        spans, tokens = self._reading.cut(block.changed)
        each = [
            (document, span)
            for document, some in zip(block.changed, spans, strict=True)
            for span in some
        ]
        return _Part(block, spans, tokens, self._jobs(each))

    def _jobs(self, passages: Sequence[tuple[Document, Span]]) -> Iterator[Encode]:
        for start in range(0, len(passages), _PASSAGES):
            some = passages[start : start + _PASSAGES]
            yield partial(self._reading.encode, some, self._reading.texts(some))

    def _look_ahead(self, store: Store) -> Encode | None:
        """Read the first block of the next commit; what to encode of it first, if anything."""
        try:
            block = self._intake.block(store, self._options.commit_every)
            if block is None:
                return None
            self._ahead = part = self._part(block)
            return next(part.jobs, None)
        except CollectionError:  # SQLite's: the transaction that is open may be spoilt
            raise
        except Exception as error:
            self._ahead = error
            return None

    def _count(self, block: Block) -> None:
        changed = sum(document.key in block.known for document in block.changed)
        self._changed += changed
        self._added += len(block.changed) - changed
        self._relabelled += len(block.relabelled)
        self._unchanged += len(block.known) - changed - len(block.relabelled)
