"""Documents → passages → vectors: the one loop that encodes, whatever becomes of the vectors.

Blocks of documents go in and come out in the same order, cut and encoded. A second thread encodes
while this one reads and cuts the next documents and the caller writes the last block. To give the
second thread work while the caller commits, the next block is read and its first batch is started
before a block is handed over. If that fails, a block that completes a commit is still
handed over, and then the error is raised. Where a block is a commit by itself, nothing is read
ahead: the next document may take long to come.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Event
from typing import Self, TypeVar

import numpy as np

from searchengine.backends.contract import Span
from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.ingest.passages import BATCH, PassageReader

# Documents and characters of the first and of the largest block; each is twice the one before: the
# encoder soon has something to do, and meanwhile twice as much is read. The texts of a block are
# sorted by length and encoded together. In batches of 4096 tokens, padding adds 28 % to sentences
# in blocks of 512 and 8 % in blocks of 2048; to abstracts 2 % where 2^19 characters end a block.
# Larger blocks would save little more, take more memory, and report progress less often.
FIRST_BLOCK = 512, 1 << 16
LARGEST_BLOCK = 2048, 1 << 19  # exceeded only by a single document
_PENDING = 2  # batches in the second thread: one is encoded, the next one waits

Encode = Callable[[], Vectors]
Report = Callable[[int, int], None]
"""Called in the second thread: passages just encoded of a long document, and all of its block."""


class Stopped(Exception):
    """Raised between two batches of the encoder, to stop it when its pipeline is closed."""


@dataclass(slots=True)
class Block:
    """Documents that are cut and encoded together.

    Attributes:
        documents: the documents to encode.
        ends_commit: whether the caller commits when it has this block.
        is_commit: whether the commit has no other block with passages.
        spans: the passages of each document.
        tokens: tokens of these passages.
        batches: their vectors (n, D), in order.
    """

    documents: Sequence[Document]
    ends_commit: bool = False
    is_commit: bool = False
    spans: Sequence[Sequence[Span]] = ()
    tokens: int = 0
    batches: list[Vectors] = field(default_factory=list)
    _waiting: Iterator[Encode] = field(default_factory=lambda: iter(()))
    _started: list[Future[Vectors]] = field(default_factory=list)

    @property
    def vectors(self) -> Vectors:
        """The vectors of all passages, (passages, D)."""
        return self.batches[0] if len(self.batches) == 1 else np.concatenate(self.batches)

    @property
    def is_done(self) -> bool:
        """Whether all started batches are encoded."""
        return all(batch.done() for batch in self._started)

    @property
    def parts(self) -> list[Vectors]:
        """The vectors of each document."""
        return np.split(self.vectors, np.cumsum([len(cut) for cut in self.spans])[:-1])


AnyBlock = TypeVar("AnyBlock", bound=Block)
Item = TypeVar("Item")


class Pipeline:
    """Encodes blocks of documents. A context manager: the second thread has ended when it is left.

    Attributes:
        reader: cuts and encodes; None: documents come with their vectors.
        ahead: the block that was begun before the one that was handed over last.
    """

    def __init__(self, reader: PassageReader | None, report: Report | None = None) -> None:
        self.reader = reader
        self.ahead: Block | None = None
        self._failed = False
        self._report = report
        self._running: deque[Future[Vectors]] = deque()
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoding")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)

    def encoded(self, blocks: Iterable[AnyBlock]) -> Iterator[AnyBlock]:
        """The blocks, cut and encoded. Raises what reading, cutting and encoding them raises."""
        following = iter(blocks)
        held: deque[AnyBlock] = deque()  # started, and not handed over yet
        while True:
            if held and held[-1].is_commit:
                yield from self._finished(held)
            try:
                block = self._begun(following)
            except Exception:
                if held and held[-1].ends_commit:
                    self._failed = True
                    yield from self._finished(held)
                raise
            if block is None or (held and held[-1].ends_commit):
                yield from self._finished(held)
            if block is None:
                return
            while self._start(block):
                pass
            self.ahead = None
            held.append(block)
            if not block.ends_commit:
                yield from self._finished(held, keep=_PENDING)

    @property
    def has_more(self) -> bool:
        """Whether `encoded` has begun a block, or failed to, beyond those handed over."""
        return self.ahead is not None or self._failed

    def encode(self, documents: Sequence[Document]) -> Block:
        """Cut and encode documents in this thread."""
        block = Block(documents)
        self._cut(block)
        block.batches = [encode() for encode in block._waiting]
        return block

    def renew(self, reader: PassageReader) -> None:
        """Encode by another encoder from now on, also the block that was begun."""
        self.reader = reader
        while self._running:
            self._running.popleft().exception()
        if self.ahead is not None:
            self.ahead._started = []
            self._cut(self.ahead)

    def _begun(self, blocks: Iterator[AnyBlock]) -> AnyBlock | None:
        """The next block, cut, with its first batch started; None at the end."""
        self.ahead = block = next(blocks, None)
        if block is not None:
            self._cut(block)
            self._start(block)
        return block

    def _cut(self, block: Block) -> None:
        if self.reader is not None:
            block.spans, block.tokens = self.reader.cut(block.documents)
            block._waiting = self._batches(self.reader, block)
        else:  # the spool takes the supplied passages
            block.spans = [() for _ in block.documents]

    def _batches(self, reader: PassageReader, block: Block) -> Iterator[Encode]:
        passages = [
            (document, span)
            for document, cut in zip(block.documents, block.spans, strict=True)
            for span in cut
        ]
        is_long = any(len(document.text) > LARGEST_BLOCK[1] for document in block.documents)
        on_batch = partial(self._on_batch, len(passages) if is_long else 0)
        for start in range(0, len(passages), BATCH):
            batch = passages[start : start + BATCH]
            yield partial(reader.encode, batch, reader.texts(batch), on_batch)

    def _start(self, block: Block) -> bool:
        """Start the next batch of a block when there is room; False if all were started."""
        batch = next(block._waiting, None)
        if batch is None:
            return False
        while len(self._running) >= _PENDING:
            self._running.popleft().result()
        self._running.append(self._thread.submit(batch))
        block._started.append(self._running[-1])
        return True

    def _finished(self, held: deque[AnyBlock], keep: int = 0) -> Iterator[AnyBlock]:
        """The first of the held blocks, encoded; those not done yet stay, at most `keep`."""
        while held and (len(held) > keep or held[0].is_done):
            block = held.popleft()
            block.batches = [batch.result() for batch in block._started]
            block._started = []
            yield block

    def _on_batch(self, total: int, encoded: int) -> None:
        """Report passages of a long document; `total` 0 without one. Raises Stopped."""
        if self._stop.is_set():
            raise Stopped
        if total and self._report is not None:
            self._report(encoded, total)


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def encoded(reader: PassageReader, blocks: Iterable[Sequence[Document]]) -> Iterator[Block]:
    """Blocks of documents, each cut and encoded while the caller has the one before."""
    with Pipeline(reader) as pipeline:
        yield from pipeline.encoded(map(Block, blocks))
