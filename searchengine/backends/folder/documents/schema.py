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
pending       work that outlives a commit (folder.pending); the view live_passages leaves out the
              passages that it hides
ids           the next id of each kind: an id is never used again, whatever was deleted. Kinds are
              the tables of these names, and `spaces`: ranges of SPACE passage ids, one a reindex
settings      name → JSON value: the encoder, the index config and other settings
fields, field_values    metadata that is indexed on request (filters.fields)

sqlite-utils runs the migrations. It takes longer to import than a search takes, so it is imported
only for a database that lacks one.
"""

import sqlite3
from typing import TYPE_CHECKING

from searchengine.backends.filters import fields
from searchengine.errors import CollectionError

if TYPE_CHECKING:
    import sqlite_utils

SPACE = 1 << 40
"""From the first passage id of one encoder to that of the next: additions and merges stay below."""

_TABLES = (
    """CREATE TABLE documents (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        text TEXT NOT NULL,
        metadata TEXT NOT NULL,
        digest BLOB NOT NULL,
        source TEXT,
        root TEXT,
        vectors BLOB
    )""",
    # The documents of a folder's files, without reading their texts.
    "CREATE INDEX documents_root ON documents (root, key) WHERE root NOT NULL",
    """CREATE TABLE passages (
        id INTEGER PRIMARY KEY,
        document INTEGER NOT NULL REFERENCES documents(id),
        start INTEGER NOT NULL,
        end INTEGER NOT NULL
    )""",
    "CREATE INDEX passages_document ON passages (document)",
    """CREATE TABLE segments (
        id INTEGER PRIMARY KEY,
        base INTEGER NOT NULL,
        rows INTEGER NOT NULL,
        manifest_sha256 TEXT NOT NULL
    )""",
    "CREATE TABLE tombstones (passage INTEGER PRIMARY KEY)",
    """CREATE TABLE pending (
        id INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        folder TEXT NOT NULL,
        details TEXT NOT NULL
    )""",
    "CREATE VIEW live_passages AS SELECT id, document, start, end FROM passages "
    "WHERE NOT EXISTS (SELECT 1 FROM pending WHERE passages.id BETWEEN first AND last)",
    """CREATE TABLE ids (
        kind TEXT PRIMARY KEY,
        next INTEGER NOT NULL CHECK (typeof(next) = 'integer')
    )""",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)

_FREE = {
    "documents": "SELECT ifnull(max(id) + 1, 0) FROM documents",
    "passages": (
        "SELECT max((SELECT ifnull(max(base + rows), 0) FROM segments), "
        f"(SELECT ifnull(max(last + 1), 0) FROM pending WHERE last - first != {SPACE - 1}))"
    ),
    "segments": "SELECT ifnull(max(id), 0) + 1 FROM segments",
    "pending": "SELECT ifnull(max(id), 0) + 1 FROM pending",
    "spaces": (
        f"SELECT max((SELECT ifnull(max(base + rows - 1), 0) FROM segments), "
        f"(SELECT ifnull(max(last), 0) FROM pending)) / {SPACE} + 1"
    ),
}
"""Kind → the first id above all that are stored; passages apart from those of a pending reindex."""
BEHIND = (
    "SELECT count(*) FROM ("
    + " UNION ALL ".join(f"SELECT '{kind}' AS kind, ({sql}) AS free" for kind, sql in _FREE.items())
    + ") LEFT JOIN ids USING (kind) WHERE ifnull(next, -1) < free"
)
"""Number of kinds whose next id is used already, or is not stored: there must be none."""


def m001_tables(db: "sqlite_utils.Database") -> None:
    """All tables of 1.0."""
    for statement in (*_TABLES, *fields.SCHEMA):
        db.execute(statement)
    catch_up(db.conn)


def m003_words(_: "sqlite_utils.Database") -> None:
    """Nothing moves: it marks that the segments alone have the words, which others refuse."""


MIGRATIONS = {function.__name__: function for function in (m001_tables, m003_words)}
"""Name → migration, in the order in which they are applied."""
_PATIENCE_MS = 10_000  # to wait for another process, which may be upgrading


def outdated(connection: sqlite3.Connection, name: str) -> bool:
    """Whether migrations are pending. CollectionError if another version wrote the file `name`."""
    sql = "SELECT count(*) FROM sqlite_master WHERE name = '_sqlite_migrations'"
    applied: set[str] = set()
    if connection.execute(sql).fetchone()[0]:
        sql = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'searchengine'"
        applied = {str(row[0]) for row in connection.execute(sql)}
    if applied and m003_words.__name__ not in applied:
        raise CollectionError(
            f"{name} was written by an earlier version of searchengine, which alone can open it; "
            "export the collection with that version and index the export into a new folder, or "
            "index the documents again"
        )
    if unknown := sorted(applied - MIGRATIONS.keys()):
        raise CollectionError(
            f"{name} was written by a newer version of searchengine (its format has "
            f"{', '.join(unknown)}); upgrade searchengine to open it"
        )
    return applied != MIGRATIONS.keys()


def upgrade(connection: sqlite3.Connection, name: str) -> None:
    """Apply the pending migrations in one transaction; to a new database, all of them.

    Raises CollectionError if the file `name` cannot be written.
    """
    if connection.execute("PRAGMA query_only").fetchone()[0]:
        raise CollectionError(
            f"{name} was written by an older version of searchengine and must be upgraded "
            "once; make the folder writable and open it again"
        )
    import sqlite_utils

    migrations = sqlite_utils.Migrations("searchengine")
    for migration in MIGRATIONS.values():
        migrations()(migration)
    db = sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)
    # If two processes open it at the same time, one upgrades, and the other finds it done.
    timeout = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
    try:
        db.execute("BEGIN IMMEDIATE")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {timeout}")
    try:
        migrations.apply(db)
        db.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself where the disk is full
            db.execute("ROLLBACK")
        raise


def catch_up(connection: sqlite3.Connection) -> None:
    """Make every next id larger than all that are stored."""
    for kind, sql in _FREE.items():
        connection.execute(
            f"INSERT INTO ids (kind, next) VALUES (?, ({sql})) "
            "ON CONFLICT (kind) DO UPDATE SET next = max(next, excluded.next)",
            (kind,),
        )


def upcoming(connection: sqlite3.Connection, kind: str) -> int:
    """The next id."""
    row = connection.execute("SELECT next FROM ids WHERE kind = ?", (kind,)).fetchone()
    if row is None or type(row[0]) is not int:
        raise sqlite3.DatabaseError(f"the next id of {kind} is missing")
    return row[0]


def take(connection: sqlite3.Connection, kind: str, count: int = 1) -> int:
    """Take new ids, one after the other; returns the first."""
    first = upcoming(connection, kind)
    skip(connection, kind, first + count)
    return first


def skip(connection: sqlite3.Connection, kind: str, following: int) -> None:
    """Go on with the id `following`, unless a larger one is next."""
    connection.execute("UPDATE ids SET next = max(next, ?) WHERE kind = ?", (following, kind))
