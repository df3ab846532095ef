"""Documents → passages → vectors: what encodes, whatever becomes of the vectors.

Blocks of documents are cut in the thread of the caller and encoded in a second one, in their order.
So the encoder is busy while the caller reads and cuts the next block and writes the one before.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Event
from time import monotonic
from typing import Self, TypeVar

import numpy as np

from searchengine.backends.contract import Span
from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.ingest.passages import BATCH, PassageReader

# Documents and characters of the first and of the largest block; each is twice the one before, as
# long as it takes at most SECONDS to encode: an interruption loses what was not committed yet. The
# texts of a block are sorted by length and encoded together. In batches of 4096 tokens, padding
# adds 28 % to sentences in blocks of 512 and 8 % in blocks of 2048; to abstracts 2 % where 2^19
# characters end a block. Larger blocks would save little more and take more memory.
FIRST_BLOCK = 32, 1 << 14
LARGEST_BLOCK = 2048, 1 << 19  # exceeded only by a single document
SECONDS = 5.0
AHEAD = 2  # blocks in the second thread: one is encoded, the next one waits

Report = Callable[[int, int], None]
"""Called in the second thread: passages just encoded of a long document, and all of its block."""
Item = TypeVar("Item")


class Stopped(Exception):
    """Raised between two batches of the encoder, to stop it when its pipeline is closed."""


@dataclass(slots=True)
class Block:
    """Documents that are cut and encoded together.

    Attributes:
        documents: the documents.
        spans: the passages of each.
        tokens: tokens of these passages.
        reader: what cuts and encodes them.
        encoding: the vectors of batches of them, and the seconds that the encoder took.
    """

    documents: Sequence[Document]
    spans: Sequence[Sequence[Span]]
    tokens: int
    reader: PassageReader
    encoding: Future[tuple[list[Vectors], float]]

    @property
    def batches(self) -> list[Vectors]:
        """The vectors of all passages, in batches; waits, and raises the encoder's error."""
        return self.encoding.result()[0]

    @property
    def vectors(self) -> Vectors:
        """The vectors of all passages, (passages, D)."""
        return self.batches[0] if len(self.batches) == 1 else np.concatenate(self.batches)

    @property
    def parts(self) -> list[Vectors]:
        """The vectors of each document."""
        return np.split(self.vectors, np.cumsum([len(cut) for cut in self.spans])[:-1])


class Pipeline:
    """Encodes blocks of documents. A context manager: the second thread has ended when it is left.

    Attributes:
        reader: cuts and encodes.
        size: documents and characters of the next block.
    """

    def __init__(self, reader: PassageReader, report: Report | None = None) -> None:
        self.reader = reader
        self.size = FIRST_BLOCK
        self._report = report
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoding")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)

    def start(self, documents: Sequence[Document]) -> Block:
        """Cut documents, and begin to encode them."""
        reader = self.reader
        spans, tokens = reader.cut(documents)
        passages = [(d, span) for d, cut in zip(documents, spans, strict=True) for span in cut]
        is_long = any(len(document.text) > LARGEST_BLOCK[1] for document in documents)
        on_batch = partial(self._on_batch, len(passages) if is_long else 0)
        batches = [
            partial(reader.encode, batch, reader.texts(batch), on_batch)
            for batch in in_batches(passages, BATCH)
        ]
        return Block(documents, spans, tokens, reader, self._thread.submit(_encode, batches))

    def adapt(self, block: Block) -> None:
        """Choose the size of the next block by the time that this one took."""
        documents, characters = self.size
        seconds = block.encoding.result()[1]
        if 2 * seconds <= SECONDS:
            self.size = (
                min(2 * documents, LARGEST_BLOCK[0]),
                min(2 * characters, LARGEST_BLOCK[1]),
            )
        elif seconds > SECONDS:
            self.size = max(1, documents // 2), max(1, characters // 2)

    def _on_batch(self, total: int, encoded: int) -> None:
        """Report passages of a long document; `total` 0 without one. Raises Stopped."""
        if self._stop.is_set():
            raise Stopped
        if total and self._report is not None:
            self._report(encoded, total)


def _encode(batches: Iterable[Callable[[], Vectors]]) -> tuple[list[Vectors], float]:
    begun = monotonic()
    return [batch() for batch in batches], monotonic() - begun


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def encoded(reader: PassageReader, blocks: Iterable[Sequence[Document]]) -> Iterator[Block]:
    """Blocks of documents, each cut and encoded while the caller has the one before."""
    with Pipeline(reader) as pipeline:
        started: deque[Block] = deque()
        for documents in blocks:
            started.append(pipeline.start(documents))
            if len(started) == AHEAD:
                yield started.popleft()
        yield from started
