"""Copies every row of a damaged documents.db that SQLite can read into a new file.

The damaged file is kept beside the new one as documents.db.damaged, with its log.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.connections import connect, way_out
from searchengine.backends.folder.documents.schema import catch_up
from searchengine.backends.folder.documents.store import Store
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionBusy, CollectionError, SearchEngineError
from searchengine.indexer.storage.durable import sync_folder

_CHUNK = 200  # rows read at a time where nothing is wrong
_MAX_SKIPPED = 100_000  # ids tried after the last readable row, if the last id is unknown
_TABLES = {
    "settings": ("name", "value"),
    "documents": ("id", "key", "title", "text", "metadata", "digest", "source", "root", "vectors"),
    "passages": ("id", "document", "start", "end"),
    "segments": ("id", "base", "rows", "manifest_sha256"),
    "tombstones": ("passage",),
    "fields": ("id", "path"),
    "pending": ("id", "kind", "first", "last", "folder", "details"),
    "ids": ("kind", "next"),
}


@dataclass(slots=True)
class Salvage:
    """The result of a salvage: table → rows copied, and messages about lost data."""

    copied: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def complaint(path: Path, *, read_only: bool = False) -> str | None:
    """The first damage that SQLite finds in a database, its index of words aside; None if intact.

    `read_only`: SQLite does not fold its log into the file either.

    Raises CollectionError if the file cannot be read for another reason.
    """
    try:
        with closing(_connect(path, read_only)) as connection:
            lines = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise CollectionError(f"{path} cannot be read: {error}") from error
        return str(error)
    wrong = [line for line in lines if line != "ok" and "FTS5" not in line]
    return wrong[0] if wrong else None


def is_damage(error: BaseException | None) -> bool:
    """Whether an error of SQLite means a damaged file, not a full disk or a lock."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(error: BaseException | None) -> int | None:
    """SQLite's primary result code; None for other errors."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def readable_documents(path: Path) -> int:
    """The number of documents that can be read from a damaged file; changes nothing."""
    with closing(_connect(path, read_only=True)) as connection:
        _overlook_schema(connection)
        return sum(1 for _ in _rows(connection, "documents"))


def salvage(path: Path) -> Salvage:
    """Replace a damaged documents.db by a new one with all rows that can be read.

    No other process may have it open. If no document or setting can be read, nothing changes.

    Raises:
        CollectionBusy: another process is writing.
        CollectionError: nothing can be read, or the disk has no room.
    """
    result = Salvage()
    unfinished = path.with_name(f"{path.name}.unfinished")
    _remove(unfinished)
    try:
        with closing(_connect(path)) as old, Store(unfinished, create=True) as new:
            _overlook_schema(old)
            try:
                old.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as error:
                if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise CollectionBusy(
                        f"{path.parent} is being written to by another process; stop it first"
                    ) from error
                if not is_damage(error):
                    raise CollectionError(f"{path}: {error}; {way_out(path)}") from error
            with new.transaction():
                _copy(old, new, result)
            new.close()
            if Store.has_log(unfinished):  # SQLite could not fold it, and says nothing
                raise CollectionError(
                    f"{unfinished} could not be completed; nothing was changed, "
                    "check that the disk has room"
                )
            _keep(result, path, unfinished)
            path.rename(_unused(path))  # while the lock is held
    except BaseException:
        _remove(unfinished)
        raise
    finish(path)
    return result


def _keep(result: Salvage, path: Path, unfinished: Path) -> None:
    """Rename the new file to the name that `finish` expects, if it holds a collection."""
    if not result.copied["documents"] or not result.copied["settings"]:
        what = "documents" if result.copied["settings"] else "settings"
        raise CollectionError(
            f"{path}: none of its {what} can be read; nothing was changed, "
            "restore the collection from a copy"
        )
    os.replace(unfinished, _repaired(path))
    sync_folder(path.parent)


def is_unfinished(path: Path) -> bool:
    """Whether `finish` has something to complete."""
    return _repaired(path).exists() and not path.exists()


def finish(path: Path) -> bool:
    """Complete a salvage that was interrupted after the damaged file was moved aside."""
    repaired = _repaired(path)
    if not is_unfinished(path):
        return False
    damaged = max(path.parent.glob(f"{path.name}.damaged*"), key=_age, default=None)
    for suffix in ("-wal", "-shm"):  # SQLite would apply the old log to the new file
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.rename(f"{damaged or path.with_name(path.name + '.damaged')}{suffix}")
    sync_folder(path.parent)
    repaired.rename(path)
    sync_folder(path.parent)
    return True


def _copy(old: sqlite3.Connection, new: Store, result: Salvage) -> None:
    changes, connection = Changes(new), new.connection
    for table, columns in _TABLES.items():
        if table == "ids":  # the new file begins with the ids of an empty collection
            connection.execute("DELETE FROM ids")
        marks = ", ".join("?" * len(columns))
        names = ", ".join(columns)
        insert = f"INSERT OR ABORT INTO {table} ({names}) VALUES ({marks})"
        result.copied[table] = 0
        for row in _rows(old, table, result):
            values = _checked_document(row, result) if table == "documents" else row
            try:
                if values is not None:
                    connection.execute(insert, values)
                    result.copied[table] += 1
            except (sqlite3.IntegrityError, sqlite3.InterfaceError) as error:
                result.lost.append(f"a row of {table}, {row[0]!r:.80} ({error})")
    catch_up(connection)
    settings = dict(connection.execute("SELECT name, value FROM settings").fetchall())
    changes.set("tombstones_id", uuid4().hex)
    changes.count_commit()
    try:
        analyzer = Analyzer.parse(json.loads(settings["tokenizer"]))
    except (AttributeError, KeyError, ValueError):
        analyzer = Analyzer(Tokenizer.PORTER)
    changes.index_text(analyzer)


def _checked_document(row: Sequence[Any], result: Salvage) -> Sequence[Any] | None:
    """A row of documents, None if it is invalid; drops metadata that are not JSON."""
    number, key, title, text, metadata, digest, source, root, vectors = row
    if not isinstance(digest, bytes):
        digest = b""
    try:
        values = json.loads(metadata)
        Document(key, text, title, values)
    except (ValueError, TypeError, RecursionError, AttributeError):
        values, metadata = {}, "{}"
        result.lost.append(f"the metadata of the document {key!r:.80}")
    try:
        Document(key, text, title, values)
    except (SearchEngineError, TypeError, AttributeError) as error:
        result.lost[-1] = f"the document with id {number} ({error})"
        return None
    if not _is_object(source):
        source = None
    if not isinstance(vectors, bytes):
        vectors = None
    return number, key, title, text, metadata, digest, source, root, vectors


def _is_object(text: object) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    return False


def _rows(
    connection: sqlite3.Connection, table: str, result: Salvage | None = None
) -> Iterator[tuple[Any, ...]]:
    """Every readable row of a table, by rowid; skips ids that cannot be read."""
    names = ", ".join(_TABLES[table])
    sql = f"SELECT rowid, {names} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
    position, skipped, limit = -(1 << 62), 0, _CHUNK
    last = _last(connection, table)
    while True:
        try:
            rows = connection.execute(sql, (position, limit)).fetchall()
            rowids = [position, *(row[0] for row in rows)]
            if any(after <= before for before, after in pairwise(rowids)):
                raise sqlite3.DatabaseError("rowids that do not rise")  # reading would not end
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:  # for every row
                return _report_unreadable(result, table)
            if limit > 1:
                limit = 1
                continue
            position, skipped = max(position, -1) + 1, skipped + 1
            if position >= last if last is not None else skipped > _MAX_SKIPPED:
                return _report_unreadable(result, table)
            continue
        if skipped:
            _report_unreadable(result, table)
        if not rows:
            return None
        for rowid, *values in rows:
            yield tuple(values)
            position = rowid
        skipped, limit = 0, min(_CHUNK, 2 * limit)


def _last(connection: sqlite3.Connection, table: str) -> int | None:
    """The last rowid of a table; None if it cannot be read."""
    with suppress(sqlite3.DatabaseError):
        last = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
        return last if isinstance(last, int) else None
    return None


def _report_unreadable(result: Salvage | None, table: str) -> None:
    message = f"rows of {table} on pages that cannot be read"
    if result is not None and message not in result.lost:
        result.lost.append(message)


def _connect(path: Path, read_only: bool = False) -> sqlite3.Connection:
    connection = connect(path, "ro" if read_only else "rw")
    connection.text_factory = lenient
    return connection


def _overlook_schema(connection: sqlite3.Connection) -> None:
    """Let tables be read although the definition of another one is damaged."""
    connection.execute("PRAGMA writable_schema = ON")


def lenient(data: bytes) -> str:
    """Decode UTF-8, with replacement characters for invalid bytes."""
    return data.decode("utf-8", "replace")


def _repaired(path: Path) -> Path:
    return path.with_name(f"{path.name}.repaired")


def _unused(path: Path) -> Path:
    """An unused name for the damaged file."""
    names = [f"{path.name}.damaged", *(f"{path.name}.damaged.{i}" for i in range(2, 1000))]
    return next(name for name in map(path.with_name, names) if not name.exists())


def _age(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")
