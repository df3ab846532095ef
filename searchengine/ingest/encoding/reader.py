"""The vectors of a folder that `encode` wrote, in place of an encoder, for `add`.

A document is looked up by its title and text, so keys, metadata and the order of documents may
differ from those of the corpus that was encoded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from searchengine.backends.contract import Span
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import check_built_by
from searchengine.encoders.protocol import TextEncoder, Vectors
from searchengine.errors import CollectionError, CorpusError
from searchengine.ingest.encoding.folder import Block, EncodedFolder, Entry
from searchengine.ingest.passages import PassageConfig, PassageReader

_BLOCKS = 4  # kept in memory


class _Places(NamedTuple):
    """The first 8 bytes of each digest as a number (n,), ascending; entry, block and document."""

    digests: "np.ndarray[tuple[int], np.dtype[np.uint64]]"
    places: "np.ndarray[tuple[int, int], np.dtype[np.int32]]"


class EncodedReader(PassageReader):
    """Cuts documents as they were cut, and returns the vectors of their passages."""

    def __init__(
        self,
        folder: EncodedFolder,
        encoder: TextEncoder,
        passages: PassageConfig | None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`encoder` and the rest: of the collection. Reads all digests: 20 bytes a document.

        Raises EncoderMismatch, CollectionError (other passages), CorpusError (damaged).
        """
        super().__init__(encoder, passages, settings)
        check_built_by(
            encoder,
            folder.encoder,
            folder.path,
            "encode the corpus by the encoder of the collection",
        )
        expected = None if passages is None else passages.as_dict()
        if folder.passages != expected:
            raise CollectionError(
                f"{folder.path} has passages {folder.passages or 'none'}, and the collection "
                f"{expected or 'none'}; encode the corpus as the collection cuts it"
            )
        self._folder = folder
        self._entries = list(folder.entries.values())
        self._places = self._read_places()
        self._checked: set[str] = set()
        self._block = lru_cache(_BLOCKS)(self._read_block)

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document; no token is encoded. Raises CorpusError."""
        return [self._found(document)[0] for document in documents], 0

    def texts(self, passages: Sequence[tuple[Document, Span]]) -> list[str]:
        """Nothing: no text is encoded."""
        return []

    def encode(
        self,
        passages: Sequence[tuple[Document, Span]],
        texts: Sequence[str],
        on_batch: Callable[[int], None],
    ) -> Vectors:
        """Float32 (n, D): the vectors of the passages. Raises CorpusError."""
        vectors = np.empty((len(passages), self.encoder.dim), np.float32)
        row = 0
        for _, group in groupby(passages, key=lambda passage: id(passage[0])):
            together = list(group)
            spans, rows = self._found(together[0][0])
            first = spans.index(together[0][1])
            vectors[row : row + len(together)] = rows[first : first + len(together)]
            row += len(together)
        on_batch(len(passages))
        return vectors

    def _found(self, document: Document) -> tuple[list[Span], Vectors]:
        digest = document.digest
        for entry, number, position in self._candidates(digest):
            block = self._block(entry, number)
            if block.digests[position].tobytes() == digest:
                return block.of(position)
        raise CorpusError(
            f"{document.origin or 'add'}: {self._folder.path} has no vectors of the document "
            f"{document.key!r:.80}, which is new or has changed; run searchengine encode again"
        )

    def _candidates(self, digest: bytes) -> Iterator[tuple[int, int, int]]:
        number = np.frombuffer(digest[:8], ">u8")[0]
        digests = self._places.digests
        for i in range(*(int(np.searchsorted(digests, number, s)) for s in ("left", "right"))):
            entry, block, position = self._places.places[i].tolist()
            yield entry, block, position

    def _read_places(self) -> _Places:
        numbers, places = [np.empty(0, np.uint64)], [np.empty((0, 3), np.int32)]
        for at, entry in enumerate(self._entries):
            for number, digests in enumerate(self._folder.digests(entry)):
                numbers.append(digests[:, :8].copy().view(">u8")[:, 0].astype(np.uint64))
                rows = np.arange(len(digests))
                places.append(
                    np.stack([np.full_like(rows, at), np.full_like(rows, number), rows], 1).astype(
                        np.int32
                    )
                )
        joined = np.concatenate(numbers)
        order = np.argsort(joined, kind="stable")
        return _Places(joined[order], np.concatenate(places)[order])

    def _read_block(self, at: int, number: int) -> Block:
        entry: Entry = self._entries[at]
        if entry.file not in self._checked:  # once: it reads all of the file
            self._folder.check(entry)
            self._checked.add(entry.file)
        return self._folder.block(entry, number)
