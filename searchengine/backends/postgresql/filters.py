"""Filters as conditions of PostgreSQL, over the JSONB columns `fields` and `dates`.

`fields` is the metadata. `dates` is its shadow: in place of every text that is a date, the
microsecond that it begins with (filters.parser), and nothing else. So dates are read by one
function, in Python, when a document is stored.

Tests for equality and `contains` are written with @>, which the GIN index of `fields` answers.

The planner uses the index of vectors only if it expects many matches, so each test is written in a
form that it has statistics of, by an index, or a high default for. JSONB orders values by kind:

    empty array < null < texts < numbers < booleans < other arrays < objects

so a kind is tested by comparing with a bound. `IS NOT TRUE` keeps the planner from taking two
bounds for a narrow range where it has no statistics.
"""

import json
import re
from typing import Any

from searchengine.backends.filters.parser import (
    COLUMNS,
    Check,
    Condition,
    Field,
    Predicate,
    condition_of,
    like_pattern,
    moment,
    parse,
)

_NUMBERS = "'-9e131071'::jsonb"
"""Below all numbers that JSONB holds, above all texts."""
_BOOLEANS = "'false'::jsonb"
_MAX_CONTAINED = 8
"""Values of `in` that are tests of their own: more would cost more than they save."""
_CONSTANTS = {"true": True, "false": False, "null": None}


def condition(where: str | None) -> Condition:
    """A filter as a condition over `documents`, and its parameters. Raises FilterError."""
    return ("true", ()) if where is None else condition_of(parse(where), _check)


def dates_of(metadata: Any) -> Any:
    """The shadow of metadata: dates as microseconds; None for what holds no date."""
    if isinstance(metadata, str):
        return moment(metadata)
    if isinstance(metadata, dict):
        parts = {name: dates_of(value) for name, value in metadata.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(metadata, list):  # only the elements themselves are tested
        return [m for m in map(dates_of, metadata) if isinstance(m, int)] or None
    return None


def _check(predicate: Predicate, check: Check) -> Condition:
    kind, operator, field = check.kind, check.operator, predicate.field
    if field in COLUMNS:
        return _test(f"documents.{COLUMNS[field]}", check)
    values = [_CONSTANTS[kind]] if kind in _CONSTANTS else [*check.values]
    if kind != "date" and (predicate.items or kind in _CONSTANTS or operator in ("=", "in")):
        return _equal(field, [[value] for value in values] if predicate.items else values)
    column = "dates" if kind == "date" else "fields"
    at = f"(documents.{column}{' -> %s::text' * len(field)})"  # a text never indexes an array
    if kind == "any":
        return f"{at} IS NOT NULL", field
    if kind == "truthy":
        empty = """'0', '""', 'false', 'null', '[]'"""
        text = f"({at} NOT IN ({empty}) AND ({at} > 'true'::jsonb) IS NOT TRUE)"
        return text, (*field, *field)
    if predicate.items:
        test, bounds = _test("item", check)
        array = f"CASE jsonb_typeof({at}) WHEN 'array' THEN {at} ELSE '[]' END"
        text = f"EXISTS (SELECT 1 FROM jsonb_array_elements({array}) AS item WHERE {test})"
        return text, (*field, *field, *bounds)
    test, bounds = _test(f"({at} #>> '{{}}')" if kind == "text" else at, check)
    if kind == "text":
        below, above = f"({at} <= 'null'::jsonb)", f"({at} >= {_NUMBERS})"
        text = f"({test} AND {below} IS NOT TRUE AND {above} IS NOT TRUE)"
        return text, (*field, *bounds, *field, *field)
    if operator == "between":  # between two numbers are only numbers
        return f"({test})", (*field, *bounds)
    other = f"{at} < {_NUMBERS}" if operator in ("<", "<=") else f"{at} >= {_BOOLEANS}"
    return f"({test} AND ({other}) IS NOT TRUE)", (*field, *bounds, *field)


def _test(value: str, check: Check) -> Condition:
    """A value and its test: of texts by code point, of JSONB numbers, which compare exactly."""
    is_text = check.kind == "text"
    values = check.values if is_text else tuple(map(_json, check.values))
    cast, collation = ("", ' COLLATE "C"') if is_text else ("::jsonb", "")
    match check.operator:
        case "like":
            pattern = like_pattern(str(check.values[0]), {"%": ".*", "_": "."}, _literal)
            return f"{value} ~ %s", (f"***:^(?:{pattern})$",)
        case "in":
            return f"{value} = ANY(%s::text[])", ([*values],)
        case "=":  # by any collation; an index serves it
            return f"{value} = %s", values
        case "between":
            return f"{value}{collation} BETWEEN %s{cast} AND %s{cast}", values
        case operator:
            return f"{value}{collation} {operator} %s{cast}", values


def _equal(field: Field, values: list[Any]) -> Condition:
    """One of the values is at the field; for a value in a list, the field is a list with it."""
    if len(values) > _MAX_CONTAINED:
        at = f"(documents.fields{' -> %s::text' * len(field)})"
        return f"({at} = ANY(%s::jsonb[]))", (*field, [_json(value) for value in values])
    for name in reversed(field):
        values = [{name: value} for value in values]
    tests = ["documents.fields @> %s::jsonb"] * len(values)
    return f"({' OR '.join(tests)})", tuple(map(_json, values))


def _literal(character: str) -> str:
    """A character as a regular expression takes it literally."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", character)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
