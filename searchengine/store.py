"""documents.db, read: documents and passages in the order asked; segments and settings."""

import json
import os
import sqlite3
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from searchengine import fields, lexical
from searchengine.corpus import Document
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.filters import compile_sql, field_name, field_named, json_path, parse
from searchengine.version import bring_up_to_date

_BUSY_MS = 5_000
_COMPARED = {"integer": "number", "real": "number"}  # 1 and 1.0 are the same
_FREE = 4  # a file of which a fourth part is free is written anew
_CHUNK = 10_000  # ids a statement, under SQLite's limit of 32,766 bound parameters

Ids = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A committed segment: passages `base` … `base + rows - 1` lie in segments/<id>."""

    id: int
    base: int
    rows: int
    manifest_sha256: str

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last id of its passages."""
        return self.base, self.base + self.rows - 1

    def part_of(self, passages: Ids) -> Ids:
        """Which of these passage ids (rising) lie in this segment, as row numbers."""
        low, high = np.searchsorted(passages, [self.base, self.base + self.rows])
        return passages[low:high] - self.base


class Passage(NamedTuple):
    """A passage: its document's id, and where it lies in the document's text."""

    id: int
    document: int
    start: int
    end: int


class Store:
    """One connection to documents.db. Readers never wait for a writer (WAL)."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not create and not path.is_file():
            raise CollectionError(f"{path} is missing; {path.parent} is no collection")
        self.path = path
        self._one_at_a_time = Lock()
        # What is opened as immutable is read without locks: it must not change meanwhile.
        self._frozen = _state(path) if not create and _frozen(path) else None
        with self.named_errors():
            self._connection = sqlite3.connect(
                _uri(path, create), uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
                _sync_fully(self._connection)
                if create:
                    self._connection.execute("PRAGMA journal_mode = wal")
                elif self._frozen is not None:
                    self._connection.execute("PRAGMA query_only = 1")
                if not create and not self._has_documents():
                    raise CollectionError(f"{path} is a database without documents, no collection")
                bring_up_to_date(self._connection, str(path))
            except BaseException:
                self._connection.close()
                raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for one who writes in a transaction."""
        return self._connection

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """SQLite's errors as CollectionError, with the file's name and what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise CollectionBusy(
                    f"{self.path.parent} is being written to by another process; "
                    "try again when it has finished, or wait for it: --wait SECONDS"
                ) from error
            raise CollectionError(
                f"{self.path}: {error}; see that the disk has room and the folder can be written"
            ) from error
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            raise CollectionError(f"{self.path.parent} is closed; open it again") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self.damaged(str(error)) from error

    def damaged(self, how: str) -> CollectionError:
        """What to raise when the file holds what cannot be."""
        return CollectionError(
            f"{self.path} is damaged ({how}); mend it: searchengine repair {self.path.parent}"
        )

    @contextmanager
    def transaction(self, wait: float = 0) -> Iterator[None]:
        """All of the block or nothing.

        Raises CollectionBusy if another is still writing after `wait` seconds.
        """
        with self.named_errors():
            self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * wait)}")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        try:
            yield  # its errors are its own
            with self.named_errors():
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def hold(self) -> None:
        """From now on, until `close`, everything is read as it is at this moment."""
        with self.named_errors():
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM settings").fetchone()

    def passages(self, ids: Iterable[int]) -> list[Passage]:
        """The passages of these ids, in their order."""
        asked = [int(i) for i in ids]
        sql = "SELECT id, document, start, end FROM passages WHERE id IN ({})"
        rows = self._rows(sql, list(dict.fromkeys(asked)))
        return self._in_order({row[0]: self._passage(row) for row in rows}, asked)

    def passages_of(self, documents: Iterable[int]) -> list[Passage]:
        """All passages of these documents, by id."""
        sql = "SELECT id, document, start, end FROM passages WHERE document IN ({})"
        return sorted(self._passage(row) for row in self._rows(sql, list(documents)))

    def documents(self, ids: Iterable[int]) -> list[Document]:
        """The documents of these ids, in their order."""
        asked = [int(i) for i in ids]
        sql = "SELECT id, key, title, text, metadata FROM documents WHERE id IN ({})"
        found: dict[int, Document] = {}
        with self.named_errors():
            for i, key, title, text, metadata in self._rows(sql, list(dict.fromkeys(asked))):
                found[i] = Document(key, text, title, json.loads(metadata))
        return self._in_order(found, asked)

    def all_documents(self) -> Iterator[Document]:
        """Every document, in the order first added, a few at a time."""
        after = -1
        sql = "SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT 500"
        while ids := [row[0] for row in self.read(sql, (after,))]:
            yield from self.documents(ids)
            after = ids[-1]

    def altered(self) -> str | None:
        """The key of a document whose text is not the one that was stored, if there is one."""
        sql = (
            "SELECT id, key, title, text, digest FROM documents WHERE id > ? ORDER BY id LIMIT 500"
        )
        after = -1
        while rows := self.read(sql, (after,)):
            for _, key, title, text, digest in rows:
                if Document(key, text, title).digest != digest:
                    return str(key)
            after = rows[-1][0]
        return None

    def fields(self) -> tuple[str, ...]:
        """The metadata fields that are indexed, as filters name them."""
        with self.named_errors(), self._one_at_a_time:
            return tuple(field_name(field) for field in fields.indexed(self._connection))

    def index_complaint(self) -> str | None:
        """What is wrong with the indexes of words and fields; None if nothing is.

        Takes the write lock for a moment.
        """
        with self.named_errors(), self._one_at_a_time:
            complaint = lexical.check(self._connection) or fields.check(self._connection)
        wanted, there = self.settings().get("tokenizer"), lexical.tokenizer(self.read)
        if complaint is None and wanted != there:
            return f"its index of words is {there} where the settings say {wanted}"
        return complaint

    def ids_of(self, keys: Iterable[str]) -> dict[str, int]:
        """Key → id of the documents that are there."""
        sql = "SELECT key, id FROM documents WHERE key IN ({})"
        return dict(self._rows(sql, list(dict.fromkeys(keys))))

    def keys(self, passage_ids: Iterable[int]) -> list[str]:
        """The keys of these passages' documents, in the order of the ids."""
        asked = [int(i) for i in passage_ids]
        sql = (
            "SELECT passages.id, key FROM passages "
            "JOIN documents ON documents.id = passages.document WHERE passages.id IN ({})"
        )
        found = dict(self._rows(sql, list(dict.fromkeys(asked))))
        return self._in_order(found, asked)

    def values(self, documents: Iterable[int], name: str) -> dict[int, Hashable]:
        """Document id → its value of a metadata field, equal for equal ones; for those that lack
        the field, something of their own."""
        path = json_path(field_named(name))
        sql = (
            "SELECT id, json_type(metadata, ?), json_extract(metadata, ?) "
            "FROM documents WHERE id IN ({})"
        )
        rows = self._rows(sql, list(documents), (path, path))
        return {
            i: ("missing", i) if kind is None else (_COMPARED.get(kind, kind), value)
            for i, kind, value in rows
        }

    def condition(self, where: str | None) -> tuple[str, list[Any]]:
        """A filter as an SQL condition over `documents`, and its parameters."""
        if where is None:
            return "1", []
        node = parse(where)  # before anything is read: its error is the caller's own
        with self.named_errors(), self._one_at_a_time:
            indexed = fields.indexed(self._connection)
        return compile_sql(node, "documents.metadata", indexed)

    def matching(self, where: str) -> Ids:
        """Ids of the passages whose document matches a filter, ascending, int64."""
        condition, parameters = self.condition(where)
        sql = (
            "SELECT passages.id FROM passages JOIN documents ON documents.id = passages.document "
            f"WHERE {condition} ORDER BY passages.id"
        )
        return self.numbers(sql, parameters)

    def count(self, where: str) -> int:
        """How many documents match a filter."""
        condition, parameters = self.condition(where)
        sql = f"SELECT count(*) FROM documents WHERE {condition}"
        return int(self.read(sql, parameters)[0][0])

    def counts(self) -> tuple[int, int]:
        """How many documents and passages there are; they are counted one by one."""
        documents, passages = self.read(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM passages)"
        )[0]
        return documents, passages

    def dead(self, segment: SegmentRow) -> Ids:
        """The rows of a segment whose passages are no more, rising."""
        sql = "SELECT passage FROM tombstones WHERE passage BETWEEN ? AND ? ORDER BY passage"
        return self.numbers(sql, segment.ends) - segment.base

    def dead_count(self, segment: SegmentRow) -> int:
        """How many those are."""
        sql = "SELECT count(*) FROM tombstones WHERE passage BETWEEN ? AND ?"
        return int(self.read(sql, segment.ends)[0][0])

    def segments(self) -> list[SegmentRow]:
        """The committed segments, oldest first."""
        rows = self.read("SELECT id, base, rows, manifest_sha256 FROM segments ORDER BY base")
        if not all(isinstance(number, int) for row in rows for number in row[:3]):
            raise self.damaged("the table of segments holds what is no number")
        return [SegmentRow(*row) for row in rows]

    def settings(self) -> dict[str, Any]:
        """Name → value of every setting."""
        rows = self.read("SELECT name, value FROM settings")
        with self.named_errors():
            return {name: json.loads(value) for name, value in rows}

    def tidy(self) -> None:
        """Give room that is free inside the file back, where it is much; nobody has to wait."""
        free, pages = self.read("SELECT * FROM pragma_freelist_count, pragma_page_count")[0]
        with suppress(CollectionBusy), self.named_errors():
            if _FREE * free > pages:
                self._connection.execute("VACUUM")
            self.fold_log()

    def fold_log(self) -> None:
        """Fold SQLite's log into the file, as far as nobody reads it; waits for nobody."""
        with self.named_errors():
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @property
    def log_bytes(self) -> int:
        """Size of SQLite's log."""
        log = self.path.with_name(self.path.name + "-wal")
        return log.stat().st_size if log.exists() else 0

    def copy_to(self, path: Path) -> None:
        """Write the database as this connection sees it to a new file."""
        with self.named_errors():
            target = sqlite3.connect(path)
            try:
                _sync_fully(target)
                self._connection.backup(target)
            finally:
                target.close()

    def close(self) -> None:
        """Close the connection; closing twice is harmless."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement.

        Nothing stays open behind it: on one connection an unfinished statement of one thread holds
        every other at its own, older snapshot.
        """
        if self._frozen is not None and self._frozen != _state(self.path):
            raise CollectionError(
                f"{self.path} was changed since it was opened, in a folder that cannot be written "
                "from here; refresh, or open it again"
            )
        with self.named_errors(), self._one_at_a_time:
            return self._connection.execute(sql, parameters).fetchall()

    def numbers(self, sql: str, parameters: Sequence[Any] = ()) -> Ids:
        """The first column of a statement's rows, int64."""
        found = np.array([row[0] for row in self.read(sql, parameters)])
        if found.size and found.dtype != np.int64:
            raise self.damaged("a number is none")
        return found.astype(np.int64)

    def _has_documents(self) -> bool:
        sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'documents'"
        return bool(self.read(sql)[0][0])

    def _passage(self, row: tuple[Any, ...]) -> Passage:
        if not all(isinstance(number, int) for number in row):
            raise self.damaged(f"passage {row[0]!r} lies nowhere")
        return Passage(*row)

    def _in_order(self, found: Mapping[int, T], asked: Sequence[int]) -> list[T]:
        try:
            return [found[i] for i in asked]
        except KeyError as error:
            raise self.damaged(f"it has no row {error}, of which its segments speak") from error

    def _rows(
        self, sql: str, values: Sequence[Any], before: Sequence[Any] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of a statement that ends in one `IN ({})`, asked in chunks that SQLite can bind.

        `before` are the parameters that come before it.
        """
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            yield from self.read(sql.format(", ".join("?" * len(chunk))), (*before, *chunk))


def _sync_fully(connection: sqlite3.Connection) -> None:
    """Have SQLite sync what it writes; on macOS the drive's cache too, as indexer.durable.sync."""
    for name, value in (("synchronous", 2), ("fullfsync", 1), ("checkpoint_fullfsync", 1)):
        connection.execute(f"PRAGMA {name} = {value}")


def _frozen(path: Path) -> bool:
    """Whether the file lies in a folder that cannot be written, and nobody is writing."""
    wal = path.with_name(path.name + "-wal")
    return not os.access(path.parent, os.W_OK) and not wal.exists()


def _state(path: Path) -> tuple[int, int, bool]:
    """What changes when the file does, or is about to."""
    file = path.stat()
    return file.st_mtime_ns, file.st_size, path.with_name(path.name + "-wal").exists()


def _uri(path: Path, create: bool) -> str:
    """How SQLite opens the file: never made by mistake, and readable in a read-only folder."""
    if not create and _frozen(path):
        # WAL wants to write beside the file, even to read it; nobody can change it here.
        return f"{path.absolute().as_uri()}?immutable=1"
    return f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
