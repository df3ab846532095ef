"""Numbers as text: few digits, ends of intervals in brackets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

NOTHING = "–"  # not measured, or not applicable
_WHOLE_FROM = 1000  # larger numbers are written without decimals


def short(value: float | None) -> str:
    """Three significant digits: 0.0123, 1.23, 1,230."""
    if value is None:
        return NOTHING
    rounded = float(f"{value:.3g}")
    if not rounded:
        return "0"
    if abs(rounded) >= _WHOLE_FROM:
        return f"{rounded:,.0f}"
    return f"{rounded:#.3g}".rstrip(".")  # "#" keeps the zeros of 1.20


def fraction(value: float | None) -> str:
    """A share such as recall, three digits; a value below 1 is never written as 1."""
    if value is None:
        return NOTHING
    for digits in (3, 4, 5):
        text = f"{value:.{digits}f}"
        if value >= 1 or float(text) < 1:
            return text
    return "0.99999"


def with_ends(value: float, low: float, high: float, form: Callable[[float], str]) -> str:
    """A value and the ends of its interval; only the value if all are equal."""
    text, *ends = map(form, (value, low, high))
    return text if ends == [text, text] else f"{text} ({ends[0]}–{ends[1]})"


def plain(value: Any) -> str:
    """A value of settings as text: lists with commas, None as a dash."""
    if value is None or value == () or value == []:
        return NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(part)}" for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(plain, value))
    if isinstance(value, int):
        return f"{value:,}"
    return short(value) if isinstance(value, float) else str(value)
