"""Writes the tables of documents.db, in a transaction. store.py reads them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from searchengine.backends.contract import Known, Span, as_json
from searchengine.backends.filters import fields
from searchengine.backends.folder.documents import schema
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.corpus.documents import Document


@dataclass(frozen=True, slots=True)
class Comparison:
    """Documents, by how they differ from the stored ones of the same keys.

    Attributes:
        changed: documents to write with their vectors: new ones, and those with another title,
            text or vector.
        metadata: other documents whose metadata or root differs.
        metadata_updated: number of these with other metadata.
        unchanged: number of documents with the stored title, text and metadata.
    """

    changed: list[Document]
    metadata: list[Document]
    metadata_updated: int
    unchanged: int


def compare(
    documents: Sequence[Document], stored: Mapping[str, Known], vectors: Mapping[str, bytes]
) -> Comparison:
    """Compare documents with the stored documents of the same keys.

    `vectors`: key → checksum of the vectors that come with a document. A document that comes
    without keeps those that once came with it, as long as its text is the same.
    """
    changed, metadata, updated, unchanged = [], [], 0, 0
    for document in documents:
        before = stored.get(document.key)
        if (
            before is None
            or before.digest != document.digest
            or _other_vectors(before.vectors, vectors.get(document.key))
        ):
            changed.append(document)
            continue
        other_metadata = before.added != as_json(document.metadata)
        updated += other_metadata
        unchanged += not other_metadata
        if other_metadata or before.root != (document.root or None):
            metadata.append(document)
    return Comparison(changed, metadata, updated, unchanged)


def _other_vectors(stored: bytes | None, supplied: bytes | None) -> bool:
    return stored == b"" if supplied is None else stored != supplied


class Changes:
    """Writes to the tables of a store that is in a transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def next_passage(self) -> int:
        """The id of the next passage: beyond all rows that any segment has had.

        A new encoder's passages have ids far beyond: see schema.SPACE.
        """
        return self.upcoming("passages")

    def upcoming(self, kind: str) -> int:
        """The next id. Kinds: see searchengine.backends.folder.documents.schema."""
        with self.store.writing() as connection:
            return schema.upcoming(connection, kind)

    def take(self, kind: str, count: int = 1) -> int:
        """Take new ids; returns the first."""
        with self.store.writing() as connection:
            return schema.take(connection, kind, count)

    def write(
        self,
        documents: Sequence[Document],
        spans: Sequence[Sequence[Span]],
        known: Mapping[str, Known],
        first_passage: int,
        vectors: Mapping[str, bytes] | None = None,
    ) -> None:
        """Store documents and their passages, replacing documents with the same keys.

        The passages get ids from `first_passage` on, in their order. `vectors`: as `compare`.
        """
        replaced = [known[d.key].id for d in documents if d.key in known]
        self._bury(replaced)
        free = self.take("documents", sum(d.key not in known for d in documents))
        numbers, rows = [], []
        for document in documents:
            before = known.get(document.key)
            metadata, source = merged(before, document)
            numbers.append(free if before is None else before.id)
            free += before is None
            texts = (document.key, document.title, document.text)
            origin = (source, document.root or None, (vectors or {}).get(document.key))
            rows.append((numbers[-1], *texts, metadata, document.digest, *origin))
        self._many(
            "INSERT INTO documents (id, key, title, text, metadata, digest, source, root, vectors) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "title = excluded.title, text = excluded.text, metadata = excluded.metadata, "
            "digest = excluded.digest, source = excluded.source, root = excluded.root, "
            "vectors = excluded.vectors",
            rows,
        )
        self._place(numbers, spans, first_passage)

    def set_sources(self, sources: Mapping[str, str]) -> None:
        """Store the metadata as last added (by key, as JSON), where an update has changed it."""
        self._many(
            "UPDATE documents SET source = ? WHERE key = ?",
            ((source, key) for key, source in sources.items()),
        )

    def cut_again(
        self,
        documents: Mapping[int, Document],
        spans: Sequence[Sequence[Span]],
        first_passage: int,
    ) -> None:
        """Replace the passages of stored documents (id → document), whose texts stay."""
        self._bury(list(documents))
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

    def set_metadata(self, documents: Sequence[Document], known: Mapping[str, Known]) -> None:
        """Store the metadata of documents whose text is already stored."""
        self._many(
            "UPDATE documents SET metadata = ?, source = ?, root = ? WHERE id = ?",
            ((*merged(known[d.key], d), d.root or None, known[d.key].id) for d in documents),
        )

    def patch_metadata(self, patches: Mapping[int, Mapping[str, Any]]) -> None:
        """Merge patches (by document id) into the metadata (RFC 7396: null removes).

        The metadata as last added is kept as well: see `merged`.
        """
        self._many(
            "UPDATE documents SET source = ifnull(source, metadata), "
            "metadata = json_patch(metadata, ?) WHERE id = ?",
            ((as_json(patch), i) for i, patch in patches.items()),
        )

    def rename(self, keys: Mapping[int, str]) -> None:
        """Give documents (by id) new keys, which no document has."""
        self._many("UPDATE documents SET key = ? WHERE id = ?", ((k, i) for i, k in keys.items()))

    def remove(self, documents: Sequence[int]) -> None:
        """Delete documents; their passages become tombstones."""
        self._bury(documents)
        self._many("DELETE FROM documents WHERE id = ?", ((i,) for i in documents))

    def move_passages(self, segment: SegmentRow, first: int) -> int:
        """Give the passages of a segment new ids, in their order, from `first` on; their number.

        `first` is beyond every id in use.
        """
        with self.store.writing() as connection:
            moved = connection.execute(
                "INSERT INTO passages (id, document, start, end) "
                "SELECT row_number() OVER (ORDER BY id) - 1 + ?, document, start, end "
                "FROM passages WHERE id BETWEEN ? AND ?",
                (first, *segment.ends),
            ).rowcount
            connection.execute("DELETE FROM passages WHERE id BETWEEN ? AND ?", segment.ends)
        return moved

    def add_segment(self, segment: SegmentRow) -> None:
        """Record a segment whose files are complete and synced."""
        self._many(
            "INSERT INTO segments (id, base, rows, manifest_sha256) VALUES (?, ?, ?, ?)",
            [(segment.id, segment.base, segment.rows, segment.manifest_sha256)],
        )
        with self.store.writing() as connection:
            schema.skip(connection, "segments", segment.id + 1)
            schema.skip(connection, "passages", segment.base + segment.rows)

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

    def _bury(self, documents: Sequence[int]) -> None:
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
        with self.store.writing() as connection:
            connection.executemany(sql, parameters)


def merged(before: Known | None, document: Document) -> tuple[str, str | None]:
    """The metadata to store for a document, and its source if that differs; as JSON.

    Values that `update` set stay until the source changes: a field of the source that differs from
    when it was last added gets its new value; all other fields keep their stored values.
    """
    added = as_json(document.metadata)
    if before is None or before.source is None:
        return added, None
    stored = _three_way(json.loads(before.source), json.loads(added), json.loads(before.metadata))
    written = as_json(stored)
    return written, None if written == added else added


def _three_way(
    old: Mapping[str, Any], new: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """`stored`, with the changes from `old` to `new` applied."""
    result = dict(stored)
    for name in {**old, **new}:
        if name in old and name in new and json.dumps(old[name]) == json.dumps(new[name]):
            continue  # as JSON: to Python 1 and true are equal
        before, now, current = old.get(name), new.get(name), stored.get(name)
        if isinstance(before, dict) and isinstance(now, dict) and isinstance(current, dict):
            result[name] = _three_way(before, now, current)
        elif name in new:
            result[name] = new[name]
        else:
            result.pop(name, None)
    return result
