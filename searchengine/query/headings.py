"""The headings that a place in a text is under."""

from typing import Any


def heading_at(headings: Any, offset: int) -> str:
    """The headings around an offset, the highest first, with " > " between; "" if there are none.

    Args:
        headings: metadata as readers write it, {"start": …, "level": …, "title": …} in order of
            `start`; anything else has no headings.
        offset: in characters of the text.
    """
    above: list[tuple[int, str]] = []
    if not isinstance(headings, list):
        return ""
    for each in headings:
        match each:
            case {"start": int(start), "level": int(level), "title": str(title)}:
                if start > offset:
                    break
                while above and above[-1][0] >= level:
                    above.pop()
                above.append((level, title))
            case _:
                return ""
    return " > ".join(title for _, title in above)
