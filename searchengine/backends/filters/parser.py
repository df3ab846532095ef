"""The filter language → a tree, and its condition in SQL as far as databases share it.

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

Dates are a literal of the language, and texts of metadata are read as them:

    2020    2020-03    2020-03-01    2020-03-01T09:30[:05[.25]][Z or +09:00]

A part of ISO 8601: a space may stand for the T, a time without a zone is UTC, zones reach from
-14:59 to +14:59, years from 0001 to 9999. The value is a number of microseconds since 1970 in
UTC, an exact integer; further decimals are cut off.

The tree has predicates joined by `and` and `or`: `not` is carried down to them. What one predicate
means in SQL is written by filters.sqlite and postgresql.filters. All values of the user are bound
as parameters, none is written into the statement.
"""

import math
import re
from calendar import isleap, monthrange
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from searchengine.errors import FilterError

Value = str | int | float | bool | None
Field = tuple[str, ...]
Condition = tuple[str, tuple[Any, ...]]
"""A condition in SQL, and its parameters. Null is as good as false."""

COLUMNS: dict[Field, str] = {("_id",): "key", ("title",): "title", ("text",): "text"}
"""The fields of a document that are not metadata → their columns in `documents`, always a text."""

_LETTERS = 0x1F000  # no letter beyond this has cases


class Check(NamedTuple):
    """One way for a value to pass: it is of a kind, and meets an operator.

    Attributes:
        kind: null, true, false, number, text, date (a text that is one, as a number of
            microseconds), truthy (true, not 0, or not an empty text), or any.
        operator: = < <= > >= between in like; "" if the kind suffices.
        values: what follows the operator; of like, the pattern.
    """

    kind: str
    operator: str = ""
    values: tuple[Value, ...] = ()


class Predicate(NamedTuple):
    """A field passes one of the checks, or (`holds` False) none of them.

    `items`: it is an array, and one of its elements passes.
    """

    field: Field
    checks: tuple[Check, ...]
    holds: bool = True
    items: bool = False


class Group(NamedTuple):
    """Filters joined by `and`, or, if `either`, by `or`."""

    operands: tuple["Filter", ...]
    either: bool


Filter = Predicate | Group


def fields_of(node: Filter) -> list[Field]:
    """The fields of a filter, in their order."""
    if isinstance(node, Predicate):
        return [node.field]
    return [field for operand in node.operands for field in fields_of(operand)]


def condition_of(
    node: Filter, check: Callable[[Predicate, Check], Condition], inside: str = ""
) -> Condition:
    """A tree as a condition over `documents`; `check` writes one check of a predicate.

    `inside`: the word that joins it with others.
    """
    if isinstance(node, Predicate):
        parts = [check(node, one) for one in node.checks] or [("false", ())]
        word, form = " OR ", "({})" if node.holds else "NOT coalesce({}, false)"
    else:
        word = " OR " if node.either else " AND "
        parts = [condition_of(operand, check, word) for operand in node.operands]
        form = "({})" if word > inside else "{}"  # in alphabetical order: an OR inside an AND
    text = form.format(word.join(text for text, _ in parts))
    return text, tuple(value for _, values in parts for value in values)


def like_pattern(pattern: str, wildcards: Mapping[str, str], escape: Callable[[str], str]) -> str:
    """A LIKE pattern in another language of patterns, each letter as the set of its cases.

    No database knows the cases of all letters in every locale, so they are listed.
    """
    parts = []
    for escaped, wildcard, plain in re.findall(r"\\([%_\\])|(%+|_)|(.)", pattern, re.DOTALL):
        letters = _cases().get(escaped or plain, escaped or plain)
        parts.append(
            f"[{letters}]" if len(letters) > 1 else wildcards.get(wildcard[:1], escape(letters))
        )
    return "".join(parts)


@cache
def _cases() -> dict[str, str]:
    """Letter → all letters that differ from it in case only, itself among them."""
    groups: dict[str, list[str]] = {}
    for character in map(chr, range(_LETTERS)):
        groups.setdefault(character.casefold(), []).append(character)
    return {c: "".join(group) for group in groups.values() if len(group) > 1 for c in group}


_FORM = re.compile(
    r"\d{4}(?P<month>-\d\d)?(?(month)(?P<day>-\d\d)?)(?(day)(?P<time>[T ]([01]\d|2[0-3]):\d\d"
    r"(?P<second>:\d\d(?P<fraction>\.\d+)?)?(Z|[+-](0\d|1[0-4]):[0-5]\d)?)?)",
    re.ASCII,
)
_REST = {4: "-01-01", 7: "-01"}
"""The length of a date without a day → what makes it the first one."""
_EPOCHS = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_SECOND = 1_000_000  # in microseconds
_DAY = 24 * 60 * 60 * _SECOND


class Date(NamedTuple):
    """The period that a date literal names: its first and last microsecond, inclusive.

    `date('2020-03')` is all of March 2020 in UTC, `date('2020-03-01T09:30')` that minute.
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Date":
        """Read a literal. Raises ValueError with the reason if it is not a date."""
        if not (form := _FORM.fullmatch(text)):
            raise ValueError("expected a date such as 2020, 2020-03-01 or 2020-03-01T09:30:00Z")
        first, year = _first(text), int(text[:4])
        if not form["month"]:
            span = (366 if isleap(year) else 365) * _DAY
        elif not form["time"]:
            span = _DAY if form["day"] else monthrange(year, int(text[5:7]))[1] * _DAY
        else:
            span = 1 if form["fraction"] else _SECOND if form["second"] else 60 * _SECOND
        return cls(first, first + span - 1)


def moment(value: object) -> int | None:
    """The first microsecond of a text that is a date; None for anything else."""
    if isinstance(value, str) and _FORM.fullmatch(value):
        with suppress(ValueError):
            return _first(value)
    return None


def _first(text: str) -> int:
    """The first microsecond of a text of the form. Raises ValueError if there is no such day."""
    at = datetime.fromisoformat(text + _REST.get(len(text), ""))
    since = at - _EPOCHS[at.tzinfo is None]
    return (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds


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
