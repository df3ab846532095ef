"""The tables of documents.db, as numbered migrations. Never edit one that was released: add one.

documents   one row a document: its key, title, text and metadata (a JSON object)
passages    what is encoded: passages.id = the segment's base + the row in its vectors file;
            start and end are offsets (in characters) into the document's text
segments    the folders of vectors that a commit has named, each with its manifest's checksum
settings    name → JSON value: the encoder the collection was built by
"""

import sqlite_utils
from sqlite_utils import Migrations

from searchengine.errors import CollectionError

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


def upgrade(db: sqlite_utils.Database, name: str) -> None:
    """Apply what is pending. Raises CollectionError when `name` was written by a newer version."""
    known = {migration.name for migration in migrations._migrations}
    newer = [applied.name for applied in migrations.applied(db) if applied.name not in known]
    if newer:
        raise CollectionError(
            f"{name} was written by a newer version of searchengine (its format has "
            f"{', '.join(newer)}); upgrade searchengine to open it"
        )
    if migrations.pending(db):
        migrations.apply(db)
