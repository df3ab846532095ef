"""A block of documents to ingest, and a batch of passages that is being encoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from searchengine.backends.contract import Span
from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.ingest.spool import Supplied

Encode = Callable[[], Vectors]
"""Encodes a batch of passages."""


@dataclass(frozen=True, slots=True)
class Block:
    """Documents read together, compared with what is stored, and cut into passages.

    Attributes:
        read: how many documents were read, including those left out.
        documents: the documents that can be stored.
        spans: key → passages, for each document to encode.
        tokens: tokens of these passages.
        batches: batches to encode that were not started yet.
        differs: whether anything must be written.
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
    """A batch in the second thread, and how many documents and tokens are done with it."""

    vectors: Future[Vectors]
    documents: int = 0
    tokens: int = 0


class Stopped(Exception):
    """Raised between two batches of the encoder, to stop it when the call of `add` has ended."""
