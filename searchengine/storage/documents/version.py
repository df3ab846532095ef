"""Which migrations a database has had, asked in plain SQL, so that a question need not wait.

sqlite-utils, which runs them, takes longer to import than a question takes to answer (it brings
pandas along where that is installed): it is loaded for a database that lacks one.
"""

import sqlite3

from searchengine.errors import CollectionError

MIGRATIONS = ("m001_initial", "m002_changes", "m003_fields", "m004_text", "m005_histories")
"""The migrations of searchengine.storage.documents.schema, in their order."""


def outdated(connection: sqlite3.Connection, name: str) -> bool:
    """Whether migrations are pending. CollectionError when `name` is of a newer version."""
    applied = _applied(connection)
    newer = [str(migration) for migration in applied if migration not in MIGRATIONS]
    if newer:
        raise CollectionError(
            f"{name} was written by a newer version of searchengine (its format has "
            f"{', '.join(newer)}); upgrade searchengine to open it"
        )
    return set(applied) != set(MIGRATIONS)


def bring_up_to_date(connection: sqlite3.Connection, name: str) -> None:
    """Apply the migrations that are pending, all of them to a new database.

    Raises CollectionError when `name` cannot be written now.
    """
    if connection.execute("PRAGMA query_only").fetchone()[0]:
        raise CollectionError(
            f"{name} was written by an older version of searchengine and must be upgraded "
            "once; make the folder writable and open it again"
        )
    from searchengine.storage.documents.schema import upgrade  # heavy, and seldom needed

    upgrade(connection)


def _applied(connection: sqlite3.Connection) -> list[object]:
    """The names of the migrations that were applied, in the table that sqlite-utils keeps."""
    sql = "SELECT count(*) FROM sqlite_master WHERE name = '_sqlite_migrations'"
    if not connection.execute(sql).fetchone()[0]:
        return []
    sql = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'searchengine' ORDER BY rowid"
    return [row[0] for row in connection.execute(sql)]
