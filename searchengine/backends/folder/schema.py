"""The tables of documents.db, as numbered migrations. Never edit one that was released: add one.

documents     one row per document: key, title, text, metadata (a JSON object) and digest; source is
              the metadata as last added, if an update has changed it since (else NULL);
              root is the folder that a file's key is relative to (NULL for other sources);
              vectors is the SHA-256 of vectors that came with the document, empty if it came
              without one (NULL where the encoder computed them)
passages      the encoded texts: passages.id = the segment's base + the row in its vectors file;
              start and end are offsets (in characters) into the document's text
segments      the folders of vectors that a commit has named, each with its manifest's checksum
tombstones    deleted passages that a segment still has a row for
pending       work that outlives a commit (store.Work)
ids           the next id of each kind, which is a table: an id is never used again, whatever was
              deleted
settings      name → JSON value: the encoder, the index config and other settings
fields, field_values    metadata that is indexed on request (filters.sqlite)

sqlite-utils makes and migrates the tables. Statements that a search or a commit runs are SQL: to
import sqlite-utils takes longer than a search (0.06 s; 1.6 s where pandas is installed), a query by
it 24 µs instead of 2, and a row stored by it three times as long.
"""

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING

from searchengine.backends.filters import sqlite as fields

if TYPE_CHECKING:
    import sqlite_utils

_FREE = {
    "documents": "SELECT ifnull(max(id) + 1, 0) FROM documents",
    "passages": "SELECT ifnull(max(base + rows), 0) FROM segments",
    "segments": "SELECT ifnull(max(id), 0) + 1 FROM segments",
}
"""Kind → the first id above all that are stored."""
BEHIND = (
    "SELECT kind FROM ("
    + " UNION ALL ".join(f"SELECT '{kind}' AS kind, ({sql}) AS free" for kind, sql in _FREE.items())
    + ") LEFT JOIN ids USING (kind) WHERE typeof(next) <> 'integer' OR next < free"
)
"""The kinds whose next id is used already, or is not stored: there must be none."""
CATCH_UP = tuple(
    f"INSERT INTO ids (kind, next) VALUES ('{kind}', ({sql})) ON CONFLICT (kind) DO UPDATE SET "
    "next = max(iif(typeof(next) = 'integer', next, 0), excluded.next)"
    for kind, sql in _FREE.items()
)
"""Statements that make every next id larger than all that are stored."""


def m001_collection(db: "sqlite_utils.Database") -> None:
    """All tables of 1.0."""
    documents = {"id": int, "key": str, "title": str, "text": str, "metadata": str, "digest": bytes}
    more = {"source": str, "root": str, "vectors": bytes}
    passages = {"id": int, "document": int, "start": int, "end": int}
    pending = {"id": int, "kind": str, "folder": str, "details": str}
    _create(db, "documents", documents, more)
    db.table("documents").create_index(["key"], unique=True)
    # The documents of a folder's files, without reading their texts.
    db.execute("CREATE INDEX documents_root ON documents (root, key) WHERE root NOT NULL")
    _create(db, "passages", passages)
    db.table("passages").create_index(["document"])
    _create(db, "segments", {"id": int, "base": int, "rows": int, "manifest_sha256": str})
    _create(db, "tombstones", {"passage": int})
    _create(db, "pending", pending)
    _create(db, "ids", {"kind": str, "next": int})
    _create(db, "settings", {"name": str, "value": str})
    for statement in (*fields.SCHEMA, *CATCH_UP):
        db.execute(statement)


def _create(
    db: "sqlite_utils.Database",
    name: str,
    columns: Mapping[str, type],
    optional: Mapping[str, type] | None = None,
) -> None:
    """Create a table; the first column is its key, and only `optional` ones may be NULL."""
    key = next(iter(columns))
    db.table(name).create({**columns, **(optional or {})}, pk=key, not_null=columns.keys() - {key})


MIGRATIONS = {each.__name__: each for each in (m001_collection,)}
"""Name → migration, in the order in which they are applied."""


def upgrade(connection: sqlite3.Connection) -> None:
    """Apply the pending migrations in the present transaction; to a new database, all of them."""
    import sqlite_utils

    migrations = sqlite_utils.Migrations("searchengine")
    for migration in MIGRATIONS.values():
        migrations()(migration)
    migrations.apply(
        sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)
    )
