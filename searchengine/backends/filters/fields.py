"""Metadata fields that are indexed on request, so that a filter on them need not read all metadata.

    fields          the indexed fields, by their JSON path
    field_values    (field, kind, value, document), in this order, for each of them
    field_contents  a view of the documents: the rows that field_values must hold

The kind is SQLite's json_type. A text that is a date has a second row of the kind `date`; its
value is the microsecond that filters.dates computes. An element of an array has a row of the kind
`item text` and so on, besides the row of the array (kind `array`, value 0; objects have such a row
too).

Triggers update the rows in the transaction that changes a document. `INSERT OR REPLACE` deletes
without firing triggers; write `ON CONFLICT DO UPDATE` instead.
"""

import re
import sqlite3

from searchengine.backends.filters.dates import moment_sql
from searchengine.backends.filters.parser import field_named
from searchengine.backends.filters.sqlite import json_path
from searchengine.backends.filters.tree import Field

_ITEMS = """documents CROSS JOIN fields
        CROSS JOIN json_each(documents.metadata, fields.path) AS item
        WHERE json_type(documents.metadata, fields.path) <> 'object' AND"""
_PREFIX = "CASE json_type(documents.metadata, fields.path) WHEN 'array' THEN 'item ' ELSE '' END"
_CONTENTS = f"""
    SELECT fields.id, {_PREFIX} || item.type, ifnull(item.atom, 0), documents.id
    FROM {_ITEMS} item.type NOT IN ('array', 'object')
    UNION ALL SELECT * FROM (
        SELECT fields.id, {_PREFIX} || 'date', {moment_sql("item.atom")} AS value, documents.id
        FROM {_ITEMS} item.type = 'text' AND item.atom GLOB '[0-9][0-9][0-9][0-9]*'
    ) WHERE value IS NOT NULL
    UNION ALL SELECT fields.id, json_type(documents.metadata, fields.path), 0, documents.id
    FROM documents CROSS JOIN fields
    WHERE json_type(documents.metadata, fields.path) IN ('array', 'object')"""
_FILL = (
    "INSERT INTO field_values (field, kind, value, document) "
    "SELECT DISTINCT field, kind, value, document FROM field_contents WHERE "
)
_ADD = f"{_FILL} document = new.id"
_REMOVE = "DELETE FROM field_values WHERE document = old.id"

SCHEMA = (
    "CREATE TABLE fields (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE)",
    """CREATE TABLE field_values (
        field INTEGER NOT NULL REFERENCES fields(id),
        kind TEXT NOT NULL,
        value NOT NULL,
        document INTEGER NOT NULL REFERENCES documents(id),
        PRIMARY KEY (field, kind, value, document)
    ) WITHOUT ROWID""",
    "CREATE INDEX field_values_document ON field_values (document)",
    f"CREATE VIEW field_contents (field, kind, value, document) AS {_CONTENTS}",
    f"CREATE TRIGGER field_values_insert AFTER INSERT ON documents BEGIN {_ADD}; END",
    f"CREATE TRIGGER field_values_delete AFTER DELETE ON documents BEGIN {_REMOVE}; END",
    "CREATE TRIGGER field_values_update AFTER UPDATE OF id, metadata ON documents "
    f"BEGIN {_REMOVE}; {_ADD}; END",
)
"""The statements that create these tables; `documents` must exist."""
_COLUMNS = "SELECT field, kind, value, document FROM"
FAULTS = " UNION ".join(
    f"SELECT document FROM ({_COLUMNS} {one} EXCEPT {_COLUMNS} {other})"
    for one, other in (("field_contents", "field_values"), ("field_values", "field_contents"))
)
"""The documents whose values are not those of their metadata. Reads the metadata of all."""
REBUILD = ("DELETE FROM field_values", f"{_FILL} true ORDER BY field, kind, value, document")
"""Statements that write all values again."""


def index_field(connection: sqlite3.Connection, name: str) -> None:
    """Index a field of all present and future documents; `name` as in a filter.

    Runs in the caller's transaction, if there is one. Does nothing if the field is indexed already.
    Raises FilterError if `name` is not the name of a field.
    """
    path = json_path(field_named(name))
    sql = "INSERT INTO fields (path) VALUES (?) ON CONFLICT (path) DO NOTHING RETURNING id"
    for number in connection.execute(sql, (path,)).fetchall():
        connection.execute(f"{_FILL} field = ? ORDER BY kind, value, document", number)


def indexed(connection: sqlite3.Connection) -> dict[Field, int]:
    """The indexed fields, first indexed first → their numbers, as `compile_sql` takes them."""
    rows = connection.execute("SELECT path, id FROM fields ORDER BY id").fetchall()
    return {tuple(re.findall('"([^"]+)"', path)): number for path, number in rows}
