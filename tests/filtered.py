"""Documents with metadata in SQLite, and what a filter finds there."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from searchengine.backends.filters import sqlite as fields
from searchengine.backends.filters.parser import moment, parse
from searchengine.backends.filters.sqlite import compile_sql

TABLE = """CREATE TABLE documents (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL)"""


def collection(records: Sequence[dict[str, Any]], *names: str) -> sqlite3.Connection:
    """Documents with this metadata in a database, and these fields indexed."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    # What SQLite allows where nobody raised its limits.
    db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
    db.create_function("moment", 1, moment)
    db.execute(TABLE)
    for statement in fields.SCHEMA:
        db.execute(statement)
    for name in names:
        fields.index_field(db, name)
    rows = [(i, str(i), json.dumps(r, ensure_ascii=False)) for i, r in enumerate(records)]
    db.executemany("INSERT INTO documents VALUES (?, ?, '', '', ?)", rows)
    return db


def matching(db: sqlite3.Connection, source: str) -> list[int]:
    condition, parameters = compile_sql(parse(source), fields.indexed(db))
    rows = db.execute(f"SELECT id FROM documents WHERE {condition} ORDER BY id", parameters)
    return [row[0] for row in rows]


def select(
    source: str, records: Sequence[dict[str, Any]], indexed: tuple[str, ...] = ()
) -> list[int]:
    """The places of the records that match a filter."""
    with closing(collection(records, *indexed)) as db:
        return matching(db, source)
