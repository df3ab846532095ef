"""Numbers and tables as text: few digits, spreads in brackets, columns that fit a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from searchengine.measure.results import Row, Spread

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


def spread_of(value: Spread | None) -> str:
    """Median (lower–upper quartile); only the median if all are equal."""
    if value is None:
        return NOTHING
    low, median, high = short(value.low), short(value.median), short(value.high)
    return median if low == median == high else f"{median} ({low}–{high})"


def recall_of(row: Row) -> str:
    """Recall with its 95 % interval."""
    recall, low, high = map(fraction, (row.recall, row.recall_low, row.recall_high))
    return recall if low == recall == high else f"{recall} ({low}–{high})"


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
