"""The tree of a filter, and its meaning in SQL.

A test is read either from the JSON of `documents.metadata`, or, where the field is indexed, from
the rows that filters.fields keeps; both give the same result. All values of the user are bound as
parameters, none is written into the statement. A condition is 1 or 0 and never null.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from searchengine.storage.filters.dates import Date, moment_sql

Value = str | int | float | bool | None
Field = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """`field operator value`, the operator one of = != < <= > >=."""

    field: Field
    operator: str
    value: Value | Date


@dataclass(frozen=True, slots=True)
class Between:
    """`field between low and high`, both included, of one kind."""

    field: Field
    low: Value | Date
    high: Value | Date


@dataclass(frozen=True, slots=True)
class In:
    """`field in (values)`."""

    field: Field
    values: tuple[Value | Date, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`field like pattern`: % is any text, _ any character, a backslash escapes them."""

    field: Field
    pattern: str


@dataclass(frozen=True, slots=True)
class Contains:
    """`field contains value`: an array that has this element."""

    field: Field
    value: Value | Date


@dataclass(frozen=True, slots=True)
class Exists:
    """`exists(field)`: the field exists, even if it is null."""

    field: Field


@dataclass(frozen=True, slots=True)
class Truthy:
    """A field alone."""

    field: Field


@dataclass(frozen=True, slots=True)
class And:
    """All hold."""

    operands: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one holds."""

    operands: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The operand does not hold."""

    operand: "Filter"


Filter = Compare | Between | In | Like | Contains | Exists | Truthy | And | Or | Not

_NUMBER = ("integer", "real")
_DATE = "date"
_LETTERS = 0x1F000  # no letter beyond this has cases


@dataclass(frozen=True, slots=True)
class _Check:
    """One way for a test to hold: the value has one of these kinds and meets `test`.

    The kinds are SQLite's json_type, or a date. `test` is SQL that follows the value, if any.
    """

    kinds: tuple[str, ...]
    test: str = ""
    parameters: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sql:
    """A condition and its parameters.

    `stack`: the places in the stack of SQLite's parser, which has 100, that the text around its
    deepest test takes. `loose`: an AND beside it needs parentheses.
    """

    text: str
    parameters: tuple[Value, ...]
    stack: int = 0
    loose: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    """The column and the indexed fields that values are read from."""

    column: str
    indexed: Mapping[Field, int]

    def sql(self, node: Filter, holds: bool = True) -> _Sql:
        """The condition that a node holds, or that it does not."""
        match node:
            case Not(operand):
                return self.sql(operand, not holds)
            case And(operands) | Or(operands):
                parts = [self.sql(operand, holds) for operand in operands]
                return _joined(parts, loose=isinstance(node, And) is not holds)
            case Compare(field, "!=", value):
                return self.sql(Compare(field, "=", value), not holds)
            case Exists(field):
                checks = [self._existence(field)]
            case Contains(field, value):
                checks = [self._item(field, _compared("=", value))]
            case _:
                checks = [self._value(node.field, check) for check in _checks(node)]
        text = " OR ".join(text for text, _ in checks) or "0"
        parameters = tuple(value for _, values in checks for value in values)
        return _Sql(f"({text})" if holds else f"(NOT ({text}))", parameters)

    def _value(self, field: Field, check: _Check) -> tuple[str, tuple[Value, ...]]:
        """A check of a field's own value."""
        if field in self.indexed:
            return self._row(field, check)
        path = json_path(field)
        is_date = check.kinds == (_DATE,)
        kind = f"json_type({self.column}, ?) IN ({_quoted(['text'] if is_date else check.kinds)})"
        if not check.test:
            return f"ifnull({kind}, 0)", (path,)
        value = f"json_extract({self.column}, ?)"
        if is_date:
            value = moment_sql(value)
        test = f"ifnull({kind} AND {value} {check.test}, 0)"
        return test, (path, path, *check.parameters)

    def _item(self, field: Field, check: _Check) -> tuple[str, tuple[Value, ...]]:
        """A check of the elements of an array."""
        if field in self.indexed:
            return self._row(field, check, "item ")
        path = json_path(field)
        is_date = check.kinds == (_DATE,)
        value = moment_sql("item.atom") if is_date else "item.atom"
        test = f" AND {value} {check.test}" if check.test else ""
        kinds = _quoted(["text"] if is_date else check.kinds)
        return (
            f"ifnull(json_type({self.column}, ?) = 'array', 0) AND EXISTS (SELECT 1 FROM "
            f"json_each({self.column}, ?) AS item WHERE item.type IN ({kinds}){test})",
            (path, path, *check.parameters),
        )

    def _row(self, field: Field, check: _Check, prefix: str = "") -> tuple[str, tuple[Value, ...]]:
        """A check of the rows of an indexed field."""
        kinds = _quoted(prefix + kind for kind in check.kinds)
        test = f" AND value {check.test}" if check.test else ""
        return (
            "documents.id IN (SELECT document FROM field_values "
            f"WHERE field = ? AND kind IN ({kinds}){test})",
            (self.indexed[field], *check.parameters),
        )

    def _existence(self, field: Field) -> tuple[str, tuple[Value, ...]]:
        if field in self.indexed:
            rows = "SELECT document FROM field_values WHERE field = ?"
            return f"documents.id IN ({rows})", (self.indexed[field],)
        return f"json_type({self.column}, ?) IS NOT NULL", (json_path(field),)


def compile_sql(
    node: Filter, column: str = "metadata", indexed: Mapping[Field, int] | None = None
) -> tuple[str, list[Value]]:
    """An SQL condition, 1 or 0 and never null, and its parameters.

    column: the JSON, as the statement around it names it.
    indexed: indexed fields → their numbers, see filters.fields; the statement reads `documents`.
    """
    compiled = _Source(column, indexed or {}).sql(node)
    return f"({compiled.text})", list(compiled.parameters)


def json_path(field: Field) -> str:
    """A SQLite JSON path; names are quoted, so they are never read as syntax."""
    return "$" + "".join(f'."{name}"' for name in field)


def _joined(parts: list[_Sql], *, loose: bool) -> _Sql:
    """Parts joined by AND, or if `loose` by OR: few parentheses, and the deepest part first.

    So a level takes at most one place of the parser's stack; after `x AND (` it would take three.
    """
    if not loose:
        parts = [
            _Sql(f"({part.text})", part.parameters, part.stack + 1) if part.loose else part
            for part in parts
        ]
    parts = sorted(parts, key=lambda part: -part.stack)
    return _Sql(
        (" OR " if loose else " AND ").join(part.text for part in parts),
        tuple(value for part in parts for value in part.parameters),
        max(part.stack + (2 if i else 0) for i, part in enumerate(parts)),
        loose,
    )


def _checks(node: Compare | Between | In | Like | Truthy) -> list[_Check]:
    """The ways for a test of a field's own value to hold."""
    match node:
        case Truthy():
            return [_Check(("true", *_NUMBER, "text"), "NOT IN (0, '')")]
        case Like(_, pattern):
            return [_Check(("text",), "GLOB ?", (_glob(pattern),))]
        case In(_, values):
            return _membership(values)
        case Between(_, Date() as low, Date() as high):
            return [_Check((_DATE,), "BETWEEN ? AND ?", (low.first, high.last))]
        case Between(_, low, high):
            assert not isinstance(low, Date) and not isinstance(high, Date)
            return [_Check(_kinds(low), "BETWEEN ? AND ?", (low, high))]
        case Compare(_, operator, value):
            return [_compared(operator, value)]


def _compared(operator: str, value: Value | Date) -> _Check:
    if isinstance(value, Date):
        if operator == "=":
            return _Check((_DATE,), "BETWEEN ? AND ?", (value.first, value.last))
        # A date is a period: later begins at its end, earlier ends at its start.
        bound = value.first if operator in ("<", ">=") else value.last
        return _Check((_DATE,), f"{operator} ?", (bound,))
    if value is None or isinstance(value, bool):
        return _Check(_kinds(value))
    return _Check(_kinds(value), f"{operator} ?", (value,))


def _membership(values: Iterable[Value | Date]) -> list[_Check]:
    """`in`: null, true and false by kind; numbers and texts together (never equal); dates."""
    words: dict[str, None] = {}
    plain: dict[Value, None] = {}
    dates: dict[Date, None] = {}
    for value in values:
        if isinstance(value, Date):
            dates[value] = None
        elif value is None or isinstance(value, bool):
            words |= dict.fromkeys(_kinds(value))
        else:
            plain[value] = None
    checks = [_Check(tuple(words))] if words else []
    if plain:
        marks = ", ".join("?" * len(plain))
        checks.append(_Check((*_NUMBER, "text"), f"IN ({marks})", tuple(plain)))
    return checks + [_compared("=", value) for value in dates]


def _kinds(value: Value) -> tuple[str, ...]:
    """The results of json_type for such a value."""
    if value is None:
        return ("null",)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return ("text",) if isinstance(value, str) else _NUMBER


def _quoted(kinds: Iterable[str]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


def _glob(pattern: str) -> str:
    """A LIKE pattern as one of GLOB, in which every letter is a set of its cases.

    SQLite's LIKE knows the cases of ASCII only.
    """
    parts, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and pattern[at + 1 : at + 2] in ("%", "_", "\\"):
            at += 1
            parts.append(pattern[at])
        elif character == "%":
            if parts[-1:] != ["*"]:  # two in a row mean the same as one
                parts.append("*")
        elif character == "_":
            parts.append("?")
        elif character in "*?[":
            parts.append(f"[{character}]")
        else:
            cases = _cases().get(character)
            parts.append(f"[{cases}]" if cases else character)
        at += 1
    return "".join(parts)


@cache
def _cases() -> dict[str, str]:
    """Letter → all letters that differ from it in case only, itself among them."""
    groups: dict[str, list[str]] = {}
    for character in map(chr, range(_LETTERS)):
        groups.setdefault(character.casefold(), []).append(character)
    return {c: "".join(group) for group in groups.values() if len(group) > 1 for c in group}
