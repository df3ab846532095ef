"""The filter language → a tree (filters.tree).

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
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import NamedTuple

from searchengine.backends.filters.dates import Date
from searchengine.backends.filters.tree import (
    COLUMNS,
    Check,
    Field,
    Filter,
    Group,
    Predicate,
    Value,
)
from searchengine.errors import FilterError

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<quoted>`[^`]+`(?:\.(?:`[^`]+`|\w+))*)
    | (?P<word>[^\W\d]\w*(?:\.(?:`[^`]+`|\w+))*)
    | (?P<operator><=|>=|==|!=|<>|[=<>])
    | (?P<sign>[(),])
    )""",
    re.VERBOSE,
)
_PLAIN_FIELD = re.compile(r"[^\W\d]\w*(\.\w+)*")
_OPERATORS = {"==": "=", "<>": "!=", **{sign: sign for sign in ("=", "!=", "<", "<=", ">", ">=")}}
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CONSTANTS = ("true", "false", "null")
_LISTED = ("number", "text")  # of these kinds, all values of `in` are one check
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
    **dict.fromkeys("'\"`", "; no second quotation mark ends it"),
}
_CHAIN = "write year > 2010 and year < 2015, or year between 2011 and 2014"
# SQLite's parser holds 100 things at once, an expression is 1,000 levels deep at most, and
# 32,766 parameters can be bound: see filters.tree for what a level takes.
_MAX_DEPTH = 50
_MAX_TESTS = 400
_MAX_VALUES = 30_000
_MAX_PATTERN = 256  # matching may take the product of pattern and text
_SHOWN = 60  # characters to either side of a mistake


def parse(source: str) -> Filter:
    """The tree of a filter expression. Raises FilterError with a caret under the mistake."""
    return _Parser(source).parse()


def field_named(name: str) -> Field:
    """A field as filters name it (`year`, `author.name`) → its path of names.

    Raises FilterError if it is not the name of a field.
    """
    parser = _Parser(name)
    field = parser.field()
    if parser.next.kind != "end":
        raise FilterError(f"expected the name of a field, got {_short(name)}")
    return field


def field_name(field: Field) -> str:
    """A field as filters name it: the opposite of `field_named`."""
    name = ".".join(field)
    if _PLAIN_FIELD.fullmatch(name) and name.lower() not in _RESERVED and "." not in "".join(field):
        return name
    return ".".join(f"`{part}`" for part in field)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int
    word: str = ""  # in lower case; or a sign


class _Literal(NamedTuple):
    """A value, or the first and the last microsecond of a date."""

    kind: str  # as of a Check
    first: Value = None
    last: Value = None


class _Parser:
    """Recursive descent over the tokens of one expression.

    What is under a `not` is parsed with `holds` False: its predicates are negated, `and` and `or`
    change places.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = self.depth = self.tests = self.values = 0
        if forbidden := re.search("[\0\ud800-\udfff]", source):
            name = f"U+{ord(forbidden[0]):04X}"
            raise FilterError(f"in the filter: {name}, which no metadata contains; leave it out")
        self.tokens = [*self._tokens()]

    def _tokens(self) -> Iterator[_Token]:
        position, end = 0, len(self.source.rstrip())
        while position < end:
            match = _TOKEN.match(self.source, position)
            if match is None:
                start = end - len(self.source[position:end].lstrip())
                hints = (_HINTS.get(self.source[start : start + n]) for n in (2, 1))
                raise self.error(f"cannot read this{next(filter(None, hints), '')}", start)
            kind = match.lastgroup or ""
            word = match[kind].lower() if kind in ("word", "sign") else ""
            yield _Token(kind, match[kind], match.start(kind), word)
            position = match.end()
        yield from [_Token("end", "", end)] * 4  # so that three tokens ahead can be looked at

    def error(self, what: str, position: int | None = None) -> FilterError:
        """The error of a mistake; position: where it is, else at the next token."""
        line, caret = _excerpt(self.source, self.next.position if position is None else position)
        return FilterError(
            f"in the filter: {what}\n  {line}\n  {caret}\n"
            "A filter reads like: year >= 2015 and lang in ('en', 'ko') and not draft"
        )

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.next
        self.at += token.kind != "end"
        return token

    def skip(self, *words: str) -> bool:
        """Take the next tokens if they are these words and signs."""
        at = self.at
        for word in words:
            if self.tokens[at].word != word:
                return False
            at += 1
        self.at = at
        return True

    def require(self, sign: str, instead: str = "") -> None:
        if not self.skip(sign):
            raise self.error(f"expected {instead or sign}")

    def parse(self) -> Filter:
        if self.next.kind == "end":
            raise self.error("it is empty; leave it out to search everything", 0)
        node = self._or(True)
        if self.next.kind != "end":
            text, hint = self.next.text, _HINTS.get(self.next.text.lower(), "")
            raise self.error(f"expected 'and', 'or' or the end, got {_short(text)}{hint}")
        return node

    def _or(self, holds: bool) -> Filter:
        return self._chain("or", self._and, holds, either=holds)

    def _and(self, holds: bool) -> Filter:
        return self._chain("and", self._negation, holds, either=not holds)

    def _chain(
        self, word: str, operand: Callable[[bool], Filter], holds: bool, *, either: bool
    ) -> Filter:
        operands = [operand(holds)]
        while self.skip(word):
            operands.append(operand(holds))
        return operands[0] if len(operands) == 1 else Group(tuple(operands), either)

    def _negation(self, holds: bool) -> Filter:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} levels of parentheses")
        if self.skip("not"):
            node = self._negation(not holds)
        elif self.skip("("):
            node = self._or(holds)
            self.require(")")
        else:
            node = self._test(holds)
        self.depth -= 1
        return node

    def _count_test(self) -> None:
        self.tests += 1
        if self.tests > _MAX_TESTS:
            raise self.error(f"more than {_MAX_TESTS} tests; use in (…)")

    def _test(self, holds: bool) -> Predicate:
        self._count_test()
        if self.skip("exists", "("):
            field = self.field()
            self.require(")")
            return _predicate(field, [Check("any")], holds)
        field = self.field()
        if self.tokens[self.at + 1].word in _INFIX and self.skip("not"):
            holds = not holds
        word, sign = self.next.word, self.next.text
        if word not in _INFIX and self.next.kind != "operator":
            return _predicate(field, [Check("truthy")], holds)
        self.take()
        match word:
            case "in":
                return _predicate(field, self._members(field), holds)
            case "between":
                return _predicate(field, [self._between(field)], holds)
            case "like":
                return _predicate(field, [self._like()], holds)
            case "contains" if field in COLUMNS:
                name = field[0]
                raise self.error(f"{name} is a text, not an array; write {name} like '%…%'")
            case "contains":
                return Predicate(field, (_compared("=", self._value()),), holds, items=True)
        return _predicate(field, [self._comparison(field)], holds is (_OPERATORS[sign] != "!="))

    def _comparison(self, field: Field) -> Check:
        """Parse the part after an operator; that of `!=` is the opposite of its check."""
        operator, value = self.tokens[self.at - 1], self._value(field)
        sign = _OPERATORS[operator.text]
        if sign not in ("=", "!=") and value.kind in _CONSTANTS:
            raise self.error("true, false and null compare with = and != only", operator.position)
        if self.next.kind == "operator":
            raise self.error(f"one comparison at a time; {_CHAIN}")
        return _compared("=" if sign == "!=" else sign, value)

    def _members(self, field: Field) -> list[Check]:
        """Parse the part after `in`: the values of a kind are one check, each date is one."""
        self.require("(", "( after 'in'")
        values = [self._value(field)]
        while self.skip(","):
            values.append(self._value(field))
            if values[-1].kind == "date":
                self._count_test()
        self.require(")")
        checks = [_compared("=", value) for value in values if value.kind not in _LISTED]
        for kind in _LISTED:
            if members := dict.fromkeys(value.first for value in values if value.kind == kind):
                checks.append(Check(kind, "in", tuple(members)))
        return [*dict.fromkeys(checks)]

    def _between(self, field: Field) -> Check:
        low = self._value(field)
        self.require("and", "'and' and a second value: between 1 and 9")
        position = self.next.position
        high = self._value(field)
        if low.kind != high.kind or low.kind in _CONSTANTS:
            raise self.error("between takes two numbers, two texts or two dates", position)
        return Check(low.kind, "between", (low.first, high.last))

    def _like(self) -> Check:
        token = self.next
        if token.kind != "text":
            raise self.error("expected a text after 'like', such as 'deep%'")
        pattern = self._value().first
        if len(str(pattern)) > _MAX_PATTERN:
            raise self.error(f"a pattern has {_MAX_PATTERN} characters at most", token.position)
        return Check("text", "like", (pattern,))

    def field(self) -> Field:
        token = self.next
        if token.kind not in ("word", "quoted") or token.word in _RESERVED:
            raise self.error(self._no_field())
        field = tuple(
            quoted or plain for quoted, plain in re.findall(r"`([^`]+)`|(\w+)", token.text)
        )
        if re.search(r'["\\\0-\x1f]', "".join(field)):
            raise self.error('a field name cannot hold ", a backslash or a control character')
        self.take()
        return field

    def _no_field(self) -> str:
        """Why the next token is not a field; the most common mistake is 2015 < year."""
        value, sign, name, after = self.tokens[self.at : self.at + 4]
        got = f"expected a field name, got {_short(value.text) or 'the end'}"
        if value.kind not in ("number", "text") or sign.kind != "operator" or name.kind != "word":
            return got
        if after.kind == "operator":
            return f"{got}; {_CHAIN}"
        flipped = _FLIPPED[_OPERATORS[sign.text]]
        return f"{got}; the field comes first: {_short(name.text)} {flipped} {_short(value.text)}"

    def _value(self, field: Field = ()) -> _Literal:
        """Parse a value, to be compared with a field."""
        self.values += 1
        if self.values > _MAX_VALUES:
            raise self.error(f"more than {_MAX_VALUES} values")
        if self.skip("date", "("):
            return self._date()
        kind, text, position, word = self.take()
        if kind == "number":
            number = _number(text)
            if number is None:
                raise self.error("the number is too large", position)
            if field == ("_id",) and isinstance(number, int):
                return _Literal("text", str(number), str(number))
            return _Literal("number", number, number)
        if kind == "text":
            text = text[1:-1].replace(text[0] * 2, text[0])
            return _Literal("text", text, text)
        if word in _CONSTANTS:
            return _Literal(word)
        hint = f" (write text in quotes: '{_short(text)}')" if kind == "word" else ""
        raise self.error(f"expected a value, got {_short(text) or 'the end'}{hint}", position)

    def _date(self) -> _Literal:
        """Parse the part after `date(`."""
        kind, text, position, _ = self.next
        if kind != "text":
            raise self.error("expected a date in quotes: date('2020-03-01')")
        try:
            date = Date.parse(text[1:-1])
        except ValueError as error:
            raise self.error(f"{_short(text)} is not a date: {error}", position) from error
        self.take()
        self.require(")")
        return _Literal("date", *date)


def _predicate(field: Field, checks: list[Check], holds: bool) -> Predicate:
    """The test of a field's own value. A column of `documents` is always a text."""
    if field in COLUMNS:
        whole = Check("text", ">", ("",))
        checks = [whole if check.kind in ("any", "truthy") else check for check in checks]
        checks = [check for check in checks if check.kind == "text"]
    return Predicate(field, tuple(checks), holds)


def _compared(operator: str, value: _Literal) -> Check:
    """The way for a comparison to hold."""
    if value.kind in _CONSTANTS:
        return Check(value.kind)
    if value.kind == "date" and operator == "=":
        return Check("date", "between", (value.first, value.last))
    # A date is a period: later begins at its end, earlier ends at its start.
    bound = value.last if operator in ("<=", ">") else value.first
    return Check(value.kind, operator, (bound,))


def _number(text: str) -> int | float | None:
    """A number; None for one beyond the range of floating-point numbers."""
    try:
        number = float(text) if re.search(r"[.eE]", text) else int(text)
        return None if math.isinf(float(number)) else number
    except (OverflowError, ValueError):  # Python reads integers of at most 4,300 digits
        return None


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
