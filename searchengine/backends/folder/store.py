"""Reads and writes the tables of documents.db: documents, passages, segments and settings."""

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from searchengine.backends import contract, limits
from searchengine.backends.contract import Entry, Ids, Known, Passages, as_json, setting_faults
from searchengine.backends.filters import sqlite as fields
from searchengine.backends.filters.parser import Condition, Field, field_named, parse
from searchengine.backends.filters.sqlite import compile_sql, json_path
from searchengine.backends.folder.database import Database
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError, CorpusError

_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_KEYS = 50_000  # keys of a folder read at a time
_CHUNK = 10_000  # ids a statement, under SQLite's limit of 32,766 bound parameters
_TEXTS = 16  # documents a statement, where their text is counted


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A committed segment: the vectors of passages base … base + rows - 1 are in segments/<id>."""

    id: int
    base: int
    rows: int
    manifest_sha256: str

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last id of its passages."""
        return self.base, self.base + self.rows - 1

    def part_of(self, passages: Ids) -> Ids:
        """The row numbers of those passage ids (ascending) that are in this segment."""
        low, high = np.searchsorted(passages, [self.base, self.base + self.rows])
        return passages[low:high] - self.base


class Work(NamedTuple):
    """A row of the table `pending`: a reindex, which outlives a commit.

    Attributes:
        folder: its folder below `pending`.
        details: the settings of the new collection, and who started it when.
    """

    folder: str
    details: Mapping[str, Any]


class Store(Database):
    """The tables of documents.db. Members without a description: see contract.Snapshot."""

    def passages_of(self, documents: Iterable[int]) -> Passages:
        """All passages of these documents, by id."""
        sql = "SELECT id, document, start, end FROM passages WHERE document IN ({})"
        return Passages(*self._columns(sorted(self._rows(sql, list(documents)))))

    def documents(self, ids: Iterable[int], *, texts: bool = True) -> list[contract.DocumentRow]:
        order = [int(i) for i in ids]
        columns = "text, metadata" if texts else "'', '{{}}'"
        sql = f"SELECT id, key, title, {columns} FROM documents WHERE id IN ({{}})"
        read, metadata = dict[int, Any](), list[str]()
        chunk = _CHUNK if limits.current().characters == inf else _TEXTS
        with self.named_errors():
            for i, *row in self._rows(sql, list(dict.fromkeys(order)), chunk=chunk):
                if set(map(type, row)) != {str}:
                    raise self.damaged(f"document {i} has a key, title or text that is not text")
                *read[i], stored = row
                limits.count_text(len(read[i][2]) + len(stored) if texts else 0)
                metadata.append(stored)
            # One text of JSON is read five times as fast as many.
            parsed = json.loads(f"[{','.join(metadata)}]")
        if len(parsed) != len(read) or {*map(type, parsed)} - {dict}:
            raise self.damaged("in the metadata of its documents")
        documents = {
            i: contract.DocumentRow(key, title, text, fields)
            for (i, (key, title, text)), fields in zip(read.items(), parsed, strict=True)
        }
        if missing := [i for i in order if i not in documents]:
            raise self.damaged(f"passages refer to document {missing[0]}, which is missing")
        return [documents[i] for i in order]

    def keys_of(self, ids: Iterable[int]) -> list[str]:
        """The keys of the documents of these ids, in their order."""
        return [document.key for document in self.documents(ids, texts=False)]

    def altered(self) -> Iterator[tuple[int, Document]]:
        """The documents with a text that does not match its digest, each with its id."""
        # The others are read so that SQLite decodes them.
        columns = "id, key, title, text, digest, metadata, source, root"
        sql = f"SELECT {columns} FROM documents WHERE id > ? ORDER BY id LIMIT 500"
        after = -1
        while rows := self.read(sql, (after,)):
            for number, key, title, text, digest, *_ in rows:
                try:
                    document = Document(key, text, title)
                except CorpusError as error:  # it is not text
                    raise self.damaged(str(error)) from error
                if document.digest != digest:
                    yield number, document
            after = rows[-1][0]

    def indexed(self) -> dict[Field, int]:
        """The metadata fields that are indexed → their numbers."""
        with self.named_errors(), self.borrow() as connection:
            return fields.indexed(connection)

    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        columns = "key, id, digest, metadata, source, root, vectors"
        sql = f"SELECT {columns} FROM documents WHERE key IN ({{}})"
        return {row[0]: Known(*row[1:]) for row in self._rows(sql, list(dict.fromkeys(keys)))}

    def keys_below(self, root: str, prefix: str = "") -> Iterator[tuple[int, str]]:
        """Id and key of the documents of a folder's files, by key; keys begin with `prefix`."""
        compared, after = ">=", prefix
        sql = "SELECT id, key FROM documents WHERE root = ? AND key {} ? ORDER BY key LIMIT {}"
        while rows := self.read(sql.format(compared, _KEYS), (root, after)):
            for number, key in rows:
                if not key.startswith(prefix):
                    return
                yield number, key
            compared, after = ">", rows[-1][1]

    def condition(self, where: str | None) -> Condition:
        """A filter as an SQL condition over `documents`, and its parameters."""
        if where is None:
            return "1", ()
        node = parse(where)  # first: says nothing about the file
        return compile_sql(node, self.indexed())

    def matching(self, where: str | None) -> Ids:
        """Ids of the documents that match a filter, ascending, int64."""
        condition, parameters = self.condition(where)
        return self.numbers(f"SELECT id FROM documents WHERE {condition} ORDER BY id", parameters)

    def count(self, where: str | None = None) -> int:
        if where is None:
            return int(self.read("SELECT count(*) FROM documents")[0][0])
        condition, parameters = self.condition(where)
        sql = f"SELECT count(*) FROM documents WHERE {condition}"
        return int(self.scan(sql, parameters)[0][0])

    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        condition, parameters = self.condition(where)
        sql = f"SELECT id FROM documents WHERE id > ? AND {condition} ORDER BY id LIMIT {limit}"
        return self.numbers(sql, (after, *parameters))

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[Any, int]]:
        field = field_named(name)
        condition, parameters = self.condition(where)
        paths = [json_path(field)]
        if field in self.indexed():
            matching = f" AND document IN (SELECT id FROM documents WHERE {condition})"
            matching = "" if where is None else matching
            kind = "replace(kind, 'item ', '')"
            sql = (
                f"SELECT {kind}, value, count(*) FROM field_values "
                "WHERE field = (SELECT id FROM fields WHERE path = ?) "
                f"AND {kind} NOT IN ('date', 'array', 'object'){matching} GROUP BY {kind}, value"
            )
        else:
            sql = (
                "SELECT item.type, item.atom, count(DISTINCT documents.id) "
                "FROM documents CROSS JOIN json_each(documents.metadata, ?) AS item "
                "WHERE ifnull(json_type(documents.metadata, ?), 'object') <> 'object' "
                f"AND item.type NOT IN ('array', 'object') AND {condition} GROUP BY 1, 2"
            )
            paths *= 2
        rows = self.scan(sql, (*paths, *parameters))
        return [(_CONSTANTS.get(kind, atom), number) for kind, atom, number in rows]

    def columns(self, ids: Ids) -> Ids:
        """Document, start and end of passages: ids (n,), rising, to (3, n).

        −1 for those that are not stored.
        """
        columns = np.full((3, len(ids)), -1, np.int64)
        for low in range(0, len(ids), _CHUNK):
            part = ids[low : low + _CHUNK]
            sql = "SELECT id, document, start, end FROM passages WHERE id BETWEEN ? AND ?"
            stored = self._columns(self.read(sql, (int(part[0]), int(part[-1]))))
            at = np.searchsorted(part, stored[0]).clip(max=len(part) - 1)
            known = part[at] == stored[0]
            columns[:, low + at[known]] = stored[1:, known]
        return columns

    def counts(self) -> tuple[int, int]:
        """The numbers of documents and passages; reads all ids."""
        documents, passages = self.scan(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM passages)"
        )[0]
        return documents, passages

    def dead(self, segment: SegmentRow) -> Ids:
        """The deleted rows of a segment, ascending."""
        sql = "SELECT passage FROM tombstones WHERE passage BETWEEN ? AND ? ORDER BY passage"
        return self.numbers(sql, segment.ends) - segment.base

    def dead_count(self, segment: SegmentRow) -> int:
        """The number of deleted rows of a segment."""
        sql = "SELECT count(*) FROM tombstones WHERE passage BETWEEN ? AND ?"
        return int(self.read(sql, segment.ends)[0][0])

    def segments(self) -> list[SegmentRow]:
        """The committed segments, oldest first."""
        rows = self.read("SELECT id, base, rows, manifest_sha256 FROM segments ORDER BY base")
        if not all(isinstance(number, int) for row in rows for number in row[:3]):
            raise self.damaged("the table of segments holds a value that is not an integer")
        return [SegmentRow(*row) for row in rows]

    def works(self) -> list[Work]:
        """The unfinished works, by id. Raises CollectionError for one that makes no sense."""
        works = list[Work]()
        for folder, stored in self.read("SELECT folder, details FROM pending ORDER BY id"):
            with suppress(AttributeError, LookupError, TypeError, ValueError):
                details = json.loads(stored)
                is_named = {"by", "started"} <= details.keys()
                if is_named and "encoder" not in setting_faults(details["settings"]):
                    works.append(Work(str(folder), details))
                    continue
            raise self.damaged("pending work must be a reindex, with its encoder, start and author")
        return works

    def describe(self, work: Work) -> str:
        """A sentence about a reindex: its progress, and the process that does it."""
        encoder, encoded = work.details["settings"]["encoder"], 0
        tables = self.path.parent / "pending" / work.folder / self.path.name
        with suppress(CollectionError), Store(tables, readers=1) as store:
            encoded = store.counts()[1]
        name = encoder["source"] or encoder.get("name") or encoder["fingerprint"][:12]
        by = f"started {work.details['started']} by {work.details['by']}"
        return f"reindex by {name}: {encoded} passages encoded; {by}"

    def settings(self) -> dict[str, Any]:
        """Name → value of every setting."""
        rows = self.read("SELECT name, value FROM settings")
        with self.named_errors():
            return {name: json.loads(value or "") for name, value in rows}

    def numbers(self, sql: str, parameters: Sequence[Any] = ()) -> Ids:
        """The first column of a statement's rows, int64."""
        column = np.array([row[0] for row in self.scan(sql, parameters)])
        if column.size and column.dtype != np.int64:
            raise self.damaged("an id is not an integer")
        return column.astype(np.int64)

    def _columns(self, rows: Sequence[tuple[Any, ...]]) -> Ids:
        """Rows of passages as columns, (4, n)."""
        columns = np.array(rows)
        if rows and columns.dtype != np.int64:
            raise self.damaged("a passage has a document or offsets that are not integers")
        return columns.astype(np.int64).reshape(-1, 4).T

    def _rows(
        self, sql: str, values: Sequence[Any], chunk: int = _CHUNK
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement that ends in `IN ({})`, for `chunk` values at a time."""
        for start in range(0, len(values), chunk):
            part = values[start : start + chunk]
            yield from self.read(sql.format(", ".join("?" * len(part))), part)


class Changes:
    """Writes to the tables of a store that is in a transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def next_id(self, kind: str) -> int:
        """The next id of a kind, as in folder.schema: beyond all that were ever in use."""
        found = self.store.read("SELECT next FROM ids WHERE kind = ?", (kind,))
        if not found or type(found[0][0]) is not int:
            raise self.store.damaged(f"the next id of {kind} is missing")
        return int(found[0][0])

    def _skip(self, kind: str, following: int) -> None:
        """Go on with the id `following`, unless a larger one is next."""
        self._many("UPDATE ids SET next = max(next, ?) WHERE kind = ?", [(following, kind)])

    def write(
        self, entries: Sequence[Entry], known: Mapping[str, Known], first_passage: int
    ) -> None:
        """Store documents and their passages, replacing documents with the same keys.

        The passages get ids from `first_passage` on, in their order.
        """
        replaced = [known[e.document.key].id for e in entries if e.document.key in known]
        self._delete_rows(replaced)
        free = self.next_id("documents")
        self._skip("documents", free + len(entries) - len(replaced))
        numbers, rows = [], []
        for entry in entries:
            document, before = entry.document, known.get(entry.document.key)
            numbers.append(free if before is None else before.id)
            free += before is None
            texts = (document.key, document.title, document.text, as_json(document.metadata))
            origin = (entry.source, document.root or None, entry.supplied)
            rows.append((numbers[-1], *texts, document.digest, *origin))
        self._many(
            "INSERT INTO documents (id, key, title, text, metadata, digest, source, root, vectors) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "title = excluded.title, text = excluded.text, metadata = excluded.metadata, "
            "digest = excluded.digest, source = excluded.source, root = excluded.root, "
            "vectors = excluded.vectors",
            rows,
        )
        placed = ((i, *span) for i, e in zip(numbers, entries, strict=True) for span in e.spans)
        self._many(
            "INSERT INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)",
            ((id_, *row) for id_, row in enumerate(placed, start=first_passage)),
        )

    def set_metadata(self, entries: Sequence[Entry], known: Mapping[str, Known]) -> None:
        """Store metadata, source and root of documents whose text is already stored."""
        rows = ((as_json(e.document.metadata), e.source, e.document) for e in entries)
        self._many(
            "UPDATE documents SET metadata = ?, source = ?, root = ? WHERE id = ?",
            ((*texts, d.root or None, known[d.key].id) for *texts, d in rows),
        )

    def remove(self, documents: Sequence[int]) -> None:
        """Delete documents; their passages become tombstones."""
        self._delete_rows(documents)
        self._many("DELETE FROM documents WHERE id = ?", ((i,) for i in documents))

    def move_passages(self, ids: Ids, first: int) -> None:
        """Give passages, ids (n,) ascending, new ids from `first` on, beyond all in use."""
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)  # of consecutive ids
        lows, highs = ids[starts].tolist(), ids[np.append(starts[1:], ids.size) - 1].tolist()
        further = (first + starts - ids[starts]).tolist()
        sql = (
            "INSERT INTO passages (id, document, start, end) SELECT id + ?, document, start, end "
            "FROM passages WHERE id BETWEEN ? AND ? ORDER BY id"
        )
        self._many(sql, zip(further, lows, highs, strict=True))
        sql = "DELETE FROM passages WHERE id BETWEEN ? AND ?"
        self._many(sql, zip(lows, highs, strict=True))

    def add_segment(self, segment: SegmentRow) -> None:
        """Record a segment whose files are complete and synced."""
        self._many(
            "INSERT INTO segments (id, base, rows, manifest_sha256) VALUES (?, ?, ?, ?)",
            [(segment.id, segment.base, segment.rows, segment.manifest_sha256)],
        )
        self._skip("segments", segment.id + 1)
        self._skip("passages", segment.base + segment.rows)

    def remove_segments(
        self, segments: Iterable[SegmentRow], *, keep_tombstones: bool = False
    ) -> None:
        """Remove segments from the tables, with their tombstones."""
        for segment in segments:
            self._many("DELETE FROM segments WHERE id = ?", [(segment.id,)])
            if not keep_tombstones:
                sql = "DELETE FROM tombstones WHERE passage BETWEEN ? AND ?"
                self._many(sql, [segment.ends])

    def set(self, name: str, value: Any) -> None:
        """Write one setting."""
        self._many(
            "INSERT INTO settings (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [(name, json.dumps(value))],
        )

    def configure(self, values: Mapping[str, Any]) -> None:
        """Write settings; None removes one."""
        for name, value in values.items():
            if value is None:
                self._many("DELETE FROM settings WHERE name = ?", [(name,)])
            else:
                self.set(name, value)

    def name_work(self, folder: str, settings: Mapping[str, Any]) -> None:
        """Name a reindex to these settings, which this process does now, in the table `pending`."""
        self.end_work(folder)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        by = f"{socket.gethostname()}:{os.getpid()}"
        details = json.dumps({"settings": settings, "by": by, "started": now})
        sql = "INSERT INTO pending (kind, folder, details) VALUES ('reindex', ?, ?)"
        self.store.execute(sql, (folder, details))

    def end_work(self, folder: str) -> None:
        """Remove the work of a folder from the table."""
        self.store.execute("DELETE FROM pending WHERE folder = ?", (folder,))

    def count_commit(self) -> None:
        """Give the commit a number, for people, and a random id, so that readers notice it.

        Numbers are not unique: a folder restored to commit 5 and changed twice has a commit 7 that
        differs from commit 7 of the folder it was copied from.
        """
        self.set("commit_id", uuid4().hex)
        self._many(
            "INSERT INTO settings (name, value) VALUES ('commit', '1') "
            "ON CONFLICT (name) DO UPDATE SET value = value + 1",
            [()],
        )

    def index_field(self, name: str) -> None:
        """Index a metadata field, and keep the index up to date from now on."""
        with self.store.writing() as connection:
            fields.index_field(connection, name)

    def _delete_rows(self, documents: Sequence[int]) -> None:
        """Passages of these documents → tombstones."""
        if not documents:
            return
        rows = [(i,) for i in documents]
        self._many(
            "INSERT INTO tombstones (passage) SELECT id FROM passages WHERE document = ?", rows
        )
        self._many("DELETE FROM passages WHERE document = ?", rows)
        self.set("tombstones_id", uuid4().hex)

    def _many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each."""
        with self.store.writing() as connection:
            connection.executemany(sql, parameters)
