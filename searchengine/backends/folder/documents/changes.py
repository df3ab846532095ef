"""Writes the tables of documents.db, in a transaction. store.py reads them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from searchengine.backends.contract import Entry, Ids, Known, Span, as_json
from searchengine.backends.filters import fields
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.corpus.documents import Document


class Changes:
    """Writes to the tables of a store that is in a transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def next_passage(self) -> int:
        """The id of the next passage: beyond all rows that any segment has had."""
        return self.upcoming("passages")

    def upcoming(self, kind: str) -> int:
        """The next id. Kinds: see searchengine.backends.folder.documents.schema."""
        found = self.store.read("SELECT next FROM ids WHERE kind = ?", (kind,))
        if not found or type(found[0][0]) is not int:
            raise self.store.damaged(f"the next id of {kind} is missing")
        return int(found[0][0])

    def take(self, kind: str, count: int = 1) -> int:
        """Take new ids, one after the other; returns the first."""
        first = self.upcoming(kind)
        self._skip(kind, first + count)
        return first

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
        free = self.take("documents", len(entries) - len(replaced))
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
        self._place(numbers, [entry.spans for entry in entries], first_passage)

    def cut_again(
        self,
        documents: Mapping[int, Document],
        spans: Sequence[Sequence[Span]],
        first_passage: int,
    ) -> None:
        """Replace the passages of stored documents (id → document), whose texts stay."""
        self._delete_rows(list(documents))
        self._many(
            "UPDATE documents SET digest = ? WHERE id = ?",
            ((document.digest, i) for i, document in documents.items()),
        )
        self._place(documents, spans, first_passage)

    def _place(
        self, documents: Iterable[int], spans: Sequence[Sequence[Span]], first_passage: int
    ) -> None:
        placed = ((i, *span) for i, cut in zip(documents, spans, strict=True) for span in cut)
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
        """Give passages, ids (n,) ascending, new ids from `first` on, which is beyond all in use.

        Those that are not stored become tombstones.
        """
        if not ids.size:
            return
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)  # of consecutive ids
        lows, highs = ids[starts].tolist(), ids[np.append(starts[1:], ids.size) - 1].tolist()
        further = (first + starts - ids[starts]).tolist()
        sql = (
            "INSERT INTO passages (id, document, start, end) SELECT id + ?, document, start, end "
            "FROM passages WHERE id BETWEEN ? AND ? ORDER BY id"
        )
        moved = self._many(sql, zip(further, lows, highs, strict=True))
        sql = "DELETE FROM passages WHERE id BETWEEN ? AND ?"
        self._many(sql, zip(lows, highs, strict=True))
        if moved < ids.size:
            new = np.arange(first, first + ids.size)
            sql = "SELECT id FROM passages WHERE id >= ?"
            dead = np.setdiff1d(new, self.store.numbers(sql, (first,)))
            self._many("INSERT INTO tombstones (passage) VALUES (?)", ((i,) for i in dead.tolist()))

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

    def unset(self, name: str) -> None:
        """Remove one setting."""
        self._many("DELETE FROM settings WHERE name = ?", [(name,)])

    def forget_vectors(self) -> None:
        """Note of every document that its vectors come from the encoder."""
        self._many("UPDATE documents SET vectors = NULL WHERE vectors NOT NULL", [()])

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

    def _many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each; returns the number of rows changed."""
        with self.store.writing() as connection:
            return connection.executemany(sql, parameters).rowcount
