"""Indexed metadata fields: what is kept of them, through every change of a document."""

import json
import random
import sqlite3
from typing import Any

from filtered import collection, matching
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.filters import sqlite as fields
from searchengine.backends.filters.parser import parse
from searchengine.backends.filters.sqlite import compile_sql


def kept(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT * FROM field_values ORDER BY document, field, kind, value").fetchall()


def rebuilt(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """The rows, written again."""
    assert db.execute(fields.FAULTS).fetchall() == []
    for statement in fields.REBUILD:
        db.execute(statement)
    return kept(db)


def put(db: sqlite3.Connection, number: int, metadata: dict[str, Any]) -> None:
    db.execute(
        "INSERT INTO documents VALUES (?, ?, '', '', ?) "
        "ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata",
        (number, str(number), json.dumps(metadata, ensure_ascii=False)),
    )


@given(st.integers(0, 2**32))
def test_any_history_ends_in_the_right_index(seed: int) -> None:
    rng = random.Random(seed)
    values = [1, 2.5, "a", "2020", None, True, [], ["a", 1, "2021-01"], {"b": 1}, {"b": ["2020"]}]
    db = collection([])
    documents: dict[int, dict[str, Any]] = {}
    for _ in range(rng.randint(0, 25)):
        number = rng.randint(0, 4)
        match rng.choice(("put", "put", "delete", "index")):
            case "put":
                documents[number] = {n: rng.choice(values) for n in "abc" if rng.random() < 0.6}
                put(db, number, documents[number])
            case "delete":
                documents.pop(number, None)
                db.execute("DELETE FROM documents WHERE id = ?", (number,))
            case "index":
                fields.index_field(db, rng.choice(("a", "b", "a.b")))
    assert kept(db) == rebuilt(db)
    for source in ("a = 1 or b contains 'a'", "exists(a.b)", "a != date('2020')", "b", "c in (1)"):
        with_index = matching(db, source)
        condition, parameters = compile_sql(parse(source))
        without = db.execute(f"SELECT id FROM documents WHERE {condition} ORDER BY id", parameters)
        assert with_index == [row[0] for row in without]
    db.close()
