"""Filters as conditions of SQLite, over the JSON of `documents.metadata`.

Where a field is indexed, its rows of field_values (filters.fields) are read in place of the JSON;
both give the same result.
"""

import json
from collections.abc import Mapping
from functools import partial

from searchengine.backends.filters.dates import moment_sql
from searchengine.backends.filters.tree import (
    COLUMNS,
    Check,
    Condition,
    Field,
    Filter,
    Predicate,
    Value,
    condition_of,
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

    indexed: indexed fields → their numbers, see filters.fields.
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
        f" AND {moment_sql(value) if check.kind == 'date' else value}", check, bound
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
