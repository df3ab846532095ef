"""Temporary files of documents and vectors until their commit, so that memory stays bounded."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import SEEK_END
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Span, as_json
from searchengine.backends.folder.documents.connections import Pool, guarded
from searchengine.backends.terms import Text, file_name
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError

Vectors = npt.NDArray[np.float32]
TEMPORARY = "SQLite's temporary folder (SQLITE_TMPDIR)"
_BLOCK = 4096  # rows read back at a time
_CHUNK = 500  # documents read back at a time


Ranges = list[tuple[int, int]]
"""Rows of vectors: first ones and ends."""


class Supplied(NamedTuple):
    """Vectors that come with a document: the first row, the passage of each row, a checksum."""

    row: int
    spans: Sequence[Span]
    checksum: bytes


class Spooled(NamedTuple):
    """A document; if it has vectors, its passages and the row of the first one's vector.

    `vectors`: checksum of vectors that came with it.
    """

    document: Document
    spans: Sequence[Span] | None
    row: int
    vectors: bytes | None = None


class Spool:
    """Documents in the order added, and float32 vectors (n, D) in rows from 0, until `clear`.

    The keys that were seen outlive `clear`. The files have no name, so nothing is left behind,
    however the process ends.
    """

    def __init__(self, folder: Path) -> None:
        """Vectors are spooled in `folder`, documents where SQLite keeps its temporary files."""
        self._folder = folder
        self._pool = Pool()
        self._rows = self._dim = self._expected = 0
        with room(folder):
            self._file = TemporaryFile(dir=folder, buffering=0)
        try:
            with guarded(self._pool), room(TEMPORARY):
                self._pool.add(sqlite3.connect("", isolation_level=None, check_same_thread=False))
                self._run("CREATE TABLE seen (key TEXT PRIMARY KEY) WITHOUT ROWID")
                self._run(
                    "CREATE TABLE documents (position INTEGER PRIMARY KEY, key, title, text, "
                    "metadata, origin, root, file, spans, row, vectors, changed)"
                )
        except BaseException:
            self.close()
            raise

    def seen(self, keys: Sequence[str]) -> set[str]:
        """The remembered ones of `keys`."""
        marks = ", ".join("?" * len(keys))
        return {row[0] for row in self._run(f"SELECT key FROM seen WHERE key IN ({marks})", keys)}

    def remember(self, keys: Iterable[str]) -> None:
        """Remember new keys."""
        self._many("INSERT INTO seen VALUES (?)", ((key,) for key in keys))

    def add(
        self,
        documents: Iterable[tuple[Document, Sequence[Span] | None]],
        supplied: Mapping[str, Supplied],
    ) -> None:
        """Add documents; those with passages have changed, and get the next rows of `add_vectors`.

        `supplied`: key → vectors that came with the document, which are not added.
        """
        rows = []
        for document, spans in documents:
            metadata = as_json(document.metadata)
            texts = (document.key, document.title, document.text, metadata)
            row, checksum, changed = self._expected, None, spans is not None
            if document.key in supplied:
                row, spans, checksum = supplied[document.key]
            else:
                self._expected += len(spans or ())
            written = None if spans is None else json.dumps(spans)
            source = (document.origin, document.root, document.file)
            rows.append((*texts, *source, written, row, checksum, changed))
        self._many(
            "INSERT INTO documents (key, title, text, metadata, origin, root, file, spans, row, "
            "vectors, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def place(self, spans: Mapping[str, Sequence[Span]]) -> None:
        """Give documents other passages (by key), and the next rows of `add_vectors`."""
        rows = []
        for key, cut in spans.items():
            rows.append((json.dumps(cut), self._expected, key))
            self._expected += len(cut)
        self._many("UPDATE documents SET spans = ?, row = ? WHERE key = ?", rows)

    def documents(self) -> Iterator[list[Spooled]]:
        """All documents, in chunks."""
        after = 0
        sql = "SELECT * FROM documents WHERE position > ? ORDER BY position LIMIT ?"
        while rows := self._run(sql, (after, _CHUNK)):
            yield [_spooled(*row[1:-1]) for row in rows]
            after = rows[-1][0]

    def ranges(self) -> Ranges:
        """The rows of the vectors of all documents that have changed, in their order."""
        ranges: Ranges = []
        sql = "SELECT row, json_array_length(spans) FROM documents WHERE changed ORDER BY position"
        extend(ranges, self._run(sql))
        return ranges

    def texts(self) -> Iterator[tuple[int, Text]]:
        """The same documents: how many vectors come before, and the text."""
        before = after = 0
        sql = (
            "SELECT position, json_array_length(spans), title, text, "
            "CASE WHEN root = '' THEN '' ELSE key END FROM documents "
            "WHERE position > ? AND changed AND json_array_length(spans) > 0 "
            "ORDER BY position LIMIT ?"
        )
        while rows := self._run(sql, (after, _CHUNK)):
            for _, count, title, text, key in rows:
                yield before, Text(title, text, file_name(key))
                before += count
            after = rows[-1][0]

    @property
    def rows(self) -> int:
        """How many vectors there are."""
        return self._rows

    def add_vectors(self, vectors: Vectors) -> None:
        """Append rows."""
        self._rows, self._dim = self._rows + len(vectors), vectors.shape[1]
        with room(self._folder):
            self._file.seek(0, SEEK_END)
            remaining = np.ascontiguousarray(vectors, np.float32).data.cast("B")
            while remaining:
                remaining = remaining[self._file.write(remaining) :]

    def vectors(self, ranges: Ranges) -> Vectors | Iterator[Vectors]:
        """The rows of ranges [start, end): one range mapped, several in blocks.

        A mapped range can be read twice, so fitting a rotation needs no copy of it.
        """
        if len(ranges) == 1:
            with room(self._folder):
                mapped = np.memmap(self._file, np.float32, "r", shape=(self._rows, self._dim))
            return mapped[slice(*ranges[0])]
        return self._blocks(ranges)

    def _blocks(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Vectors]:
        for start, end in ranges:
            for first in range(start, end, _BLOCK):
                count = min(_BLOCK, end - first)
                with room(self._folder):
                    self._file.seek(4 * self._dim * first)
                    block = np.fromfile(self._file, np.float32, count * self._dim)
                yield block.reshape(count, self._dim)

    def clear(self) -> None:
        """Forget documents and vectors; the keys stay."""
        self._run("DELETE FROM documents")
        self.clear_vectors()

    def clear_vectors(self) -> None:
        """Forget vectors; the documents stay."""
        if self._rows:
            with room(self._folder):
                self._file.truncate(0)
        self._rows = self._expected = 0

    def close(self) -> None:
        """Remove the temporary files."""
        self._pool.close()
        self._file.close()

    def _run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with room(TEMPORARY), self._pool.borrow() as connection:
            return connection.execute(sql, parameters).fetchall()

    def _many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with room(TEMPORARY), self._pool.borrow() as connection:
            connection.execute("BEGIN")
            connection.executemany(sql, rows)
            connection.execute("COMMIT")


def _spooled(
    key: str,
    title: str,
    text: str,
    metadata: str,
    origin: str,
    root: str,
    file: str,
    spans: str,
    row: int,
    vectors: bytes | None,
) -> Spooled:
    document = Document(key, text, title, json.loads(metadata), origin, root, file)
    cut = None if spans is None else [(start, end) for start, end in json.loads(spans)]
    return Spooled(document, cut, row, vectors)


def extend(ranges: Ranges, more: Iterable[tuple[int, int]]) -> None:
    """Append rows, each a first one and a number; ranges that follow each other become one."""
    for first, count in more:
        if count:
            start = ranges.pop()[0] if ranges and ranges[-1][1] == first else first
            ranges.append((start, first + count))


def number(ranges: Ranges) -> int:
    """How many rows they have."""
    return sum(end - start for start, end in ranges)


@contextmanager
def room(where: object) -> Iterator[None]:
    """Raise errors of a full disk, or of a folder that cannot be written, as CollectionError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CollectionError(
            f"{where}: {reason}; nothing was changed since the last commit, make room there or "
            "choose a folder that can be written"
        ) from error
