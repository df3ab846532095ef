"""The tree of a filter, and its meaning in SQL: for all databases (Dialect), and for SQLite.

In SQLite a test is read either from the JSON of `documents.metadata`, or, where the field is
indexed, from the rows that filters.fields keeps; both give the same result. All values of the user
are bound as parameters, none is written into the statement. A condition is 1 or 0 and never null.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from searchengine.backends.filters.dates import Date, moment_sql

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

COLUMNS: dict[Field, str] = {("_id",): "key", ("title",): "title", ("text",): "text"}
"""The fields of a document that are not metadata → their columns in `documents`, always a text."""


def fields_of(node: Filter) -> list[Field]:
    """The fields of a filter, in their order."""
    if isinstance(node, And | Or):
        return [field for operand in node.operands for field in fields_of(operand)]
    return fields_of(node.operand) if isinstance(node, Not) else [node.field]


# Beside an argument that is a constant, SQLite keeps a copy of the others for each call: a filter
# of many patterns would keep a long text as many times.
_APART = "(SELECT ?)"
_NUMBER = ("integer", "real")
_DATE = "date"
_LETTERS = 0x1F000  # no letter beyond this has cases


@dataclass(frozen=True, slots=True)
class Check:
    """One way for a test to hold: the value has one of these kinds and meets `operator`.

    The kinds are SQLite's json_type, or a date: a number of microseconds. The operator is one of =
    < <= > >=, between, in, like, or truthy (neither 0 nor an empty text); "" if the kind suffices.
    `values` are what follows it; of like, the pattern.
    """

    kinds: tuple[str, ...]
    operator: str = ""
    values: tuple[Value, ...] = ()

    @property
    def is_date(self) -> bool:
        """Whether the value must be a date."""
        return self.kinds == (_DATE,)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition and its parameters.

    `stack`: the places in the stack of SQLite's parser, which has 100, that the text around its
    deepest test takes. `loose`: an AND beside it needs parentheses.
    """

    text: str
    parameters: tuple[Any, ...]
    stack: int = 0
    loose: bool = False


class Dialect(ABC):
    """How a database reads the values of metadata fields; the meaning of a tree is common to all.

    Attributes:
        nothing: a condition that is always false.
        negation: the opposite of a condition, which stands for {}.
    """

    nothing: str
    negation: str

    @abstractmethod
    def column(self, name: str, check: Check) -> Condition:
        """A check of a text in a column of `documents`."""

    @abstractmethod
    def value(self, field: Field, check: Check) -> Condition:
        """A check of a metadata field's own value."""

    @abstractmethod
    def item(self, field: Field, check: Check) -> Condition:
        """A check of the elements of an array."""

    @abstractmethod
    def existence(self, field: Field) -> Condition:
        """Whether a field exists, even if it is null."""

    def condition(self, node: Filter, holds: bool = True) -> Condition:
        """The condition that a node holds, or that it does not."""
        match node:
            case Not(operand):
                return self.condition(operand, not holds)
            case And(operands) | Or(operands):
                parts = [self.condition(operand, holds) for operand in operands]
                return _joined(parts, loose=isinstance(node, And) is not holds)
            case Compare(field, "!=", value):
                return self.condition(Compare(field, "=", value), not holds)
            case Contains(field, value):
                checks = [self.item(field, compared("=", value))]
            case _ if node.field in COLUMNS:
                checks = [self.column(COLUMNS[node.field], check) for check in _column_checks(node)]
            case Exists(field):
                checks = [self.existence(field)]
            case _:
                checks = [self.value(node.field, check) for check in checks_of(node)]
        text = " OR ".join(check.text for check in checks) or self.nothing
        parameters = tuple(value for check in checks for value in check.parameters)
        return Condition(f"({text})" if holds else self.negation.format(text), parameters)


@dataclass(frozen=True, slots=True)
class _Sqlite(Dialect):
    """The JSON and the indexed fields that values are read from."""

    nothing, negation = "0", "(NOT ({}))"
    json: str
    indexed: Mapping[Field, int]

    def column(self, name: str, check: Check) -> Condition:
        test, parameters = _test(check)
        if name != "key":  # whose tests may use its index
            test = test.replace("GLOB ?", f"GLOB {_APART}")
        return Condition(f"documents.{name} {test}", parameters)

    def value(self, field: Field, check: Check) -> Condition:
        if field in self.indexed:
            return self._row(field, check)
        path = json_path(field)
        kinds = _quoted(["text"] if check.is_date else check.kinds)
        bound = _APART if check.operator == "like" else "?"
        kind = f"json_type({self.json}, {bound}) IN ({kinds})"
        test, parameters = _test(check)
        if not test:
            return Condition(f"ifnull({kind}, 0)", (path,))
        test = test.replace("GLOB ?", f"GLOB {_APART}")
        value = f"json_extract({self.json}, {bound})"
        if check.is_date:
            value = moment_sql(value)
        return Condition(f"ifnull({kind} AND {value} {test}, 0)", (path, path, *parameters))

    def item(self, field: Field, check: Check) -> Condition:
        if field in self.indexed:
            return self._row(field, check, "item ")
        path = json_path(field)
        value = moment_sql("item.atom") if check.is_date else "item.atom"
        test, parameters = _test(check)
        test = f" AND {value} {test}" if test else ""
        kinds = _quoted(["text"] if check.is_date else check.kinds)
        return Condition(
            f"ifnull(json_type({self.json}, ?) = 'array', 0) AND EXISTS (SELECT 1 FROM "
            f"json_each({self.json}, ?) AS item WHERE item.type IN ({kinds}){test})",
            (path, path, *parameters),
        )

    def existence(self, field: Field) -> Condition:
        if field in self.indexed:
            rows = "SELECT document FROM field_values WHERE field = ?"
            return Condition(f"documents.id IN ({rows})", (self.indexed[field],))
        return Condition(f"json_type({self.json}, ?) IS NOT NULL", (json_path(field),))

    def _row(self, field: Field, check: Check, prefix: str = "") -> Condition:
        """A check of the rows of an indexed field."""
        kinds = _quoted(prefix + kind for kind in check.kinds)
        test, parameters = _test(check)
        test = f" AND value {test}" if test else ""
        return Condition(
            "documents.id IN (SELECT document FROM field_values "
            f"WHERE field = ? AND kind IN ({kinds}){test})",
            (self.indexed[field], *parameters),
        )


def compile_sql(
    node: Filter, json: str = "metadata", indexed: Mapping[Field, int] | None = None
) -> tuple[str, list[Value]]:
    """An SQL condition of SQLite over `documents`, 1 or 0 and never null, and its parameters.

    json: the metadata, as the statement around it names it.
    indexed: indexed fields → their numbers, see filters.fields.
    """
    compiled = _Sqlite(json, indexed or {}).condition(node)
    return f"({compiled.text})", list(compiled.parameters)


def _test(check: Check) -> tuple[str, tuple[Value, ...]]:
    """What follows the value in SQLite, and its parameters; "" if the kind suffices."""
    match check.operator:
        case "truthy":
            return "NOT IN (0, '')", ()
        case "like":
            return "GLOB ?", (_glob(str(check.values[0])),)
        case "between":
            return "BETWEEN ? AND ?", tuple(map(_bound, check.values))
        case "in":
            return f"IN ({', '.join('?' * len(check.values))})", tuple(map(_bound, check.values))
        case "":
            return "", ()
        case operator:
            return f"{operator} ?", tuple(map(_bound, check.values))


def _bound(value: Value) -> Value:
    """A value as SQLite takes it: it reads whole numbers beyond 64 bits in JSON as floats, too."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def json_path(field: Field) -> str:
    """A SQLite JSON path; names are quoted, so they are never read as syntax."""
    return "$" + "".join(f'."{name}"' for name in field)


def _joined(parts: list[Condition], *, loose: bool) -> Condition:
    """Parts joined by AND, or if `loose` by OR: few parentheses, and the deepest part first.

    So a level takes at most one place of the parser's stack; after `x AND (` it would take three.
    """
    if not loose:
        parts = [
            Condition(f"({part.text})", part.parameters, part.stack + 1) if part.loose else part
            for part in parts
        ]
    parts = sorted(parts, key=lambda part: -part.stack)
    return Condition(
        (" OR " if loose else " AND ").join(part.text for part in parts),
        tuple(value for part in parts for value in part.parameters),
        max(part.stack + (2 if i else 0) for i, part in enumerate(parts)),
        loose,
    )


def _column_checks(node: Compare | Between | In | Like | Exists | Truthy) -> list[Check]:
    """The ways for a test of a column to hold. A number compares with keys as the text it is."""
    if isinstance(node, Exists | Truthy):
        return [Check(("text",), ">", ("",))]
    checks = []
    for check in checks_of(node):
        values = tuple(
            str(value) if node.field == ("_id",) and type(value) is int else value
            for value in check.values
        )
        texts = tuple(value for value in values if isinstance(value, str))
        if texts if check.operator == "in" else texts and texts == values:
            checks.append(Check(("text",), check.operator, texts))
    return checks


def checks_of(node: Compare | Between | In | Like | Truthy) -> list[Check]:
    """The ways for a test of a field's own value to hold."""
    match node:
        case Truthy():
            return [Check(("true", *_NUMBER, "text"), "truthy")]
        case Like(_, pattern):
            return [Check(("text",), "like", (pattern,))]
        case In(_, values):
            return _membership(values)
        case Between(_, Date() as low, Date() as high):
            return [Check((_DATE,), "between", (low.first, high.last))]
        case Between(_, low, high):
            assert not isinstance(low, Date) and not isinstance(high, Date)
            return [Check(_kinds(low), "between", (low, high))]
        case Compare(_, operator, value):
            return [compared(operator, value)]


def compared(operator: str, value: Value | Date) -> Check:
    """The way for a comparison to hold."""
    if isinstance(value, Date):
        if operator == "=":
            return Check((_DATE,), "between", (value.first, value.last))
        # A date is a period: later begins at its end, earlier ends at its start.
        bound = value.first if operator in ("<", ">=") else value.last
        return Check((_DATE,), operator, (bound,))
    if value is None or isinstance(value, bool):
        return Check(_kinds(value))
    return Check(_kinds(value), operator, (value,))


def _membership(values: Iterable[Value | Date]) -> list[Check]:
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
    checks = [Check(tuple(words))] if words else []
    if plain:
        checks.append(Check((*_NUMBER, "text"), "in", tuple(plain)))
    return checks + [compared("=", value) for value in dates]


def _kinds(value: Value) -> tuple[str, ...]:
    """The results of json_type for such a value."""
    if value is None:
        return ("null",)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return ("text",) if isinstance(value, str) else _NUMBER


def _quoted(kinds: Iterable[str]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


def like_parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """A LIKE pattern in parts: a letter with its cases, or a wildcard ("%" or "_"), marked True.

    No database knows the cases of all letters in every locale, so they are listed.
    """
    at, before = 0, ""
    while at < len(pattern):
        character = pattern[at]
        wildcard = character in "%_"
        if character == "\\" and pattern[at + 1 : at + 2] in ("%", "_", "\\"):
            at += 1
            character = pattern[at]
        if wildcard:
            if not character == before == "%":  # two in a row mean the same as one
                yield character, True
        else:
            yield _cases().get(character, character), False
        before = character if wildcard else ""
        at += 1


def _glob(pattern: str) -> str:
    """A LIKE pattern as one of GLOB, in which every letter is a set of its cases."""
    wildcards = {"%": "*", "_": "?"}
    return "".join(
        wildcards[part] if wildcard else f"[{part}]" if len(part) > 1 or part in "*?[" else part
        for part, wildcard in like_parts(pattern)
    )


@cache
def _cases() -> dict[str, str]:
    """Letter → all letters that differ from it in case only, itself among them."""
    groups: dict[str, list[str]] = {}
    for character in map(chr, range(_LETTERS)):
        groups.setdefault(character.casefold(), []).append(character)
    return {c: "".join(group) for group in groups.values() if len(group) > 1 for c in group}
