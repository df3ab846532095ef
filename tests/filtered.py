"""Documents with metadata in a database, and what a filter finds there."""

import json
import sqlite3
from typing import Any

from searchengine.backends.filters import fields
from searchengine.backends.filters.sql import Filter, compile_sql

TABLE = """CREATE TABLE documents (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL)"""


def collection(records: list[dict[str, Any]], *names: str) -> sqlite3.Connection:
    """Documents with this metadata in a database, and these fields indexed."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    # What SQLite allows where nobody raised its limits.
    db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
    db.execute(TABLE)
    for statement in fields.SCHEMA:
        db.execute(statement)
    for name in names:
        fields.index_field(db, name)
    rows = [(i, str(i), json.dumps(r, ensure_ascii=False)) for i, r in enumerate(records)]
    db.executemany("INSERT INTO documents VALUES (?, ?, '', '', ?)", rows)
    return db


def found_in(db: sqlite3.Connection, node: Filter) -> list[int]:
    condition, parameters = compile_sql(node, "documents.metadata", fields.indexed(db))
    values = db.execute(f"SELECT id, {condition} FROM documents ORDER BY id", parameters)
    as_values = values.fetchall()
    assert {value for _, value in as_values} <= {0, 1}  # and never null
    rows = db.execute(f"SELECT id FROM documents WHERE {condition} ORDER BY id", parameters)
    found = [row[0] for row in rows]
    assert found == [number for number, value in as_values if value]
    return found


def select(node: Filter, records: list[dict[str, Any]], indexed: tuple[str, ...] = ()) -> list[int]:
    db = collection(records, *indexed)
    try:
        return found_in(db, node)
    finally:
        db.close()
