"""The filter language: `year >= 2015 and lang in ('en', 'ko') and not draft`.

A filter is parsed to a small tree of frozen nodes and compiled to SQL with bound parameters; no
part of it is ever spliced into a statement. Grammar, loosest first:

    filter   = conjunct { "or" conjunct }
    conjunct = negation { "and" negation }
    negation = "not" negation | "(" filter ")" | test
    test     = field [ ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=") value
                     | ["not"] "in" "(" value { "," value } ")" ]
    field    = name { "." name } | `quoted name`         a dot goes into nested metadata
    value    = 'text' | "text" | number | true | false | null

Two-valued logic: a test on a field that a document lacks is false, so `not draft` holds for
documents without `draft`, and `lang != 'en'` for documents without `lang`. Values compare with
their own kind only: `year >= 2015` is false where year is the text "2016".
A field alone (`draft`) holds where it is true, a number other than 0, or a non-empty text.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from searchengine.errors import FilterError

Value = str | int | float | bool | None

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<quoted>`[^`]+`(?:\.(?:`[^`]+`|\w+))*)
    | (?P<word>[^\W\d]\w*(?:\.(?:`[^`]+`|\w+))*)
    | (?P<operator><=|>=|==|!=|<>|[=<>(),])
    )""",
    re.VERBOSE,
)
_OPERATORS = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}
_NUMBER = "'integer', 'real'"
_KINDS = {
    bool: "'true', 'false'",
    str: "'text'",
    int: _NUMBER,
    float: _NUMBER,
    type(None): "'null'",
}
_RESERVED = {"and", "or", "not", "in", *_CONSTANTS}
# SQLite allows an expression 1,000 levels deep and 32,766 bound parameters.
_MAX_DEPTH = 50
_MAX_TESTS = 400
_MAX_VALUES = 30_000


@dataclass(frozen=True, slots=True)
class Compare:
    """`field operator value`, the operator one of = != < <= > >=."""

    field: tuple[str, ...]
    operator: str
    value: Value


@dataclass(frozen=True, slots=True)
class In:
    """`field in (values)`."""

    field: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Truthy:
    """A field alone."""

    field: tuple[str, ...]


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


Filter = Compare | In | Truthy | And | Or | Not


def parse(source: str) -> Filter:
    """The tree of a filter expression. Raises FilterError with a caret under the mistake."""
    if not source.isprintable() and any("\ud800" <= c <= "\udfff" for c in source):
        raise FilterError("in the filter: half a surrogate pair, which is no character")
    return _Parser(source).parse()


def compile_sql(node: Filter, column: str = "metadata") -> tuple[str, list[Value]]:
    """An SQL condition over a JSON column, 1 or 0 and never null, and its parameters."""
    match node:
        case And(operands) | Or(operands):
            parts = [compile_sql(operand, column) for operand in operands]
            word = " and " if isinstance(node, And) else " or "
            return f"({word.join(sql for sql, _ in parts)})", [v for _, p in parts for v in p]
        case Not(operand):
            inner, parameters = compile_sql(operand, column)
            return f"(not {inner})", parameters
        case Truthy(field):
            kind, value = f"json_type({column}, ?)", f"json_extract({column}, ?)"
            return (
                f"(case {kind} when 'true' then 1 when 'integer' then {value} != 0 "
                f"when 'real' then {value} != 0 when 'text' then {value} != '' else 0 end)",
                [_json_path(field)] * 4,
            )
        case Compare(field, "!=", value):
            return compile_sql(Not(Compare(field, "=", value)), column)
        case Compare(field, operator, value):
            return _typed_test(field, f"{operator} ?", [value], column)
        case In(field, members):
            groups: dict[str, list[Value]] = {}
            for member in members:
                groups.setdefault(_KINDS[type(member)], []).append(member)
            tests = [
                _typed_test(field, f"in ({', '.join('?' * len(group))})", group, column)
                for group in groups.values()
            ]
            return f"({' or '.join(sql for sql, _ in tests)})", [v for _, p in tests for v in p]


def _typed_test(
    field: tuple[str, ...], test: str, values: list[Value], column: str
) -> tuple[str, list[Value]]:
    """`test` on a field, false where the field is missing or of another kind than the values."""
    path = _json_path(field)
    kind = f"ifnull(json_type({column}, ?) in ({_KINDS[type(values[0])]}), 0)"
    if values[0] is None:
        return f"({kind})", [path]
    return f"({kind} and json_extract({column}, ?) {test})", [path, path, *values]


def _json_path(field: tuple[str, ...]) -> str:
    """A SQLite JSON path; names are quoted, so that none is taken for syntax."""
    return "$" + "".join(f'."{name}"' for name in field)


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = list(self._tokens())
        self.at = 0
        self.depth = 0
        self.tests = 0
        self.values = 0

    def _tokens(self) -> Iterator[tuple[str, str, int]]:
        position, end = 0, len(self.source.rstrip())
        while position < end:
            found = _TOKEN.match(self.source, position)
            if found is None:
                start = end - len(self.source[position:end].lstrip())
                raise self._error("cannot read this", start)
            kind = found.lastgroup or ""
            yield kind, found[kind], found.start(kind)
            position = found.end()

    def _error(self, what: str, position: int) -> FilterError:
        line = self.source.replace("\n", " ").replace("\t", " ")
        return FilterError(
            f"in the filter: {what}\n  {line}\n  {' ' * position}^\n"
            "A filter reads like: year >= 2015 and lang in ('en', 'ko') and not draft"
        )

    def _peek(self) -> tuple[str, str, int]:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return "end", "", len(self.source.rstrip())

    def _keyword(self, *words: str) -> bool:
        """Take the next tokens if they are these words."""
        ahead = self.tokens[self.at : self.at + len(words)]
        if [(kind, text.lower()) for kind, text, _ in ahead] == [("word", word) for word in words]:
            self.at += len(words)
            return True
        return False

    def _symbol(self, symbol: str) -> bool:
        if self._peek()[:2] == ("operator", symbol):
            self.at += 1
            return True
        return False

    def parse(self) -> Filter:
        if not self.tokens:
            raise self._error("it is empty; leave it out to search everything", 0)
        node = self._or()
        kind, text, position = self._peek()
        if kind != "end":
            raise self._error(f"expected 'and', 'or' or the end, got {text}", position)
        return node

    def _or(self) -> Filter:
        return self._chain("or", self._and, Or)

    def _and(self) -> Filter:
        return self._chain("and", self._negation, And)

    def _chain(
        self, word: str, operand: Callable[[], Filter], join: type[And] | type[Or]
    ) -> Filter:
        operands = [operand()]
        while self._keyword(word):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else join(tuple(operands))

    def _negation(self) -> Filter:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} levels of parentheses", self._peek()[2])
        if self._keyword("not"):
            node: Filter = Not(self._negation())
        elif self._symbol("("):
            node = self._or()
            self._close()
        else:
            node = self._test()
        self.depth -= 1
        return node

    def _close(self) -> None:
        if not self._symbol(")"):
            raise self._error("expected )", self._peek()[2])

    def _test(self) -> Filter:
        self.tests += 1
        if self.tests > _MAX_TESTS:
            raise self._error(f"more than {_MAX_TESTS} tests; use in (…)", self._peek()[2])
        field = self._field()
        if self._keyword("in"):
            return In(field, self._values())
        if self._keyword("not", "in"):
            return Not(In(field, self._values()))
        kind, text, position = self._peek()
        if kind != "operator" or text not in _OPERATORS:
            return Truthy(field)
        self.at += 1
        operator, value = _OPERATORS[text], self._value()
        if operator not in ("=", "!=") and (value is None or isinstance(value, bool)):
            raise self._error("true, false and null compare with = and != only", position)
        return Compare(field, operator, value)

    def _field(self) -> tuple[str, ...]:
        kind, text, position = self._peek()
        if kind not in ("word", "quoted") or (kind == "word" and text.lower() in _RESERVED):
            raise self._error(f"expected a field name, got {text or 'the end'}", position)
        self.at += 1
        names = re.findall(r"`([^`]+)`|(\w+)", text)
        field = tuple(quoted or plain for quoted, plain in names)
        if any(set(name) & set('"\\\0') for name in field):
            raise self._error('a field name cannot hold " or a backslash', position)
        return field

    def _values(self) -> tuple[Value, ...]:
        if not self._symbol("("):
            raise self._error("expected ( after 'in'", self._peek()[2])
        values = [self._value()]
        while self._symbol(","):
            values.append(self._value())
        self._close()
        return tuple(values)

    def _value(self) -> Value:
        kind, text, position = self._peek()
        self.at += 1
        self.values += 1
        if self.values > _MAX_VALUES:
            raise self._error(f"more than {_MAX_VALUES} values", position)
        if kind == "number":
            number = float(text) if re.search(r"[.eE]", text) else int(text)
            if abs(number) == math.inf or (isinstance(number, int) and abs(number) >= 2**63):
                raise self._error("the number is too large", position)
            return number
        if kind == "text":
            return text[1:-1].replace(text[0] * 2, text[0])
        if kind == "word" and text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        hint = f" (write text in quotes: '{text}')" if kind == "word" else ""
        raise self._error(f"expected a value, got {text or 'the end'}{hint}", position)
