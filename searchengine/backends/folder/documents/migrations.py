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
pending       work that outlives a commit, see folder.documents.pending; the view
              live_passages leaves out the passages that it hides
ids           the next id of each table, see searchengine.backends.folder.documents.ids
settings      name → JSON value: the encoder, the index config and other settings
fields, field_values    metadata that is indexed on request, see backends.folder.filters.fields
text_index    words, see searchengine.backends.folder.documents.text_index

sqlite-utils runs the migrations. It takes longer to import than a search takes (it loads pandas
where that is installed), so it is imported only for a database that lacks one.
"""

import json
import sqlite3
from typing import TYPE_CHECKING
from uuid import uuid4

from searchengine.backends.folder.documents import ids, text_index
from searchengine.backends.folder.filters import fields
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError

if TYPE_CHECKING:
    import sqlite_utils


def m001_initial(db: "sqlite_utils.Database") -> None:
    """Documents, passages, segments and settings."""
    for statement in (
        """CREATE TABLE documents (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL
        )""",
        """CREATE TABLE passages (
            id INTEGER PRIMARY KEY,
            document INTEGER NOT NULL REFERENCES documents(id),
            start INTEGER NOT NULL,
            end INTEGER NOT NULL
        )""",
        """CREATE TABLE segments (
            id INTEGER PRIMARY KEY,
            base INTEGER NOT NULL,
            rows INTEGER NOT NULL,
            manifest_sha256 TEXT NOT NULL
        )""",
        "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ):
        db.execute(statement)


def m002_changes(db: "sqlite_utils.Database") -> None:
    """Digests, by which unchanged documents are known; tombstones; passages by document."""
    db.execute("ALTER TABLE documents ADD COLUMN digest BLOB NOT NULL DEFAULT x''")
    db.register_function(_digest, deterministic=True)
    db.execute("UPDATE documents SET digest = _digest(title, text)")
    db.execute("CREATE TABLE tombstones (passage INTEGER PRIMARY KEY)")
    db.execute("CREATE INDEX passages_document ON passages (document)")


def m003_fields(db: "sqlite_utils.Database") -> None:
    """Indexed metadata."""
    for statement in fields.SCHEMA:
        db.execute(statement)


def m004_text(db: "sqlite_utils.Database") -> None:
    """An index of words for older collections; new collections choose their tokenizer."""
    if db.execute("SELECT count(*) FROM settings").fetchone()[0]:
        text_index.create(db.conn, Analyzer(Tokenizer.PORTER))
        db.execute(
            "INSERT INTO settings (name, value) VALUES ('tokenizer', ?)",
            (json.dumps(Tokenizer.PORTER),),
        )


def m005_histories(db: "sqlite_utils.Database") -> None:
    """Metadata as last added, besides values set by hand; the folder of a file's key; random ids of
    the last commit and of the last deletion."""
    db.execute("ALTER TABLE documents ADD COLUMN source TEXT")
    db.execute("ALTER TABLE documents ADD COLUMN root TEXT")
    if db.execute("SELECT count(*) FROM settings").fetchone()[0]:
        new = {"commit_id": uuid4().hex, "tombstones_id": uuid4().hex, "record_keys": "position"}
        for name, value in new.items():
            db.execute(
                "INSERT INTO settings (name, value) VALUES (?, ?)", (name, json.dumps(value))
            )


def m006_vectors(db: "sqlite_utils.Database") -> None:
    """The checksum of vectors that came with a document, which no encoder computed."""
    db.execute("ALTER TABLE documents ADD COLUMN vectors BLOB")


def m007_pending(db: "sqlite_utils.Database") -> None:
    """Work that outlives a commit, and the passages without those that it hides."""
    db.execute(
        """CREATE TABLE pending (
            id INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            folder TEXT NOT NULL,
            details TEXT NOT NULL
        )"""
    )
    db.execute(
        "CREATE VIEW live_passages AS SELECT id, document, start, end FROM passages "
        "WHERE NOT EXISTS (SELECT 1 FROM pending WHERE passages.id BETWEEN first AND last)"
    )


def m008_roots(db: "sqlite_utils.Database") -> None:
    """The documents of a folder's files, without reading their texts."""
    db.execute("CREATE INDEX documents_root ON documents (root, key) WHERE root NOT NULL")


def m009_ids(db: "sqlite_utils.Database") -> None:
    """The next ids, so that none is used again."""
    ids.create(db.conn)


_PATIENCE_MS = 10_000  # to wait for another process, which may be upgrading

MIGRATIONS = {
    function.__name__: function
    for function in (
        m001_initial,
        m002_changes,
        m003_fields,
        m004_text,
        m005_histories,
        m006_vectors,
        m007_pending,
        m008_roots,
        m009_ids,
    )
}
"""Name → migration, in the order in which they are applied."""


def outdated(connection: sqlite3.Connection, name: str) -> bool:
    """Whether migrations are pending. CollectionError if a newer version wrote the file `name`."""
    applied = _applied(connection)
    newer = [migration for migration in applied if migration not in MIGRATIONS]
    if newer:
        raise CollectionError(
            f"{name} was written by a newer version of searchengine (its format has "
            f"{', '.join(newer)}); upgrade searchengine to open it"
        )
    return set(applied) != set(MIGRATIONS)


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


def _applied(connection: sqlite3.Connection) -> list[str]:
    """The names of the applied migrations, from the table that sqlite-utils keeps."""
    sql = "SELECT count(*) FROM sqlite_master WHERE name = '_sqlite_migrations'"
    if not connection.execute(sql).fetchone()[0]:
        return []
    sql = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'searchengine' ORDER BY rowid"
    return [str(row[0]) for row in connection.execute(sql)]


def _digest(title: str, text: str) -> bytes:
    return Document("of an older format", text, title).digest
