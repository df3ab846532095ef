"""Results as HTML, for notebooks: plain tables of escaped text."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top"
_LONGEST = 600  # characters of a cell


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; the first cell of each row is its head. None is shown as a dash.

    Every cell is escaped and cut to 600 characters. Numbers with decimals have three.
    """
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in heads)
    top = f"<thead><tr>{head}</tr></thead>" if heads else ""
    above = f'<p dir="auto">{escape(caption)}</p>' if caption else ""
    # dir: a text that overrides the direction does so in its own cell only
    body = "".join(
        f'<tr><th scope="row" dir="auto" style="{_CELL}">{_text(first)}</th>'
        + "".join(f'<td dir="auto" style="{_CELL}">{_text(cell)}</td>' for cell in others)
        + "</tr>"
        for first, *others in rows
    )
    return f"{above}<table>{top}<tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    if value is None:
        return "–"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
