"""What a write transaction does to documents.db."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from searchengine import fields, lexical
from searchengine.corpus import Document
from searchengine.store import SegmentRow, Store

Span = tuple[int, int]


class Known(NamedTuple):
    """What is stored of a document, enough to see whether it has changed."""

    id: int
    digest: bytes
    metadata: str


class Changes:
    """Writes to the tables of a store that is in a transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._connection = store.connection

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """Key → what is stored, for the keys that are."""
        marks = ", ".join("?" * len(keys))
        sql = f"SELECT key, id, digest, metadata FROM documents WHERE key IN ({marks})"
        return {row[0]: Known(*row[1:]) for row in self.store.read(sql, keys)}

    def next_passage(self) -> int:
        """The id that the next passage gets; no segment has a row for it."""
        sql = "SELECT ifnull(max(base + rows), 0) FROM segments"
        return int(self.store.read(sql)[0][0])

    def write(
        self,
        documents: Sequence[Document],
        spans: Sequence[Sequence[Span]],
        known: Mapping[str, Known],
        first_passage: int,
    ) -> None:
        """Store documents, in place of those of the same keys, and their passages.

        The passages get ids from `first_passage` on, in the order given.
        """
        replaced = [known[d.key].id for d in documents if d.key in known]
        self._bury(replaced)
        with self.store.named_errors():
            free = self.store.read("SELECT ifnull(max(id), -1) + 1 FROM documents")[0][0]
            ids = []
            for document in documents:
                known_as = known.get(document.key)
                ids.append(free if known_as is None else known_as.id)
                free += known_as is None
            self._connection.executemany(
                "INSERT INTO documents (id, key, title, text, metadata, digest) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title, "
                "text = excluded.text, metadata = excluded.metadata, digest = excluded.digest",
                (
                    (i, d.key, d.title, d.text, as_json(d.metadata), d.digest)
                    for i, d in zip(ids, documents, strict=True)
                ),
            )
            rows = ((i, *span) for i, some in zip(ids, spans, strict=True) for span in some)
            self._connection.executemany(
                "INSERT INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)",
                ((id_, *row) for id_, row in enumerate(rows, start=first_passage)),
            )

    def set_metadata(self, metadata: Mapping[int, str]) -> None:
        """Document id → its new metadata, as JSON."""
        self._many(
            "UPDATE documents SET metadata = ? WHERE id = ?",
            ((text, i) for i, text in metadata.items()),
        )

    def patch_metadata(self, patches: Mapping[int, Mapping[str, Any]]) -> None:
        """Document id → what is merged into its metadata (RFC 7396: null removes)."""
        self._many(
            "UPDATE documents SET metadata = json_patch(metadata, ?) WHERE id = ?",
            ((as_json(patch), i) for i, patch in patches.items()),
        )

    def remove(self, documents: Sequence[int]) -> None:
        """Forget documents; their passages become tombstones."""
        self._bury(documents)
        self._many("DELETE FROM documents WHERE id = ?", ((i,) for i in documents))

    def documents_matching(self, where: str) -> list[int]:
        """Ids of the documents that match a filter."""
        condition, parameters = self.store.condition(where)
        sql = f"SELECT id FROM documents WHERE {condition}"
        return [int(row[0]) for row in self.store.read(sql, parameters)]

    def move_passages(self, segment: SegmentRow, first: int) -> int:
        """Give the passages of a segment new ids, in their order, from `first` on; their number.

        `first` is beyond every id in use.
        """
        with self.store.named_errors():
            moved = self._connection.execute(
                "INSERT INTO passages (id, document, start, end) "
                "SELECT row_number() OVER (ORDER BY id) - 1 + ?, document, start, end "
                "FROM passages WHERE id BETWEEN ? AND ?",
                (first, *segment.ends),
            ).rowcount
            self._connection.execute("DELETE FROM passages WHERE id BETWEEN ? AND ?", segment.ends)
        return moved

    def name(self, segment: SegmentRow) -> None:
        """Name a segment whose files are complete and synced."""
        self._many(
            "INSERT INTO segments (id, base, rows, manifest_sha256) VALUES (?, ?, ?, ?)",
            [(segment.id, segment.base, segment.rows, segment.manifest_sha256)],
        )

    def forget(self, segments: Iterable[SegmentRow], *, keep_tombstones: bool = False) -> None:
        """Name these segments no longer, nor their tombstones."""
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

    def count_commit(self) -> None:
        """One commit more, by which readers see that there is something new."""
        self._many(
            "INSERT INTO settings (name, value) VALUES ('commit', '1') "
            "ON CONFLICT (name) DO UPDATE SET value = value + 1",
            [()],
        )

    def index_text(self, tokenizer: lexical.Tokenizer) -> None:
        """Keep an index of words from now on, by this tokenizer."""
        with self.store.named_errors():
            lexical.create(self._connection, tokenizer)
        self.set("tokenizer", tokenizer)

    def optimize_text(self) -> None:
        """Bring the index of words into the form that is quickest to search."""
        with self.store.named_errors():
            lexical.optimize(self._connection)

    def index_field(self, name: str) -> None:
        """Keep an index of this metadata field from now on."""
        with self.store.named_errors():
            fields.index_field(self._connection, name)

    def _bury(self, documents: Sequence[int]) -> None:
        """Passages of these documents → tombstones."""
        each = [(i,) for i in documents]
        self._many(
            "INSERT INTO tombstones (passage) SELECT id FROM passages WHERE document = ?", each
        )
        self._many("DELETE FROM passages WHERE document = ?", each)

    def _many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        with self.store.named_errors():
            self._connection.executemany(sql, parameters)


def as_json(metadata: Mapping[str, Any]) -> str:
    """Metadata as it is stored: as SQLite's own JSON functions write it."""
    return json.dumps(dict(metadata), ensure_ascii=False, separators=(",", ":"))
