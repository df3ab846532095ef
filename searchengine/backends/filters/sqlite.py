"""Filters as conditions of SQLite, over the JSON of `documents.metadata`.

Where a field is indexed on request, rows of a table are read in place of the JSON:

    fields          the indexed fields, by their JSON path
    field_values    (field, kind, value, document), in this order, for each of them
    field_contents  a view of the documents: the rows that field_values must hold

The kind is SQLite's json_type. A text that is a date has a second row of the kind `date`; its
value is the `moment` of filters.parser, a function that connections must have. An element of an
array has a row of the kind `item text` and so on, besides the row of the array (kind `array`, value
0; objects have such a row too).

Triggers update the rows in the transaction that changes a document. `INSERT OR REPLACE` deletes
without firing triggers; write `ON CONFLICT DO UPDATE` instead.
"""

import json
import re
import sqlite3
from collections.abc import Mapping
from functools import partial

from searchengine.backends.filters.parser import (
    COLUMNS,
    Check,
    Condition,
    Field,
    Filter,
    Predicate,
    Value,
    condition_of,
    field_named,
    like_pattern,
)

_TYPES = {
    "number": ("integer", "real"),
    "truthy": ("true", "integer", "real", "text"),
}
"""Kind → the results of json_type for it, where they are not the kind itself."""
_WILDCARDS = {"%": "*", "_": "?"}


def compile_sql(node: Filter, indexed: Mapping[Field, int] | None = None) -> Condition:
    """A filter as a condition over `documents`, and its parameters.

    indexed: indexed fields → their numbers, as `indexed` gives them.
    """
    return condition_of(node, partial(_check, indexed or {}))


def json_path(field: Field) -> str:
    """A SQLite JSON path; names are quoted, so they are never read as syntax."""
    return "$" + "".join(f'."{name}"' for name in field)


def _check(indexed: Mapping[Field, int], predicate: Predicate, check: Check) -> Condition:
    field, items = predicate.field, predicate.items
    # Beside an argument that is a constant, SQLite keeps a copy of the others for each call: a
    # filter of many patterns would keep a long text as many times. Keys are short and indexed.
    bound = "(SELECT ?)" if check.operator == "like" and field != ("_id",) else "?"
    if field in COLUMNS:
        return _test(f"documents.{COLUMNS[field]}", check, bound)
    if field in indexed:
        kinds = _quoted(check.kind, "item " if items else "")
        test, values = _test(" AND value", check)
        kind = "" if check.kind == "any" else f" AND kind IN ({kinds})"
        rows = f"SELECT document FROM field_values WHERE field = ?{kind}{test}"
        return f"documents.id IN ({rows})", (indexed[field], *values)
    path, metadata = json_path(field), f"documents.metadata, {bound}"
    if check.kind == "any":
        return f"json_type({metadata}) IS NOT NULL", (path,)
    kinds = _quoted("text" if check.kind == "date" else check.kind)
    value = "item.atom" if items else f"json_extract({metadata})"
    test, values = _test(
        f" AND {f'moment({value})' if check.kind == 'date' else value}", check, bound
    )
    if not items:
        paths = (path, path) if test else (path,)
        return f"json_type({metadata}) IN ({kinds}){test}", (*paths, *values)
    elements = f"json_each({metadata}) AS item WHERE item.type IN ({kinds}){test}"
    text = f"json_type({metadata}) = 'array' AND EXISTS (SELECT 1 FROM {elements})"
    return text, (path, path, *values)


def _test(value: str, check: Check, bound: str = "?") -> Condition:
    """A value in SQL and its test; "" if the kind suffices."""
    values = tuple(map(_bindable, check.values))
    match check.operator:
        case "":
            return ("", ()) if check.kind != "truthy" else (f"{value} NOT IN (0, '')", ())
        case "like":
            pattern = like_pattern(str(check.values[0]), _WILDCARDS, _literal)
            return f"{value} GLOB {bound}", (pattern,)
        case "between":
            return f"{value} BETWEEN ? AND ?", values
        case "in":  # one parameter, however many values
            listed = json.dumps(values, ensure_ascii=False)
            return f"{value} IN (SELECT value FROM json_each(?))", (listed,)
        case operator:
            return f"{value} {operator} ?", values


def _bindable(value: Value) -> Value:
    """A value as SQLite takes it: it reads whole numbers beyond 64 bits in JSON as floats, too."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _quoted(kind: str, prefix: str = "") -> str:
    return ", ".join(f"'{prefix}{name}'" for name in _TYPES.get(kind, (kind,)))


def _literal(character: str) -> str:
    """A character as GLOB takes it literally."""
    return f"[{character}]" if character in ("*", "?", "[") else character


_ITEMS = """documents CROSS JOIN fields
        CROSS JOIN json_each(documents.metadata, fields.path) AS item
        WHERE json_type(documents.metadata, fields.path) <> 'object' AND"""
_PREFIX = "CASE json_type(documents.metadata, fields.path) WHEN 'array' THEN 'item ' ELSE '' END"
_CONTENTS = f"""
    SELECT fields.id, {_PREFIX} || item.type, ifnull(item.atom, 0), documents.id
    FROM {_ITEMS} item.type NOT IN ('array', 'object')
    UNION ALL SELECT fields.id, {_PREFIX} || 'date', moment(item.atom), documents.id
    FROM {_ITEMS} moment(item.atom) IS NOT NULL
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
