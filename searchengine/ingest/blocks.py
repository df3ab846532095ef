"""What is read together, and what is encoded together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.ingest.spool import Supplied
from searchengine.storage.documents.changes import Span

Encode = Callable[[Callable[[int], None]], Vectors]
"""Encodes a batch of passages; calls its argument with the number of texts just encoded."""


@dataclass(frozen=True, slots=True)
class Block:
    """Documents that were read together, compared and cut.

    Attributes:
        read: how many documents were read, including those left out.
        documents: the documents that can be stored.
        spans: key → passages, for each document to encode.
        tokens: tokens of these passages.
        batches: calls to encode that were not started yet.
        differs: whether anything is to be written.
        supplied: key → vectors that came with the document.
    """

    read: int
    documents: list[Document]
    spans: Mapping[str, Sequence[Span]]
    tokens: int
    batches: Iterator[Encode]
    differs: bool
    supplied: Mapping[str, Supplied]


@dataclass(slots=True)
class Encoding:
    """A batch in the second thread, and what its end completes."""

    vectors: Future[Vectors]
    documents: int = 0
    tokens: int = 0


class Stopped(Exception):
    """Ends the encoder's call, between two of its batches, when nothing waits for it any more."""
