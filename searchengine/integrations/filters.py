"""Parts of `where`, for translators of other filter languages: they mean what Python would say.

Of Python's `==` and `<`, not of SQL's: 1 equals 1.0 and true, and true is greater than 0. A value
of another kind, or a field that is missing, compares with nothing.
"""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from searchengine.backends.folder.filters.parser import field_name
from searchengine.backends.folder.filters.sql import Field
from searchengine.errors import FilterError

EVERYTHING = "(exists(a) or not exists(a))"
NOTHING = f"not {EVERYTHING}"

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONSTANTS = {True: "true", False: "false"}


def field(path: Field) -> str:
    """A path into metadata, as a filter names it. Raises FilterError for one that it cannot."""
    for name in path:
        if not isinstance(name, str) or not name or any(c in '`"\\' or c < " " for c in name):
            raise FilterError(
                f"a filter cannot name the field {'.'.join(map(str, path))!r}: names are texts "
                'without `, ", backslash and control characters; rename the field'
            )
    return field_name(path)


def literal(value: Any) -> str:
    """A text, number or truth value as a filter writes it. Raises FilterError."""
    if isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int | float) and _is_finite(value):
        return repr(value)
    raise FilterError(
        f"a filter compares with texts, finite numbers, true and false, got {value!r:.80}"
    )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False


def missing(name: str) -> str:
    """The field is missing or null."""
    return f"(not exists({name}) or {name} = null)"


def equal(name: str, value: Any) -> str:
    """The field's value equals a text, a number or a truth value."""
    if isinstance(value, str):
        return f"{name} = {literal(value)}"
    return either([f"{name} = {each}" for each in _numbers(value)])


def member(name: str, values: Iterable[Any]) -> str:
    """The field's value equals one of these texts, numbers and truth values; None: is missing."""
    values = list(values)
    tests = [missing(name)] if None in values else []
    literals = dict.fromkeys(
        each
        for value in values
        if value is not None
        for each in ([literal(value)] if isinstance(value, str) else _numbers(value))
    )
    if literals:
        tests.append(f"{name} in ({', '.join(literals)})")
    return either(tests)


def ordered(name: str, sign: str, value: Any) -> str:
    """The field's value is less (< or <=) or greater (> or >=) than a text or a number."""
    if isinstance(value, str):
        return f"{name} {sign} {literal(value)}"
    number = int(value) if isinstance(value, bool) else value
    tests = [f"{name} {sign} {literal(number)}"]
    constants = [text for it, text in _CONSTANTS.items() if _ORDER[sign](it, number)]
    return either([*tests, *(f"{name} = {constant}" for constant in constants)])


def contains(name: str, value: Any) -> str:
    """The field is a list that has a text, a number or a truth value."""
    values = [literal(value)] if isinstance(value, str) else _numbers(value)
    return either([f"{name} contains {each}" for each in values])


def has_text(name: str, part: str) -> str:
    """The field is a text that has this part, in any case, as `like` compares letters."""
    escaped = "".join(f"\\{c}" if c in "%_\\" else c for c in part)
    return f"{name} like {literal(f'%{escaped}%')}"


def either(tests: Iterable[str]) -> str:
    """At least one test holds."""
    return _joined(" or ", list(tests), NOTHING)


def every(tests: Iterable[str]) -> str:
    """All tests hold."""
    return _joined(" and ", list(tests), EVERYTHING)


def negated(test: str) -> str:
    """The test does not hold."""
    return f"not ({test})"


def _numbers(value: Any) -> list[str]:
    """A number or truth value and what equals it in Python, as a filter writes them."""
    number = int(value) if isinstance(value, bool) else value
    return [literal(number), *(text for it, text in _CONSTANTS.items() if it == number)]


def _joined(word: str, tests: list[str], none: str) -> str:
    if len(tests) < 2:
        return tests[0] if tests else none
    return word.join(f"({test})" for test in tests)
