"""Filters as conditions of PostgreSQL, over the JSONB columns `fields` and `dates`.

`fields` is the metadata. `dates` is its shadow: in place of every text that is a date, the
microsecond that it begins with (filters.dates), and nothing else. So dates are read by one
function, in Python, when a document is stored. All values of the user are bound as parameters.

Tests for equality and `contains` are written with @>, which the GIN index of `fields` answers.

The planner uses the index of vectors only if it expects many matches, so each test is written in a
form that it has statistics of (statistics.py), or a high default for. JSONB orders values by kind:

    empty array < null < texts < numbers < booleans < other arrays < objects

so a kind is tested by comparing with a bound. `IS NOT TRUE` keeps the planner from taking two
bounds for a narrow range where it has no statistics.
"""

import json
import re
from typing import Any

from searchengine.backends.filters.dates import Date
from searchengine.backends.filters.parser import parse
from searchengine.backends.filters.sql import (
    Check,
    Condition,
    Dialect,
    Field,
    Filter,
    like_parts,
)

_NUMBERS = "'-9e131071'::jsonb"
"""Below all numbers that JSONB holds, above all texts."""
_BOOLEANS = "'false'::jsonb"
_MAX_CONTAINED = 8
"""Values of `in` that are tests of their own: more would cost more than they save."""
_WORDS = {"true": True, "false": False, "null": None}


def condition(where: str | None) -> tuple[str, list[Any]]:
    """A filter as a condition over `documents`, and its parameters. Raises FilterError."""
    if where is None:
        return "true", []
    return compiled(parse(where))


def compiled(node: Filter) -> tuple[str, list[Any]]:
    """The condition of a filter's tree, and its parameters."""
    whole = _Jsonb().condition(node)
    return f"({whole.text})", list(whole.parameters)


def dates_of(metadata: Any) -> Any:
    """The shadow of metadata: dates as microseconds; None for what holds no date."""
    if isinstance(metadata, str):
        if not metadata[:4].isdigit():
            return None
        try:
            return Date.parse(metadata).first
        except ValueError:
            return None
    if isinstance(metadata, dict):
        parts = {name: dates_of(value) for name, value in metadata.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(metadata, list):  # only the elements themselves are tested
        return [m for m in map(dates_of, metadata) if isinstance(m, int)] or None
    return None


class _Jsonb(Dialect):
    """Values are read from documents.fields and documents.dates."""

    # In a WHERE clause null is as good as false, and an index serves a comparison that may be null.
    nothing, negation = "false", "(NOT coalesce({}, false))"

    def column(self, name: str, check: Check) -> Condition:
        at, values = f"documents.{name}", check.values
        if check.operator == "like":
            return Condition(f"({at} ~ %s)", (_regex(str(values[0])),))
        if check.operator == "in":
            return Condition(f"({at} = ANY(%s::text[]))", (list(values),))
        if check.operator == "=":
            return Condition(f"({at} = %s)", values)  # by any collation; an index serves it
        bounds = "%s AND %s" if check.operator == "between" else "%s"
        return Condition(f'({at} COLLATE "C" {check.operator} {bounds})', values)

    def value(self, field: Field, check: Check) -> Condition:
        at, names = _at(field, check)
        words = [_WORDS[kind] for kind in check.kinds if kind in _WORDS]
        if check.operator == "truthy":
            empty = """'0', '""', 'false', 'null', '[]'"""
            text = f"({at} NOT IN ({empty}) AND ({at} > 'true'::jsonb) IS NOT TRUE)"
            return Condition(text, (*names, *names))
        if not check.operator:
            return _equal(field, "fields", words)
        if check.operator in ("=", "in") and not check.is_date:
            return _equal(field, "fields", list(check.values))
        if check.operator == "like":
            test, values = f"{text_at(at)} ~ %s", (_regex(str(check.values[0])),)
        else:
            test, values = _compared(at, check)
        if isinstance(check.values[0], str):
            kind = f"({at} <= 'null'::jsonb) IS NOT TRUE AND ({at} >= {_NUMBERS}) IS NOT TRUE"
            return Condition(f"({test} AND {kind})", (*names, *values, *names, *names))
        if check.operator == "between":  # between two numbers are only numbers
            return Condition(f"({test})", (*names, *values))
        bound = f"< {_NUMBERS}" if check.operator in ("<", "<=") else f">= {_BOOLEANS}"
        return Condition(f"({test} AND ({at} {bound}) IS NOT TRUE)", (*names, *values, *names))

    def item(self, field: Field, check: Check) -> Condition:
        if not check.is_date:
            words = [_WORDS[kind] for kind in check.kinds if kind in _WORDS]
            return _equal(field, "fields", [[value] for value in (check.values or words)])
        at, names = _at(field, check)
        test, values = _compared("item", check)
        text = (
            f"EXISTS (SELECT 1 FROM jsonb_array_elements(CASE jsonb_typeof({at}) WHEN 'array' "
            f"THEN {at} ELSE '[]' END) AS item WHERE {test})"
        )
        return Condition(text, (*names, *names, *values))

    def existence(self, field: Field) -> Condition:
        at, names = _at(field, Check(()))
        return Condition(f"{at} IS NOT NULL", names)


def _at(field: Field, check: Check) -> tuple[str, tuple[str, ...]]:
    """The value of a field, JSONB or null, and its parameters. A text never indexes an array."""
    column = "dates" if check.is_date else "fields"
    return f"(documents.{column}{' -> %s::text' * len(field)})", field


def text_at(at: str) -> str:
    """The text of a JSONB value."""
    return f"({at} #>> '{{}}')"


def _equal(field: Field, column: str, values: list[Any]) -> Condition:
    """One of the values is at the field; for a value in a list, the field is a list with it."""
    if len(values) <= _MAX_CONTAINED:
        tests = [f"documents.{column} @> %s::jsonb"] * len(values)
        return Condition(f"({' OR '.join(tests)})", tuple(_nested(field, v) for v in values))
    at = f"(documents.{column}{' -> %s::text' * len(field)})"
    return Condition(f"({at} = ANY(%s::jsonb[]))", (*field, [_json(value) for value in values]))


def _nested(field: Field, value: Any) -> str:
    """JSON with a value at a field."""
    for name in reversed(field):
        value = {name: value}
    return _json(value)


def _compared(at: str, check: Check) -> tuple[str, tuple[Any, ...]]:
    """A comparison of numbers as JSONB, which compares them exactly, or of texts by code point."""
    if isinstance(check.values[0], str):
        at, cast, values = f'{text_at(at)} COLLATE "C"', "", check.values
    else:
        cast, values = "::jsonb", tuple(map(_json, check.values))
    if check.operator == "between":
        return f"{at} BETWEEN %s{cast} AND %s{cast}", values
    return f"{at} {check.operator} %s{cast}", values


def _regex(pattern: str) -> str:
    """A LIKE pattern as a regular expression of PostgreSQL over the whole text."""
    wildcards = {"%": ".*", "_": "."}
    parts = (
        wildcards[part]
        if wildcard
        else f"[{part}]"
        if len(part) > 1
        else re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", part)
        for part, wildcard in like_parts(pattern)
    )
    return f"***:^(?:{''.join(parts)})$"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
