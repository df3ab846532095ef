"""The headings that a place in a text is under."""

from collections.abc import Iterable, Mapping
from typing import Any

from searchengine.corpus.formats.kinds import Heading, enclosing


def headings_of(metadata: Mapping[str, Any]) -> list[Heading]:
    """The headings in a document's metadata, as readers of files write them; else none."""
    stored = metadata.get("headings")
    headings = []
    for each in stored if isinstance(stored, list) else ():
        match each:
            case {"start": int(start), "level": int(level), "title": str(title)}:
                headings.append(Heading(start, level, title))
            case _:
                return []  # a field of the user's, which has the same name
    return headings


def heading_at(headings: Iterable[Heading], offset: int) -> str:
    """The headings around an offset of the text, the highest first, with " > " between; or ""."""
    above = enclosing([heading for heading in headings if heading.start <= offset])
    return " > ".join(heading.title for heading in above)
