"""The tables of documents.db, as numbered migrations. Never edit one that was released: add one.

documents     one row a document: its key, title, text, metadata (a JSON object) and digest; source
              is the metadata as last added, where an update has changed it since (else NULL);
              root is the folder that a file's key is relative to (NULL for all else)
passages      what is encoded: passages.id = the segment's base + the row in its vectors file;
              start and end are offsets (in characters) into the document's text
segments      the folders of vectors that a commit has named, each with its manifest's checksum
tombstones    passages that a segment still has a row for, and the collection no longer
settings      name → JSON value: the encoder the collection was built by, how it is built
fields, field_values    metadata that is indexed on request, see searchengine.storage.filters.fields
text_index    words, see searchengine.storage.documents.lexical

documents.version names them too: it knows without this module whether one is pending.
"""

import json
import sqlite3
from uuid import uuid4

import sqlite_utils
from sqlite_utils import Migrations

from searchengine.corpus.documents import Document
from searchengine.storage.documents import lexical
from searchengine.storage.filters import fields

migrations = Migrations("searchengine")


@migrations()
def m001_initial(db: sqlite_utils.Database) -> None:
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


@migrations()
def m002_changes(db: sqlite_utils.Database) -> None:
    """Digests, by which unchanged documents are known; tombstones; passages by document."""
    db.execute("ALTER TABLE documents ADD COLUMN digest BLOB NOT NULL DEFAULT x''")
    db.register_function(_digest, deterministic=True)
    db.execute("UPDATE documents SET digest = _digest(title, text)")
    db.execute("CREATE TABLE tombstones (passage INTEGER PRIMARY KEY)")
    db.execute("CREATE INDEX passages_document ON passages (document)")


@migrations()
def m003_fields(db: sqlite_utils.Database) -> None:
    """Indexed metadata."""
    for statement in fields.SCHEMA:
        db.execute(statement)


@migrations()
def m004_text(db: sqlite_utils.Database) -> None:
    """A word index for collections that were made without one; new ones choose their tokenizer."""
    if db.execute("SELECT count(*) FROM settings").fetchone()[0]:
        lexical.create(db.conn, lexical.Tokenizer.PORTER)
        db.execute(
            "INSERT INTO settings (name, value) VALUES ('tokenizer', ?)",
            (json.dumps(lexical.Tokenizer.PORTER),),
        )


@migrations()
def m005_histories(db: sqlite_utils.Database) -> None:
    """Metadata as the source gave it, beside what was set by hand; where a file's key belongs;
    random ids of the last commit and of the last deletion."""
    db.execute("ALTER TABLE documents ADD COLUMN source TEXT")
    db.execute("ALTER TABLE documents ADD COLUMN root TEXT")
    if db.execute("SELECT count(*) FROM settings").fetchone()[0]:
        new = {"commit_id": uuid4().hex, "tombstones_id": uuid4().hex, "record_keys": "position"}
        for name, value in new.items():
            db.execute(
                "INSERT INTO settings (name, value) VALUES (?, ?)", (name, json.dumps(value))
            )


def upgrade(connection: sqlite3.Connection) -> None:
    """Apply what is pending, in one transaction."""
    db = sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)
    db.execute("BEGIN IMMEDIATE")  # of two that open it at once, one upgrades
    try:
        migrations.apply(db)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _digest(title: str, text: str) -> bytes:
    return Document("of an older format", text, title).digest
