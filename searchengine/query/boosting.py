"""What a score may also count: an expression over metadata fields that multiplies it.

    0.9 ** age_days(date)      2 if source == 'journal' else 1      log(2 + coalesce(stars, 0))

    value    = number | 'text' | field | value operator value | -value | function(value, …)
             | value if condition else value
    field    = name { "." name } | field("any name")
    operator = + - * / **
    function = abs | age_days | coalesce | log | max | min | sqrt
    condition = value (== | != | < | <= | > | >=) value | value [not] in (value, …)
             | condition (and | or) condition | not condition
             | value          a number other than 0, or a text that is not empty

Python's own parser reads it; then each node becomes a function of a document's values, and nothing
is ever evaluated by Python. Numbers are floats, and true and false are 1 and 0.
"""

import ast
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from searchengine.backends.contract import Snapshot
from searchengine.backends.filters.dates import Date
from searchengine.backends.filters.parser import field_name
from searchengine.backends.filters.sql import COLUMNS, Field
from searchengine.backends.listing import unknown_fields
from searchengine.errors import QueryError
from searchengine.query.paging import Ranked

Value = float | str
Values = Mapping[Field, Any]
"""Field → value of a document; None: it has none."""
Node = Callable[[Values, float], Value]
"""The values of a document and the present, in seconds since 1970 → a value."""

BOOST = "boost"
"""The name of the factor in `Hit.scores`."""
MAX_LENGTH, MAX_DEPTH = 1000, 100
"""Characters and levels of an expression."""
_DAY, _HOUR = 24 * 60 * 60, 60 * 60
_COALESCE = "write coalesce({}, …) with the value that counts instead"


class _Unusable(Exception):
    """Why the expression has no value for a document, as a part of a sentence."""


class _Missing(_Unusable):
    """The document lacks a field."""


@dataclass(frozen=True, slots=True)
class Boost:
    """A compiled expression.

    Attributes:
        source: as it was written.
        fields: those that it reads.
        node: computes it.
    """

    source: str
    fields: tuple[Field, ...]
    node: Node

    def applied(self, snapshot: Snapshot, documents: Sequence[Ranked], name: str) -> list[Ranked]:
        """Documents by (−score · boost, order before). A score below 0 stays as it is.

        `name`: of the score before, in `scores`. Raises QueryError for a document without a boost
        of 0 or more.
        """
        ids = [ranked.passage.document for ranked in documents]
        factors = self.factors(snapshot, ids)
        boosted = [
            Ranked(
                ranked.score * max(factor, 0) if ranked.score > 0 else ranked.score,
                ranked.passage,
                {**ranked.scores, name: ranked.score, BOOST: factor},
            )
            for ranked, factor in zip(documents, factors, strict=True)
        ]
        return sorted(boosted, key=lambda ranked: -ranked.score)  # stable

    def factors(self, snapshot: Snapshot, ids: Sequence[int]) -> list[float]:
        """The boost of each document. Raises QueryError."""
        named = {path: field_name(path) for path in self.fields}
        columns = {path: snapshot.store.values(ids, name) for path, name in named.items()}
        # So that the pages of a question agree, time goes by hours.
        now = time.time() // _HOUR * _HOUR
        factors = []
        for document in ids:
            values = {path: _plain(column[document]) for path, column in columns.items()}
            try:
                factors.append(_factor(self.node, values, now))
            except _Unusable as error:
                self._refuse(snapshot, document, error)
        return factors

    def _refuse(self, snapshot: Snapshot, document: int, error: _Unusable) -> NoReturn:
        if isinstance(error, _Missing):
            for path in self.fields:
                for note in unknown_fields(snapshot.store, field_name(path)):
                    raise QueryError(f"boost: {note}") from None
        (key,) = snapshot.store.keys_of([document])
        raise QueryError(f"boost: the document {key!r:.80} {error}") from None


def _factor(node: Node, values: Values, now: float) -> float:
    try:
        factor = _number(node(values, now))
    except ZeroDivisionError:
        raise _Unusable("divides by zero") from None
    except OverflowError:
        raise _Unusable("has a boost too great for a number") from None
    if not (math.isfinite(factor) and factor >= 0):
        raise _Unusable(f"has the boost {factor:g}; it must be a number of at least 0")
    return factor


def _plain(stored: Any) -> Any:
    """What Tables.values returns as a float, a text, None (missing), or a list: neither."""
    kind, value = stored
    if kind in ("missing", "null"):
        return None
    if kind in ("array", "object"):
        return [value]
    try:
        return value if isinstance(value, str) else float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


@lru_cache(256)
def parse(source: str) -> Boost:
    """An expression, compiled. Raises QueryError that says what is wrong where."""
    if len(source) > MAX_LENGTH:
        raise QueryError(f"boost has {len(source):,} characters, at most {MAX_LENGTH:,} are read")
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise QueryError(
            f"boost {source!r:.80} cannot be read; write an expression such as "
            "0.9 ** age_days(date)"
        ) from None
    if _depth(tree) > MAX_DEPTH:
        raise QueryError(f"boost is nested more than {MAX_DEPTH} levels deep")
    compiler = _Compiler()
    node = compiler.value(tree.body)
    return Boost(source, tuple(dict.fromkeys(compiler.fields)), node)


def _depth(node: ast.AST) -> int:
    level, depth = [node], 0
    while level:
        level, depth = [child for each in level for child in ast.iter_child_nodes(each)], depth + 1
    return depth


class _Compiler:
    """From Python's syntax tree to functions; collects the fields on the way."""

    def __init__(self) -> None:
        self.fields: list[Field] = []

    def value(self, node: ast.expr) -> Node:
        """What computes a number or a text."""
        match node:
            case ast.Constant(int() | float() | str() as constant):
                number = constant if isinstance(constant, str) else _constant(constant)
                return lambda values, now: number
            case ast.Name() | ast.Attribute():
                return self._field(self._path(node), node)
            case ast.Call(ast.Name(name), arguments, []):
                return self._call(name, arguments, node)
            case ast.UnaryOp(ast.USub(), operand):
                negated = self.value(operand)
                return lambda values, now: -_number(negated(values, now))
            case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
                compute = _OPERATORS[type(kind)]
                first, second = self.value(left), self.value(right)
                return lambda values, now: compute(
                    _number(first(values, now)), _number(second(values, now))
                )
            case ast.IfExp(test, body, orelse):
                condition, yes, no = self._condition(test), self.value(body), self.value(orelse)
                return lambda values, now: (yes if condition(values, now) else no)(values, now)
        self._refuse(node)

    def _condition(self, node: ast.expr) -> Callable[[Values, float], bool]:
        match node:
            case ast.BoolOp(kind, operands):
                every = [self._condition(operand) for operand in operands]
                together = all if isinstance(kind, ast.And) else any
                return lambda values, now: together(each(values, now) for each in every)
            case ast.UnaryOp(ast.Not(), operand):
                negated = self._condition(operand)
                return lambda values, now: not negated(values, now)
            case ast.Compare(left, [kind], [right]) if type(kind) in _COMPARISONS:
                compare = _COMPARISONS[type(kind)]
                first, second = self.value(left), self.value(right)
                return lambda values, now: compare(first(values, now), second(values, now))
            case ast.Compare(
                left, [ast.In() | ast.NotIn() as kind], [ast.Tuple() | ast.List() as of]
            ):
                first, others = self.value(left), [self.value(item) for item in of.elts]
                wanted = isinstance(kind, ast.In)
                return lambda values, now: (
                    any(first(values, now) == other(values, now) for other in others) == wanted
                )
        held = self.value(node)
        return lambda values, now: bool(held(values, now))

    def _field(self, path: Field, node: ast.expr) -> Node:
        if path in COLUMNS:
            raise QueryError(f"boost takes metadata fields, got {path[0]}")
        self.fields.append(path)
        name = field_name(path)

        def field(values: Values, now: float) -> Value:
            value = values[path]
            if value is None:
                raise _Missing(f"has no {name}; {_COALESCE.format(name)}")
            if isinstance(value, list):
                raise _Unusable(f"has no number or text as {name}")
            return value  # type: ignore[no-any-return]

        return field

    def _path(self, node: ast.expr) -> Field:
        match node:
            case ast.Name(name):
                return (name,)
            case ast.Attribute(owner, name):
                return (*self._path(owner), name)
        self._refuse(node)

    def _call(self, name: str, arguments: list[ast.expr], node: ast.expr) -> Node:
        match name, arguments:
            case "field", [ast.Constant(str(text))] if text:
                return self._field((text,), node)
            case "coalesce", [_, _, *_]:
                return _coalesced([self.value(argument) for argument in arguments])
            case "age_days", [_]:
                return _age(self.value(arguments[0]), ast.unparse(arguments[0]))
            case (("min" | "max"), [_, _, *_]):
                pass
            case (("abs" | "log" | "sqrt"), [_]):
                pass
            case _:
                if name in _FUNCTIONS:
                    raise QueryError(f"boost: write {_FUNCTIONS[name]}, got {ast.unparse(node)}")
                known = ", ".join(sorted(_FUNCTIONS))
                raise QueryError(f"boost has no function {name}; its functions are {known}")
        compute, shown = _COMPUTED[name], ast.unparse(node)
        operands = [self.value(argument) for argument in arguments]

        def call(values: Values, now: float) -> Value:
            numbers = [_number(operand(values, now)) for operand in operands]
            try:
                return compute(*numbers)
            except ValueError:
                raise _Unusable(f"has {numbers[0]:g} in {shown}, which has no {name}") from None

        return call

    def _refuse(self, node: ast.expr) -> NoReturn:
        raise QueryError(
            f"boost takes numbers, texts, fields, + - * / **, if and else, and functions, got "
            f"{ast.unparse(node)}"
        )


def _power(base: float, exponent: float) -> float:
    result = base**exponent
    if isinstance(result, complex):
        raise _Unusable("has the root of a number below 0")
    return result  # type: ignore[no-any-return]


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}
_COMPUTED: dict[str, Callable[..., float]] = {
    "abs": abs,
    "log": math.log,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}
_FUNCTIONS = {
    "abs": "abs(number)",
    "age_days": "age_days(date)",
    "coalesce": "coalesce(field, value)",
    "field": "field('name')",
    "log": "log(number)",
    "max": "max(number, number)",
    "min": "min(number, number)",
    "sqrt": "sqrt(number)",
}


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    def compared(left: Value, right: Value) -> bool:
        if isinstance(left, str) != isinstance(right, str):
            raise _Unusable(f"has {left!r:.40} to compare with {right!r:.40}")
        return compare(left, right)

    return compared


_COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
}


def _constant(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise QueryError(f"boost: {number!s:.20}… is too great for a number") from None


def _number(value: Value) -> float:
    if isinstance(value, str):
        raise _Unusable(f"has the text {value!r:.60} where a number is needed")
    return value


def _coalesced(operands: Sequence[Node]) -> Node:
    """The first value that the document has, of the kind of the last: a number or a text."""
    *firsts, last = operands

    def coalesced(values: Values, now: float) -> Value:
        try:
            default = last(values, now)
        except _Unusable:
            default = None
        for operand in firsts:
            try:
                value = operand(values, now)
            except _Unusable:
                continue
            if default is None or isinstance(value, str) == isinstance(default, str):
                return value
        return last(values, now)

    return coalesced


def _age(operand: Node, shown: str) -> Node:
    """Days from a date to the present, 0 for one in the future."""

    def age(values: Values, now: float) -> Value:
        value = operand(values, now)
        try:
            first = Date.parse(value if isinstance(value, str) else "").first
        except ValueError:
            raise _Unusable(
                f"has {value!r:.60} as {shown}; age_days takes a date such as 2020-03-01"
            ) from None
        return max(0.0, (now - first / 1e6) / _DAY)

    return age
