"""Statistics of metadata fields: how many documents a filter matches, as the planner expects.

It has none of a value within JSON. So each frequent field has statistics of the expressions that
filters.py compares: its value, its text, and its date. ANALYZE and autovacuum keep them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from searchengine.backends.filters.sql import Field
from searchengine.backends.postgresql.filters import text_at

if TYPE_CHECKING:
    from psycopg import sql

    from searchengine.backends.postgresql.pool import Connection

_SAMPLE = 1000  # documents
_MAX_EXPRESSIONS = 64
Expression = tuple[str, Field, bool]
"""A column (`fields` or `dates`), a field in it, and whether its text is compared."""


def create(connection: "Connection") -> None:
    """Create the statistics of the most frequent fields that have none, and collect all."""
    from psycopg import sql

    rows = connection.execute(
        "SELECT fields, dates FROM documents ORDER BY random() LIMIT %s", (_SAMPLE,)
    )
    counted: Counter[Expression] = Counter()
    for fields, dates in rows.fetchall():
        counted.update(("fields", field, False) for field, _ in _values(fields))
        counted.update(("fields", field, True) for field, at in _values(fields) if _is_text(at))
        counted.update(("dates", field, False) for field, _ in _values(dates))
    for expression, _ in counted.most_common(_MAX_EXPRESSIONS):
        name = "values " + hashlib.sha256(repr(expression).encode()).hexdigest()[:32]
        connection.execute(
            sql.SQL("CREATE STATISTICS IF NOT EXISTS {} ON {} FROM documents").format(
                sql.Identifier(name), _written(expression)
            )
        )
    connection.execute("ANALYZE documents, passages")


def _values(metadata: Any, parents: Field = ()) -> Iterator[tuple[Field, Any]]:
    """The fields that are neither an object nor an array, and their values."""
    if isinstance(metadata, dict):
        for name, value in metadata.items():
            yield from _values(value, (*parents, name))
    elif parents and not isinstance(metadata, list):
        yield parents, metadata


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _written(expression: Expression) -> "sql.Composed":
    """An expression as filters write it."""
    from psycopg import sql

    column, field, is_text = expression
    at = f"(documents.{column}{' -> {}' * len(field)})"
    at = text_at(at).replace("'{}'", "'{{}}'") if is_text else at
    return sql.SQL(f"({at})").format(*map(sql.Literal, field))
