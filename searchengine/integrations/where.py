"""Filters of other programs as `where`: each translates its own into these tests.

They mean Python's `==` and `<`, not SQL's: 1 equals 1.0 and true, and true is greater than 0. A
value of another kind, or a field that is missing, compares with nothing.
"""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from searchengine.engine import field_name
from searchengine.errors import FilterError
from searchengine.integrations.stored import stored_name

EVERYTHING = "(exists(a) or not exists(a))"
NOTHING = f"not {EVERYTHING}"

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONSTANTS = {True: "true", False: "false"}


def field(path: tuple[str, ...]) -> str:
    """A path into metadata, as a filter names it. Raises FilterError for one that it cannot."""
    for name in path:
        if not isinstance(name, str) or not name or any(c in '`"\\' or c < " " for c in name):
            raise FilterError(
                f"a filter cannot name the field {'.'.join(map(str, path))!r}: names are texts "
                'without `, ", backslash and control characters; rename the field'
            )
    return field_name((stored_name(path[0]), *path[1:]))


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


def missing(field: str) -> str:
    """The field is missing or null."""
    return f"(not exists({field}) or {field} = null)"


def equal(field: str, value: Any) -> str:
    """The field's value equals a text, a number or a truth value; None: it is missing."""
    if value is None:
        return missing(field)
    return either(f"{field} = {written}" for written in _equals(value))


def member(field: str, values: Iterable[Any]) -> str:
    """The field's value equals one of these texts, numbers and truth values; None: is missing."""
    values = list(values)
    tests = [missing(field)] if None in values else []
    literals = dict.fromkeys(
        written for value in values if value is not None for written in _equals(value)
    )
    if literals:
        tests.append(f"{field} in ({', '.join(literals)})")
    return either(tests)


def ordered(field: str, sign: str, value: Any) -> str:
    """The field's value is less (< or <=) or greater (> or >=) than a text or a number."""
    if isinstance(value, str):
        return f"{field} {sign} {literal(value)}"
    number = int(value) if isinstance(value, bool) else value
    tests = [f"{field} {sign} {literal(number)}"]
    constants = [text for truth, text in _CONSTANTS.items() if _ORDER[sign](truth, number)]
    return either([*tests, *(f"{field} = {constant}" for constant in constants)])


def contains(field: str, value: Any) -> str:
    """The field is a list that has a text, a number or a truth value."""
    return either(f"{field} contains {written}" for written in _equals(value))


def like(field: str, pattern: str) -> str:
    """The field is a text that matches a pattern, in which % is any text."""
    return f"{field} like {literal(pattern)}"


def has_text(field: str, part: str) -> str:
    """The field is a text that has this part, in any case, as `like` compares letters."""
    escaped = "".join(f"\\{c}" if c in "%_\\" else c for c in part)
    return like(field, f"%{escaped}%")


def either(tests: Iterable[str]) -> str:
    """At least one test holds."""
    return _joined(" or ", list(tests), NOTHING)


def every(tests: Iterable[str]) -> str:
    """All tests hold."""
    return _joined(" and ", list(tests), EVERYTHING)


def negated(test: str) -> str:
    """The test does not hold."""
    return f"not ({test})"


def _equals(value: Any) -> list[str]:
    """A value and what equals it in Python, as a filter writes them. Raises FilterError."""
    if isinstance(value, str):
        return [literal(value)]
    number = int(value) if isinstance(value, bool) else value
    return [literal(number), *(text for truth, text in _CONSTANTS.items() if truth == number)]


def _joined(word: str, tests: list[str], without: str) -> str:
    if len(tests) < 2:
        return tests[0] if tests else without
    return word.join(f"({test})" for test in tests)
