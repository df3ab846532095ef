"""Numbers as text: few digits, ends of intervals in brackets."""

NOTHING = "–"  # not measured, or not applicable
_WHOLE_FROM = 1000  # larger numbers are written without decimals


def short(value: float) -> str:
    """Three significant digits: 0.0123, 1.23, 1,230."""
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


def with_ends(value: float, low: float, high: float) -> str:
    """A share and the ends of its interval; only the share if all are equal."""
    text, *ends = map(fraction, (value, low, high))
    return text if ends == [text, text] else f"{text} ({ends[0]}–{ends[1]})"
