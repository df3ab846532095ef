"""Statistics and indexes of metadata fields: how many documents a filter matches, and which.

The planner has no statistics of a value within JSON. So each frequent field has some of the
expressions that filters.py compares: its value, its text, and its date. ANALYZE and autovacuum keep
them. Fields of numbers and dates have an index, which answers a filter that few documents match;
texts may be longer than an index can hold.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from searchengine.backends.filters.parser import field_name
from searchengine.backends.filters.tree import Field
from searchengine.backends.postgresql import schema
from searchengine.backends.postgresql.filters import text_at

if TYPE_CHECKING:
    from psycopg import sql

    from searchengine.backends.postgresql.pool import Connection

_SAMPLE = 1000  # documents
_MAX_EXPRESSIONS = 64
_MAX_INDEXES = 16
Expression = tuple[str, Field, bool]
"""A column (`fields` or `dates`), a field in it, and whether its text is compared."""


def create(connection: "Connection") -> None:
    """Create the statistics and indexes of the most frequent fields that have none.

    Collects all statistics. In autocommit; others write meanwhile.
    """
    from psycopg import sql

    rows = connection.execute(
        "SELECT fields, dates FROM documents ORDER BY random() LIMIT %s", (_SAMPLE,)
    )
    counted: Counter[Expression] = Counter()
    unindexed: set[Expression] = set()  # they have values that may be long
    for fields, dates in rows.fetchall():
        for field, value in _values(fields):
            expression = ("fields", field, False)
            if isinstance(value, str | list):
                unindexed.add(expression)
            if isinstance(value, str):
                counted["fields", field, True] += 1
            if not isinstance(value, list):
                counted[expression] += 1
        counted.update(
            ("dates", field, False) for field, at in _values(dates) if not isinstance(at, list)
        )
    expressions = [expression for expression, _ in counted.most_common()]
    for expression in expressions[:_MAX_EXPRESSIONS]:
        name = "values " + hashlib.sha256(repr(expression).encode()).hexdigest()[:32]
        connection.execute(
            sql.SQL("CREATE STATISTICS IF NOT EXISTS {} ON {} FROM documents").format(
                sql.Identifier(name), _written(expression)
            )
        )
    indexed = [e for e in expressions if e not in unindexed and not e[2]]
    for column, field, _ in indexed[:_MAX_INDEXES]:
        schema.index_field(connection, field, field_name(field), column, concurrently=True)
    connection.execute("ANALYZE documents, passages")


def _values(metadata: Any, parents: Field = ()) -> Iterator[tuple[Field, Any]]:
    """The fields that are no object, and their values."""
    if isinstance(metadata, dict):
        for name, value in metadata.items():
            yield from _values(value, (*parents, name))
    elif parents:
        yield parents, metadata


def _written(expression: Expression) -> "sql.Composed":
    """An expression as filters write it."""
    from psycopg import sql

    column, field, is_text = expression
    at = f"(documents.{column}{' -> {}' * len(field)})"
    at = text_at(at).replace("'{}'", "'{{}}'") if is_text else at
    return sql.SQL(f"({at})").format(*map(sql.Literal, field))
