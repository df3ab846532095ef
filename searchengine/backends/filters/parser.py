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
from contextlib import suppress
from typing import NamedTuple

from searchengine.backends.filters.tree import (
    COLUMNS,
    Check,
    Date,
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
    | (?P<word>(?:`[^`]+`|[^\W\d]\w*)(?:\.(?:`[^`]+`|\w+))*)
    | (?P<operator><=|>=|==|!=|<>|[=<>])
    | (?P<sign>[(),])
    | (?P<end>\Z)
    | (?P<unknown>..?)
    )""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_FIELD = re.compile(r"[^\W\d]\w*(\.\w+)*")
_SAME = {"==": "=", "<>": "!="}
_ORDERS = ("<", "<=", ">", ">=")
_CONSTANTS = ("true", "false", "null")
_RESERVED = {"and", "or", "not", "in", *_CONSTANTS}
_INFIX = ("in", "between", "like", "contains")
_HINTS = {
    "is": "; null is a value: year = null, and a document without the field: not exists(year)",
    "exists": "; write exists(year)",
    "&&": "; write and",
    "||": "; write or",
    **dict.fromkeys("'\"`", "; no second quotation mark ends it"),
}
# SQLite's parser has a stack of 100, and a level takes three places; an expression has at most
# 1,000 levels.
_MAX_DEPTH = 20
_MAX_TESTS = 400
_MAX_PATTERN = 256  # matching may take the product of pattern and text
_SHOWN = 60  # characters of what is shown of a filter


def parse(source: str) -> Filter:
    """The tree of a filter expression. Raises FilterError with the place of the mistake."""
    return _Parser(source).parse()


def field_named(name: str) -> Field:
    """A field as filters name it (`year`, `author.name`) → its path of names.

    Raises FilterError if it is not the name of a field.
    """
    with suppress(FilterError):
        parser = _Parser(name)
        field = parser.field()
        if parser.next.kind == "end":
            return field
    raise FilterError(f"expected the name of a field, got {name[:_SHOWN]!r}")


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
    word: str  # a word in lower case, a sign, or an operator in its common spelling


class _Literal(NamedTuple):
    """A value, or the first and the last microsecond of a date."""

    kind: str  # as of a Check
    first: Value = None
    last: Value = None

    def check(self, operator: str = "=") -> Check:
        """The way for a comparison to hold."""
        if self.kind in _CONSTANTS:
            return Check(self.kind)
        if self.kind == "date" and operator == "=":
            return Check("date", "between", (self.first, self.last))
        # A date is a period: later begins at its end, earlier ends at its start.
        bound = self.last if operator in ("<=", ">") else self.first
        return Check(self.kind, operator, (bound,))


class _Parser:
    """Recursive descent over the tokens of one expression.

    What is under a `not` is parsed with `holds` False: its predicates are negated, `and` and `or`
    change places.
    """

    def __init__(self, source: str) -> None:
        self.source, self.tokens = source.rstrip(), list[_Token]()
        self.at = self.depth = self.tests = 0
        if forbidden := re.search("[\0\ud800-\udfff]", source):
            name = f"U+{ord(forbidden[0]):04X}"
            raise FilterError(f"in the filter: {name}, which no metadata contains; leave it out")
        for match in _TOKEN.finditer(self.source):
            kind = match.lastgroup or ""
            text, position = match[kind], match.start(kind)
            if kind == "unknown":
                hint = _HINTS.get(text) or _HINTS.get(text[0], "")
                raise self.error(f"cannot read this{hint}", position)
            word = "" if kind in ("number", "text") else _SAME.get(text, text.lower())
            self.tokens.append(_Token(kind, text, position, word))
        self.tokens += self.tokens[-1:]  # so that the token after the next can be looked at

    def error(self, what: str, position: int | None = None) -> FilterError:
        """The error of a mistake; position: where it is, else at the next token."""
        at = self.next.position if position is None else position
        rest = _short(self.source[at:])
        place = f"character {at + 1}: {rest}" if rest else "at its end"
        return FilterError(
            f"in the filter: {what} ({place}); a filter reads like: year >= 2015 and "
            "lang in ('en', 'ko') and not draft"
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
        found = all(self.tokens[self.at + i].word == word for i, word in enumerate(words))
        self.at += len(words) * found
        return found

    def require(self, sign: str, instead: str = "") -> None:
        if not self.skip(sign):
            raise self.error(f"expected {instead or sign}")

    def parse(self) -> Filter:
        if self.next.kind == "end":
            raise self.error("it is empty; leave it out to search everything", 0)
        node = self._chain("or", True)
        if self.next.kind != "end":
            text, hint = self.next.text, _HINTS.get(self.next.word, "")
            raise self.error(f"expected 'and', 'or' or the end, got {_short(text)}{hint}")
        return node

    def _chain(self, word: str, holds: bool) -> Filter:
        """Chains of `and`, joined by `or`; or what `and` joins."""
        operands = list[Filter]()
        while not operands or self.skip(word):
            operands.append(self._chain("and", holds) if word == "or" else self._operand(holds))
        either = (word == "or") is holds
        return operands[0] if len(operands) == 1 else Group(tuple(operands), either)

    def _operand(self, holds: bool) -> Filter:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"parentheses may be nested {_MAX_DEPTH} deep at most")
        if self.skip("not"):
            node = self._operand(not holds)
        elif self.skip("("):
            node = self._chain("or", holds)
            self.require(")")
        else:
            node = self._test(holds)
        self.depth -= 1
        return node

    def _test(self, holds: bool) -> Predicate:
        items = False
        if self.skip("exists", "("):
            field, checks = self.field(), [Check("any")]
            self.require(")")
        else:
            field = self.field()
            if self.tokens[self.at + 1].word in _INFIX and self.skip("not"):
                holds = not holds
            checks, operator = [Check("truthy")], self.next
            if operator.kind == "operator" or operator.word in _INFIX:
                items, holds = operator.word == "contains", holds is (operator.word != "!=")
                checks = self._checks(field, self.take())
        if field in COLUMNS:  # always a text
            whole = Check("text", ">", ("",))
            checks = [whole if check.kind in ("any", "truthy") else check for check in checks]
            checks = [check for check in checks if check.kind == "text"]
        self.tests += max(1, sum(check.kind == "date" for check in checks))
        if self.tests > _MAX_TESTS:
            raise self.error(f"more than {_MAX_TESTS} tests; use in (…)")
        return Predicate(field, tuple(checks), holds, items)

    def _checks(self, field: Field, operator: _Token) -> list[Check]:
        """Parse the part after an operator; that of `!=` is the opposite of its check."""
        match operator.word:
            case "in":
                return self._members(field)
            case "like":
                return [Check("text", "like", (self._pattern(),))]
            case "contains" if field in COLUMNS:
                name = field[0]
                raise self.error(f"{name} is a text, not an array; write {name} like '%…%'")
            case "contains":
                return [self._value().check()]
        value = self._value(field)
        if operator.word == "between":
            self.require("and", "'and' and a second value: between 1 and 9")
            position, high = self.next.position, self._value(field)
            if value.kind != high.kind or value.kind in _CONSTANTS:
                raise self.error("between takes two numbers, two texts or two dates", position)
            return [Check(value.kind, "between", (value.first, high.last))]
        if operator.word in _ORDERS and value.kind in _CONSTANTS:
            raise self.error("true, false and null compare with = and != only", operator.position)
        if self.next.kind == "operator":
            raise self.error("one comparison at a time; write year > 2010 and year < 2015")
        return [value.check("=" if operator.word == "!=" else operator.word)]

    def _pattern(self) -> Value:
        token = self.next
        if token.kind != "text":
            raise self.error("expected a text after 'like', such as 'deep%'")
        if len(token.text) > _MAX_PATTERN + 2:
            raise self.error(f"a pattern has {_MAX_PATTERN} characters at most")
        return self._value().first

    def _members(self, field: Field) -> list[Check]:
        """Parse the part after `in`: all numbers are one check, all texts another."""
        self.require("(", "( after 'in'")
        checks, listed = list[Check](), dict[str, list[Value]]()
        while not (checks or listed) or self.skip(","):
            value = self._value(field)
            if value.kind in ("number", "text"):
                listed.setdefault(value.kind, []).append(value.first)
            else:
                checks.append(value.check())
        self.require(")")
        checks += [Check(kind, "in", tuple(dict.fromkeys(v))) for kind, v in listed.items()]
        return [*dict.fromkeys(checks)]

    def field(self) -> Field:
        token = self.next
        if token.kind != "word" or token.word in _RESERVED:
            is_value = token.kind in ("number", "text")
            hint = "; the field comes first: year > 2010" if is_value else ""
            raise self.error(f"expected a field name, got {_short(token.text) or 'the end'}{hint}")
        field = tuple(
            quoted or plain for quoted, plain in re.findall(r"`([^`]+)`|(\w+)", token.text)
        )
        if re.search(r'["\\\0-\x1f]', "".join(field)):
            raise self.error('a field name cannot hold ", a backslash or a control character')
        self.take()
        return field

    def _value(self, field: Field = ()) -> _Literal:
        """Parse a value, to be compared with a field."""
        if self.skip("date", "("):
            return self._date()
        kind, text, position, word = self.take()
        if kind == "number":
            # Python reads integers of at most 4,300 digits.
            if len(text) > 4300 or math.isinf(number := float(text)):
                raise self.error("the number is too large", position)
            if not re.search(r"[.eE]", text):
                number = int(text)
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


def _short(text: str) -> str:
    """The beginning of a text, on one line."""
    shown = (c if c.isprintable() else " " if c.isspace() else "�" for c in text[:_SHOWN])
    return "".join(shown) + "…" * (len(text) > _SHOWN)
