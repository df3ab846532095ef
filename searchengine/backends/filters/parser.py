"""The filter language → a small tree → SQL over the metadata column (JSON).

    year >= 2015 and lang in ('en', 'ko') and not draft

    filter   = chain { "or" chain }
    chain    = negation { "and" negation }
    negation = "not" negation | "(" filter ")" | test
    test     = "exists" "(" field ")"
             | field [ operator value
                     | ["not"] "in" "(" value { "," value } ")"
                     | ["not"] "between" value "and" value
                     | ["not"] "like" text
                     | ["not"] "contains" value ]
    field    = name { "." name } | `quoted name`         a dot goes into nested metadata
    value    = text | number | true | false | null | "date" "(" text ")"
    text     = 'text' | "text"

Two-valued logic: a test on a field that a document lacks is false, so `not draft` holds for
documents without `draft`, and `lang != 'en'` for documents without `lang`. Values compare only
with values of their type: `year >= 2015` is false where year is the text "2016".
A field alone (`draft`) holds where it is true, a number other than 0, or a non-empty text.
The tree and its SQL: filters.sql. Dates: filters.dates.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator

from searchengine.backends.filters.dates import Date
from searchengine.backends.filters.sql import (
    COLUMNS,
    And,
    Between,
    Compare,
    Contains,
    Exists,
    Field,
    Filter,
    In,
    Like,
    Not,
    Or,
    Truthy,
    Value,
)
from searchengine.errors import FilterError

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
_PLAIN_FIELD = re.compile(r"[^\W\d]\w*(\.\w+)*")
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
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}
_RESERVED = {"and", "or", "not", "in", *_CONSTANTS}
_INFIX = ("in", "between", "like", "contains")
_HINTS = {
    "is": "; null is a value: year = null, and a document without the field: not exists(year)",
    "exists": "; write exists(year)",
    "&&": "; write and",
    "||": "; write or",
    "matches": "; write like 'deep%'",
    "ilike": "; write like, which ignores case",
    "startswith": "; write like 'deep%'",
    "regexp": "; write like 'deep%'",
}
_CHAIN = "write year > 2010 and year < 2015, or year between 2011 and 2014"
# SQLite's parser holds 100 things at once, an expression is 1,000 levels deep at most, and
# 32,766 parameters can be bound: see filters.sql for what a level and a test take.
_MAX_DEPTH = 50
_MAX_TESTS = 400
_MAX_VALUES = 30_000
_MAX_PATTERN = 256  # matching may take the product of pattern and text
_SHOWN = 60  # characters to either side of a mistake


def parse(source: str) -> Filter:
    """The tree of a filter expression. Raises FilterError with a caret under the mistake."""
    if not source.isprintable() and any("\ud800" <= c <= "\udfff" for c in source):
        raise FilterError("in the filter: half of a surrogate pair, which is not a character")
    if "\0" in source:
        raise FilterError(
            "in the filter: the character U+0000, which no metadata contains; leave it out"
        )
    return _Parser(source).parse()


def field_named(name: str) -> Field:
    """A field as filters name it (`year`, `author.name`) → its path of names.

    Raises FilterError if it is not the name of a field.
    """
    node = parse(name)
    if not isinstance(node, Truthy):
        raise FilterError(f"expected the name of a field, got {_short(name)}")
    return node.field


def field_name(field: Field) -> str:
    """A field as filters name it: the opposite of `field_named`."""
    name = ".".join(field)
    if _PLAIN_FIELD.fullmatch(name) and name.lower() not in _RESERVED and "." not in "".join(field):
        return name
    return ".".join(f"`{part}`" for part in field)


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
            match = _TOKEN.match(self.source, position)
            if match is None:
                start = end - len(self.source[position:end].lstrip())
                hint = _HINTS.get(self.source[start : start + 2], "")
                raise self._error(f"cannot read this{hint}", start)
            kind = match.lastgroup or ""
            yield kind, match[kind], match.start(kind)
            position = match.end()

    def _error(self, what: str, position: int) -> FilterError:
        line, caret = _excerpt(self.source, position)
        return FilterError(
            f"in the filter: {what}\n  {line}\n  {caret}\n"
            "A filter reads like: year >= 2015 and lang in ('en', 'ko') and not draft"
        )

    def _peek(self, ahead: int = 0) -> tuple[str, str, int]:
        if self.at + ahead < len(self.tokens):
            return self.tokens[self.at + ahead]
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

    def _function(self, word: str) -> bool:
        """Take the next tokens if they are this word and an opening parenthesis."""
        if self._peek(1)[:2] == ("operator", "(") and self._keyword(word):
            self.at += 1
            return True
        return False

    def parse(self) -> Filter:
        if not self.tokens:
            raise self._error("it is empty; leave it out to search everything", 0)
        node = self._or()
        kind, text, position = self._peek()
        if kind != "end":
            hint = _HINTS.get(text.lower(), "")
            raise self._error(
                f"expected 'and', 'or' or the end, got {_short(text)}{hint}", position
            )
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

    def _count_test(self) -> None:
        self.tests += 1
        if self.tests > _MAX_TESTS:
            raise self._error(f"more than {_MAX_TESTS} tests; use in (…)", self._peek()[2])

    def _test(self) -> Filter:
        self._count_test()
        if self._function("exists"):
            field = self._field()
            self._close()
            return Exists(field)
        field = self._field()
        negated = self._peek(1)[1].lower() in _INFIX and self._keyword("not")
        kind, text, position = self._peek()
        word = text.lower()
        if kind == "word" and word in _INFIX:
            self.at += 1
            node = self._infix(field, word)
            return Not(node) if negated else node
        if kind != "operator" or text not in _OPERATORS:
            return Truthy(field)
        self.at += 1
        operator, value = _OPERATORS[text], self._value()
        if operator not in ("=", "!=") and (value is None or isinstance(value, bool)):
            raise self._error("true, false and null compare with = and != only", position)
        kind, text, position = self._peek()
        if kind == "operator" and text in _OPERATORS:
            raise self._error(f"one comparison at a time; {_CHAIN}", position)
        return Compare(field, operator, value)

    def _infix(self, field: Field, word: str) -> Filter:
        """Parse the part after `field in`, `field like` and so on."""
        if word == "in":
            return In(field, self._values())
        if word == "contains":
            if field in COLUMNS:
                name = field[0]
                raise self._error(
                    f"{name} is a text, not an array; write {name} like '%…%'", self._peek()[2]
                )
            return Contains(field, self._value())
        if word == "like":
            kind, _, position = self._peek()
            if kind != "text":
                raise self._error("expected a text after 'like', such as 'deep%'", position)
            pattern = self._value()
            if len(str(pattern)) > _MAX_PATTERN:
                raise self._error(f"a pattern has {_MAX_PATTERN} characters at most", position)
            return Like(field, str(pattern))
        low = self._value()
        if not self._keyword("and"):
            raise self._error("expected 'and' and a second value: between 1 and 9", self._peek()[2])
        position = self._peek()[2]
        high = self._value()
        if _kind(low) != _kind(high) or _kind(low) == "constant":
            raise self._error("between takes two numbers, two texts or two dates", position)
        return Between(field, low, high)

    def _field(self) -> Field:
        kind, text, position = self._peek()
        if kind not in ("word", "quoted") or (kind == "word" and text.lower() in _RESERVED):
            raise self._error(self._no_field(), position)
        self.at += 1
        names = re.findall(r"`([^`]+)`|(\w+)", text)
        field = tuple(quoted or plain for quoted, plain in names)
        if any(c in '"\\' or c < " " for name in field for c in name):
            raise self._error(
                'a field name cannot hold ", a backslash or a control character', position
            )
        return field

    def _no_field(self) -> str:
        """Why the next token is not a field; the most common mistake is 2015 < year."""
        kind, text, _ = self._peek()
        got = f"expected a field name, got {_short(text) or 'the end'}"
        sign, name = self._peek(1), self._peek(2)
        if kind not in ("number", "text") or sign[1] not in _OPERATORS or name[0] != "word":
            return got
        if self._peek(3)[1] in _OPERATORS and self._peek(3)[0] == "operator":
            return f"{got}; {_CHAIN}"
        flipped = _FLIPPED[_OPERATORS[sign[1]]]
        return f"{got}; the field comes first: {_short(name[1])} {flipped} {_short(text)}"

    def _values(self) -> tuple[Value | Date, ...]:
        if not self._symbol("("):
            raise self._error("expected ( after 'in'", self._peek()[2])
        values = [self._value()]
        while self._symbol(","):
            values.append(self._value())
            if isinstance(values[-1], Date):
                self._count_test()  # a date becomes a test of its own
        self._close()
        return tuple(values)

    def _value(self) -> Value | Date:
        kind, text, position = self._peek()
        self.values += 1
        if self.values > _MAX_VALUES:
            raise self._error(f"more than {_MAX_VALUES} values", position)
        if self._function("date"):
            return self._date()
        self.at += 1
        if kind == "number":
            number = _number(text)
            if number is None:
                raise self._error("the number is too large", position)
            return number
        if kind == "text":
            return text[1:-1].replace(text[0] * 2, text[0])
        if kind == "word" and text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        hint = f" (write text in quotes: '{_short(text)}')" if kind == "word" else ""
        raise self._error(f"expected a value, got {_short(text) or 'the end'}{hint}", position)

    def _date(self) -> Date:
        """Parse the part after `date(`."""
        kind, text, position = self._peek()
        if kind != "text":
            raise self._error("expected a date in quotes: date('2020-03-01')", position)
        self.at += 1
        try:
            date = Date.parse(text[1:-1])
        except ValueError as error:
            raise self._error(f"{_short(text)} is not a date: {error}", position) from error
        self._close()
        return date


def _kind(value: Value | Date) -> str:
    """The type of a value; only values of one type can be compared."""
    if isinstance(value, Date | str):
        return type(value).__name__
    return "constant" if value is None or isinstance(value, bool) else "number"


def _number(text: str) -> int | float | None:
    """A number; None for one beyond the range of floating-point numbers."""
    if math.isinf(float(text)):
        return None
    return float(text) if re.search(r"[.eE]", text) else int(text)


def _short(text: str) -> str:
    """The beginning of a text, printable."""
    return "".join(map(_shown, text[:_SHOWN])) + ("…" if len(text) > _SHOWN else "")


def _excerpt(source: str, position: int) -> tuple[str, str]:
    """The neighbourhood of a position on one line, and a caret below it."""
    start, end = max(0, position - _SHOWN), position + _SHOWN
    before = ("…" if start else "") + "".join(map(_shown, source[start:position]))
    after = "".join(map(_shown, source[position:end])) + ("…" if end < len(source) else "")
    return before + after, " " * sum(map(_width, before)) + "^"


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "�"


def _width(character: str) -> int:
    """Columns on a terminal."""
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
