"""Documents → passages → vectors: what encodes, whatever becomes of the vectors.

Blocks of documents are cut in the thread of the caller and encoded in a second one, in their order.
So the encoder is busy while the caller reads and cuts the next block and writes the one before.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Event
from time import monotonic
from typing import NamedTuple, TypeVar

import numpy as np

from searchengine.backends.contract import Span
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import encoded
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
Item = TypeVar("Item")


class Stopped(Exception):
    """Raised between two batches of the encoder, to stop it when its pipeline is closed."""


class Block(NamedTuple):
    """Documents that are encoded together: the passages of each, and the tokens of all of them.

    `encoding`: the vectors of all passages by `reader`, and the seconds that it took.
    """

    spans: Sequence[Sequence[Span]]
    tokens: int
    reader: PassageReader
    encoding: Future[tuple[Vectors, float]]


class Pipeline:
    """Encodes blocks of documents, in a second thread until it is closed.

    Attributes:
        reader: cuts and encodes.
        size: documents and characters of the next block.
    """

    def __init__(self, reader: PassageReader | None) -> None:
        """`reader`: None if every document comes with its vectors."""
        self.reader, self.size = reader, FIRST_BLOCK
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoding")

    def close(self) -> None:
        """Stop the encoder, and wait until the second thread has ended."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)

    def start(self, documents: Sequence[Document]) -> Block:
        """Cut documents, and begin to encode them."""
        reader = self.reader
        assert reader is not None
        spans, tokens = reader.cut(documents)
        passages = [(d, span) for d, cut in zip(documents, spans, strict=True) for span in cut]
        batches = [reader.texts(batch) for batch in in_batches(passages, BATCH)]

        def on_batch(_: int) -> None:
            if self._stop.is_set():
                raise Stopped

        def encode() -> tuple[Vectors, float]:
            begun = monotonic()
            vectors = [encoded(reader.encoder, batch, "document", on_batch) for batch in batches]
            return np.concatenate(vectors), monotonic() - begun

        return Block(spans, tokens, reader, self._thread.submit(encode))

    def result(self, block: Block) -> list[Vectors]:
        """The vectors of each document; waits, and raises the encoder's error.

        The time that the block took chooses the size of the next one.
        """
        vectors, seconds = block.encoding.result()
        factor = 2.0 if 2 * seconds <= SECONDS else 0.5 if seconds > SECONDS else 1.0
        documents, characters = (max(1, int(factor * size)) for size in self.size)
        self.size = min(documents, LARGEST_BLOCK[0]), min(characters, LARGEST_BLOCK[1])
        return np.split(vectors, np.cumsum([len(cut) for cut in block.spans])[:-1])


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
