"""Documents → committed passages: what `add` does, a commit at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indexer.build import Progress
from searchengine.changes import Span
from searchengine.corpus import Document, LeftOut
from searchengine.errors import EmptyCorpus, QueryError
from searchengine.intake import Block, Intake
from searchengine.writer import Writer

Vectors = npt.NDArray[np.float32]
_PASSAGES = 1024  # encoded at a time, so that one huge document stays bounded too


class Reading(Protocol):
    """How documents are read: cut into passages, and those into vectors."""

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document as character offsets, and how many tokens they hold."""

    def encode(self, passages: Sequence[tuple[Document, Span]]) -> Vectors:
        """Float32 (n, D) unit rows."""


@dataclass(frozen=True, slots=True)
class AddOptions:
    """How to add.

    Attributes:
        skip_bad: leave out keys that come twice, which otherwise raise DuplicateKey.
        commit_every: documents to a commit; None makes one of all.
        progress: hears how many documents were read and tokens encoded.
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


class CallersOwn(Exception):
    """Carries an OSError of the caller's documents or encoder past what is said of the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Adding:
    """One call of `add`, which may take several commits; `take` does one.

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
        self._added = self._changed = self._relabelled = self._unchanged = 0

    @property
    def goes_on(self) -> bool:
        """Whether there is something left to commit."""
        return not self._begun or self._intake.more()

    def take(self, writer: Writer) -> None:
        """Write documents until a commit is full or there are no more."""
        self._begun = True
        vectors = self._vectors(writer)
        try:
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

    def _vectors(self, writer: Writer) -> Iterator[Vectors]:
        """Vectors of what is new in the documents of one commit, which are written on the way."""
        passage = writer.changes.next_passage()
        try:
            for block in self._intake.blocks(writer.store, self._options.commit_every):
                changed = block.changed
                spans, tokens = self._reading.cut(changed)
                writer.changes.write(changed, spans, block.known, passage)
                writer.changes.set_metadata(block.relabelled)
                self._count(block)
                each = [
                    (document, span)
                    for document, some in zip(changed, spans, strict=True)
                    for span in some
                ]
                for start in range(0, len(each), _PASSAGES):
                    yield self._reading.encode(each[start : start + _PASSAGES])
                passage += len(each)
                if self._options.progress:
                    self._options.progress(block.read, tokens)
        except OSError as error:
            raise CallersOwn(error) from error

    def _count(self, block: Block) -> None:
        changed = sum(document.key in block.known for document in block.changed)
        self._changed += changed
        self._added += len(block.changed) - changed
        self._relabelled += len(block.relabelled)
        self._unchanged += len(block.known) - changed - len(block.relabelled)
