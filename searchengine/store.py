"""documents.db: documents and passages, returned in the order asked; segments and settings."""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlite_utils

from searchengine.corpus import Document
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.filters import compile_sql, parse
from searchengine.schema import upgrade

_BUSY_MS = 5_000
_CHUNK = 10_000  # ids a statement, under SQLite's limit of 32,766 bound parameters


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A committed segment: passages `base` … `base + rows - 1` lie in segments/<id>."""

    id: int
    base: int
    rows: int
    manifest_sha256: str


class Store:
    """One connection to documents.db. Readers never wait for a writer (WAL)."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.is_file():
            raise CollectionError(f"{path} is missing; {path.parent} is no collection")
        self.path = path
        self._one_at_a_time = Lock()
        with self._named_errors():
            self._connection = sqlite3.connect(
                _uri(path, create), uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._db = sqlite_utils.Database(self._connection, execute_plugins=False)
                self._db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
                if create:
                    self._db.enable_wal()
                elif not self._db["documents"].exists():
                    raise CollectionError(f"{path} is a database without documents, no collection")
                upgrade(self._db, str(path))
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """SQLite's errors as CollectionError, with the file's name and what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise CollectionBusy(
                    f"{self.path.parent} is being written to by another process; "
                    "try again when it has finished"
                ) from error
            raise CollectionError(
                f"{self.path}: {error}; see that the disk has room and the folder can be written"
            ) from error
        except sqlite3.ProgrammingError as error:
            raise CollectionError(f"{self.path.parent} is closed; open it again") from error
        except sqlite3.DatabaseError as error:
            raise CollectionError(
                f"{self.path} is damaged ({error}); restore it from a copy or index anew"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing. Raises CollectionBusy at once if another is writing."""
        with self._named_errors():
            self._db.execute("PRAGMA busy_timeout = 0")
            try:
                self._db.execute("BEGIN IMMEDIATE")
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        try:
            yield  # its errors are its own
            with self._named_errors():
                self._db.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def stored_keys(self, keys: Sequence[str]) -> set[str]:
        """Which of these keys the collection has."""
        return {row[0] for row in self._rows("SELECT key FROM documents WHERE key IN ({})", keys)}

    def next_id(self) -> int:
        """The id that the next document and passage get."""
        return int(self._read("SELECT ifnull(max(id), -1) + 1 FROM passages")[0][0])

    def insert(self, documents: Sequence[Document], first_id: int) -> None:
        """Write documents, one whole passage each, with ids from `first_id` on."""
        numbered = list(enumerate(documents, start=first_id))
        with self._named_errors():
            self._connection.executemany(
                "INSERT INTO documents (id, key, title, text, metadata) VALUES (?, ?, ?, ?, ?)",
                (
                    (i, d.key, d.title, d.text, json.dumps(dict(d.metadata), ensure_ascii=False))
                    for i, d in numbered
                ),
            )
            self._connection.executemany(
                "INSERT INTO passages (id, document, start, end) VALUES (?, ?, 0, ?)",
                ((i, i, len(d.text)) for i, d in numbered),
            )

    def documents(self, passage_ids: Iterable[int]) -> list[Document]:
        """The documents of these passages, in the order of the ids."""
        ids = [int(i) for i in passage_ids]
        found: dict[int, Document] = {}
        sql = (
            "SELECT passages.id, key, title, text, metadata FROM passages "
            "JOIN documents ON documents.id = passages.document WHERE passages.id IN ({})"
        )
        for row in self._rows(sql, ids):
            passage, key, title, text, metadata = row
            found[passage] = Document(key, text, title, json.loads(metadata))
        return [found[i] for i in ids]

    def keys(self, passage_ids: Iterable[int]) -> list[str]:
        """The keys of these passages' documents, in the order of the ids."""
        ids = [int(i) for i in passage_ids]
        sql = (
            "SELECT passages.id, key FROM passages "
            "JOIN documents ON documents.id = passages.document WHERE passages.id IN ({})"
        )
        found = dict(self._rows(sql, list(dict.fromkeys(ids))))
        return [found[i] for i in ids]

    def matching(self, where: str) -> npt.NDArray[np.int64]:
        """Ids of the passages whose document matches a filter, ascending, int64."""
        condition, parameters = compile_sql(parse(where), "documents.metadata")
        sql = (
            "SELECT passages.id FROM passages JOIN documents ON documents.id = passages.document "
            f"WHERE {condition} ORDER BY passages.id"
        )
        return np.fromiter((row[0] for row in self._read(sql, parameters)), dtype=np.int64)

    def segments(self) -> list[SegmentRow]:
        """The committed segments, oldest first."""
        with self._named_errors():
            rows = self._db.query(
                "SELECT id, base, rows, manifest_sha256 FROM segments ORDER BY id"
            )
            return [SegmentRow(**row) for row in rows]

    def insert_segment(self, segment: SegmentRow) -> None:
        """Name a segment whose files are complete and synced."""
        with self._named_errors():
            self._db.execute(
                "INSERT INTO segments (id, base, rows, manifest_sha256) VALUES (?, ?, ?, ?)",
                (segment.id, segment.base, segment.rows, segment.manifest_sha256),
            )

    def replace_segments(self, segments: Iterable[SegmentRow]) -> None:
        """Name these and no others."""
        with self._named_errors():
            self._db.execute("DELETE FROM segments")
        for segment in segments:
            self.insert_segment(segment)

    def settings(self) -> dict[str, Any]:
        """Name → value of every setting."""
        rows = self._read("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}

    def set(self, name: str, value: Any) -> None:
        """Write one setting."""
        with self._named_errors():
            self._db.execute(
                "INSERT INTO settings (name, value) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, json.dumps(value)),
            )

    def verify(self) -> None:
        """SQLite's own integrity check. Raises CollectionError with its first complaint."""
        complaint = self._read("PRAGMA integrity_check")[0][0]
        if complaint != "ok":
            raise CollectionError(f"{self.path} is damaged ({complaint}); restore it from a copy")

    def close(self) -> None:
        """Close the connection; closing twice is harmless."""
        self._connection.close()

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement.

        Nothing stays open behind it: on one connection an unfinished statement of one thread holds
        every other at its own, older snapshot.
        """
        with self._named_errors(), self._one_at_a_time:
            return self._connection.execute(sql, parameters).fetchall()

    def _rows(self, sql: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Rows of a statement with one `IN ({})`, asked in chunks that SQLite can bind."""
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            yield from self._read(sql.format(", ".join("?" * len(chunk))), chunk)


def _uri(path: Path, create: bool) -> str:
    """How SQLite opens the file: never made by mistake, and readable in a read-only folder."""
    mode = "rwc" if create else "rw"
    unwritable = not create and not os.access(path.parent, os.W_OK)
    if unwritable and not path.with_name(path.name + "-wal").exists():
        # WAL wants to write beside the file, even to read it; nobody can change it here.
        return f"{path.absolute().as_uri()}?immutable=1"
    return f"{path.absolute().as_uri()}?mode={mode}"
