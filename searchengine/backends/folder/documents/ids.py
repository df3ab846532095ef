"""Ids are never used again, whatever was deleted: the table `ids` holds the next one of each kind.

documents, passages, segments, pending    the tables of these names
spaces    ranges of SPACE passage ids, one for each reindex
"""

import sqlite3

SPACE = 1 << 40
"""From the first passage id of one encoder to that of the next: additions and merges stay below."""

_NEXT = {
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
    + " UNION ALL ".join(f"SELECT '{kind}' AS kind, ({sql}) AS free" for kind, sql in _NEXT.items())
    + ") LEFT JOIN ids USING (kind) WHERE ifnull(next, -1) < free"
)
"""Number of kinds whose next id is used already, or is not stored: there must be none."""


def create(connection: sqlite3.Connection) -> None:
    """Create the table."""
    connection.execute(
        "CREATE TABLE ids (kind TEXT PRIMARY KEY, "
        "next INTEGER NOT NULL CHECK (typeof(next) = 'integer'))"
    )
    catch_up(connection)


def catch_up(connection: sqlite3.Connection) -> None:
    """Make every next id larger than all that are stored."""
    for kind, sql in _NEXT.items():
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
