"""Blocks of documents that another encoder has encoded, for a reindex.

A block is two files in the folder of the work: `NAME.npy`, float32 (rows, D), a row a passage, and
`NAME.documents.npy`, int64 (rows,), the id of each row's document. A transaction records the block
in the row of `pending`, with the SHA-256 of both files, and stores its passages, hidden, with ids
in the order of the blocks. A file is checked before it is first read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from searchengine.backends.contract import Ids, Span
from searchengine.backends.folder import pending
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.folders import os_errors
from searchengine.backends.folder.pending import Work
from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import BLOCK_ROWS
from searchengine.indexer.storage.durable import sha256, sync_file, sync_folder
from searchengine.ingest.passages import PassageReader

DOCUMENTS, CHARACTERS = 2048, 1 << 19
"""Size of a block, as in searchengine.ingest.ingestion."""
_BATCH = 4096  # passages encoded in one call
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
        while ids := [
            row[0] for row in self._store.read(sql, (self._last, *self._range, DOCUMENTS))
        ]:
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
        for start in range(0, len(ids), DOCUMENTS):
            part = ids[start : start + DOCUMENTS]
            marks = ", ".join("?" * len(part))
            sql = (
                "SELECT id, length(title) + length(text) FROM documents "
                f"WHERE id IN ({marks}) ORDER BY id"
            )
            block: list[int] = []
            characters = 0
            for number, length in self._store.read(sql, part):
                if block and characters + length > CHARACTERS:
                    yield self._encoded(block)
                    block, characters = [], 0
                block.append(number)
                characters += length
            if block:
                yield self._encoded(block)

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

    def _encoded(self, ids: Sequence[int]) -> Block:
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
        spans, _ = self._reader.cut(list(documents.values()))
        passages = [
            (d, span) for d, cut in zip(documents.values(), spans, strict=True) for span in cut
        ]
        name = uuid4().hex
        rows, numbers = (self._folder / f"{name}{suffix}" for suffix in self.FILES)
        repeats = [len(cut) for cut in spans]
        ids_of_rows = np.repeat(np.array(list(documents), np.int64), repeats)
        shape = {"descr": "<f4", "fortran_order": False, "shape": (len(passages), self._dim)}
        # Not mapped into memory: a full disk would then end the process by a signal.
        with os_errors(self._path), rows.open("wb") as file:
            np.save(numbers, ids_of_rows)
            np.lib.format.write_array_header_1_0(file, shape)
        for start in range(0, len(passages), _BATCH):
            batch = passages[start : start + _BATCH]
            texts = self._reader.texts(batch)
            vectors = self._reader.encode(batch, texts, lambda _: None)
            with os_errors(self._path), rows.open("ab") as file:
                file.write(np.ascontiguousarray(vectors, "<f4").data)
        with os_errors(self._path):
            for path in (rows, numbers):
                sync_file(path)
            sync_folder(self._folder)
            checksums = sha256(rows), sha256(numbers)
        supplied = any(supplied for *_, supplied in read)
        return Block(name, documents, spans, supplied, checksums)
