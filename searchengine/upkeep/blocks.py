"""Blocks of documents that another encoder has encoded, for a reindex.

A block is two files in the folder of the work: `NAME.npy`, float32 (rows, D), a row a passage, and
`NAME.documents.npy`, int64 (rows,), the id of each row's document. A transaction records the block
in the row of `pending`, with the SHA-256 of both files, and stores its passages, hidden, with ids
in the order of the blocks. A file is checked before it is first read.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from searchengine.backends.folder.documents import pending
from searchengine.backends.folder.documents.changes import Span
from searchengine.backends.folder.documents.pending import Work
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.documents.tables import Ids
from searchengine.backends.folder.folders import os_errors
from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import BLOCK_ROWS
from searchengine.indexer.storage.durable import sha256, sync_file, sync_folder
from searchengine.ingest import pipeline
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import encoded, in_batches

_CHUNK = 10_000  # ids a statement
_NEW = (
    "EXISTS (SELECT 1 FROM passages WHERE document = documents.id AND passages.id BETWEEN ? AND ?)"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Encoded documents, not recorded yet.

    Attributes:
        file: the name of its files, without an ending.
        documents: id → document, as it was encoded.
        spans: the passages of each.
        supplied: whether a document came with vectors.
        sha256: of its files, in the order of Blocks.FILES.
    """

    file: str
    documents: dict[int, Document]
    spans: Sequence[Sequence[Span]]
    supplied: bool
    sha256: Sequence[str]


def check_text(path: Path, document: Document) -> None:
    """Raise CollectionError for a document of a collection that has nothing to encode."""
    if not document.full_text:
        raise CollectionError(
            f"{path}: the document {document.key!r} came with vectors and without text, so no "
            "encoder can encode it; add it with a text, or delete it, and reindex again"
        )


class Blocks:
    """The blocks of a reindex: those recorded, and those to come.

    Attributes:
        work: the row of `pending`, as it was last recorded.
        rows: number of recorded rows.
        supplied: whether a document came with vectors, which are replaced now.
    """

    FILES = (".npy", ".documents.npy")

    def __init__(
        self,
        store: Store,
        folder: Path,
        work: Work,
        reader: PassageReader,
        dim: int,
    ) -> None:
        self.work = work
        self._store, self._folder, self._reader, self._dim = store, folder, reader, dim
        self._path = folder.parent.parent
        self._range = work.first, work.last
        self._checked: set[Path] = set()
        self._last = -1  # all documents up to this id were encoded once

    @property
    def rows(self) -> int:
        """Number of recorded rows."""
        return sum(block["rows"] for block in self.work.details["blocks"])

    @property
    def supplied(self) -> bool:
        """Whether a document came with vectors of its own."""
        return bool(self.work.details["supplied"])

    def check(self) -> None:
        """Check all files. Raises CollectionError for one that is missing or damaged."""
        for block in self.work.details["blocks"]:
            for suffix in self.FILES:
                self._file(block, suffix)

    def left(self) -> int:
        """Number of documents that lack new passages; reads all ids."""
        sql = f"SELECT count(*) FROM documents WHERE NOT {_NEW}"
        return int(self._store.scan(sql, self._range)[0][0])

    def unencoded(self) -> Iterator[Block]:
        """Encode all documents that lack new passages, in their order; each is to be recorded."""
        sql = f"SELECT id FROM documents WHERE id > ? AND NOT {_NEW} ORDER BY id LIMIT ?"
        size = pipeline.LARGEST_BLOCK[0]
        while read := self._store.read(sql, (self._last, *self._range, size)):
            ids = [row[0] for row in read]
            yield from self.of(ids)
            self._last = ids[-1]

    def changed(self) -> list[int]:
        """Ids of documents that were added or changed since `unencoded` ended, ascending.

        Their new passages left tombstones, or their ids are larger: no id is used again.
        """
        sql = "SELECT passage FROM tombstones WHERE passage BETWEEN ? AND ?"
        dead = self._store.numbers(sql, self._range)
        candidates = set(self.documents()[dead - self.work.first].tolist()) if dead.size else set()
        sql = "SELECT id FROM documents WHERE id > ?"
        candidates |= set(self._store.numbers(sql, (self._last,)).tolist())
        ids, ordered = [], sorted(candidates)
        for start in range(0, len(ordered), _CHUNK):
            chunk = ordered[start : start + _CHUNK]
            marks = ", ".join("?" * len(chunk))
            sql = f"SELECT id FROM documents WHERE id IN ({marks}) AND NOT {_NEW} ORDER BY id"
            ids += [row[0] for row in self._store.read(sql, (*chunk, *self._range))]
        return ids

    def of(self, ids: Sequence[int]) -> Iterator[Block]:
        """Encode these documents in blocks; those deleted meanwhile are left out."""
        read: deque[tuple[list[int], bool]] = deque()  # of blocks that are being encoded

        def blocks() -> Iterator[list[Document]]:
            for part in self._blocks(ids):
                documents, supplied = self._read(part)
                read.append((list(documents), supplied))
                yield list(documents.values())

        for block in encoded(self._reader, blocks()):
            yield self._written(block, *read.popleft())

    def _blocks(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """The ids of each block, as far as they are stored."""
        for part in in_batches(ids, pipeline.LARGEST_BLOCK[0]):
            marks = ", ".join("?" * len(part))
            sql = (
                "SELECT id, length(title) + length(text) FROM documents "
                f"WHERE id IN ({marks}) ORDER BY id"
            )
            block: list[int] = []
            characters = 0
            for number, length in self._store.read(sql, part):
                if block and characters + length > pipeline.LARGEST_BLOCK[1]:
                    yield block
                    block, characters = [], 0
                block.append(number)
                characters += length
            if block:
                yield block

    def record(self, block: Block) -> None:
        """Store the passages of a block, within a transaction.

        Documents that were changed or deleted while they were encoded leave tombstones.
        """
        store, first = self._store, self.work.first + self.rows
        marks = ", ".join("?" * len(block.documents))
        sql = f"SELECT id, digest FROM documents WHERE id IN ({marks})"
        stored = dict(store.read(sql, list(block.documents)))
        placed: list[tuple[int, int, Span]] = []
        dead: list[int] = []
        number = first
        for (i, document), spans in zip(block.documents.items(), block.spans, strict=True):
            for span in spans:
                if stored.get(i) == document.digest:
                    placed.append((number, i, span))
                else:
                    dead.append(number)
                number += 1
        pending.place(store, placed)
        pending.bury(store, dead)
        recorded = {"file": block.file, "rows": number - first, "sha256": list(block.sha256)}
        blocks = [*self.work.details["blocks"], recorded]
        supplied = self.supplied or block.supplied
        self.work = pending.note(store, self.work, blocks=blocks, supplied=supplied)

    def vectors(self, first: int = 0) -> Iterator[Vectors]:
        """The recorded rows from `first` on, which begins a block, in blocks."""
        done = 0
        for block in self.work.details["blocks"]:
            if done >= first:
                rows = np.load(self._file(block, self.FILES[0]), mmap_mode="r")
                for start in range(0, len(rows), BLOCK_ROWS):
                    yield np.asarray(rows[start : start + BLOCK_ROWS])
            done += block["rows"]

    def live(self) -> Iterator[tuple[Vectors, Ids]]:
        """The live rows (n, D) of each recorded block, and the ids (n,) of their documents."""
        sql = "SELECT passage FROM tombstones WHERE passage BETWEEN ? AND ?"
        dead = self._store.numbers(sql, self._range) - self.work.first
        alive = np.ones(self.rows, bool)
        alive[dead] = False
        done = 0
        for block in self.work.details["blocks"]:
            kept = alive[done : done + block["rows"]]
            done += block["rows"]
            rows, documents = (np.load(self._file(block, suffix)) for suffix in self.FILES)
            if kept.any():
                yield rows[kept], documents[kept]

    def documents(self) -> Ids:
        """The document of each recorded row."""
        blocks = self.work.details["blocks"]
        files = [np.load(self._file(block, self.FILES[1])) for block in blocks]
        return np.concatenate(files) if files else np.empty(0, np.int64)

    def _file(self, block: Mapping[str, Any], suffix: str) -> Path:
        """A file of a recorded block, checked once."""
        file = self._folder / f"{block['file']}{suffix}"
        if file not in self._checked:
            try:
                intact = sha256(file) == block["sha256"][self.FILES.index(suffix)]
                what = "damaged"
            except OSError as error:
                intact, what = False, f"not readable ({error.strerror or error})"
            if not intact:
                raise CollectionError(
                    f"{file} of the pending reindex is {what}; drop it: "
                    f"searchengine reindex {self._path} --discard"
                )
            self._checked.add(file)
        return file

    def _read(self, ids: Sequence[int]) -> tuple[dict[int, Document], bool]:
        """Id → document, and whether one came with vectors."""
        marks = ", ".join("?" * len(ids))
        sql = (
            "SELECT id, key, text, title, vectors NOT NULL FROM documents "
            f"WHERE id IN ({marks}) ORDER BY id"
        )
        read = self._store.read(sql, ids)
        documents = {
            i: Document(key, text, title, origin="reindex") for i, key, text, title, _ in read
        }
        for document in documents.values():
            check_text(self._path, document)
        return documents, any(supplied for *_, supplied in read)

    def _written(self, block: pipeline.Block, ids: Sequence[int], supplied: bool) -> Block:
        """Write the files of an encoded block."""
        name = uuid4().hex
        rows, numbers = (self._folder / f"{name}{suffix}" for suffix in self.FILES)
        repeats = [len(cut) for cut in block.spans]
        shape = {"descr": "<f4", "fortran_order": False, "shape": (sum(repeats), self._dim)}
        # Not mapped into memory: a full disk would then end the process by a signal.
        with os_errors(self._path), rows.open("wb") as file:
            np.save(numbers, np.repeat(np.array(ids, np.int64), repeats))
            np.lib.format.write_array_header_1_0(file, shape)
            for vectors in block.batches:
                file.write(np.ascontiguousarray(vectors, "<f4").data)
        with os_errors(self._path):
            for path in (rows, numbers):
                sync_file(path)
            sync_folder(self._folder)
            checksums = sha256(rows), sha256(numbers)
        documents = dict(zip(ids, block.documents, strict=True))
        return Block(name, documents, block.spans, supplied, checksums)
