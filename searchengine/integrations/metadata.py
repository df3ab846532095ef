"""Metadata of other programs: any name may occur there, also those of a document's own fields.

`_id`, `title` and `text` are stored with an underscore in front, as `_title`; and names that look
so already get one more, so that every name comes back as it was.
"""

import re
from collections.abc import Mapping
from typing import Any

from searchengine.backends.folder.filters.sql import Field
from searchengine.corpus.documents import Document
from searchengine.query.hits import Hit

_OWN = re.compile(r"_+id|_*title|_*text")
_STORED = re.compile(r"__+id|_+title|_+text")


def record(key: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A document for SearchEngine.add."""
    stored = {stored_name(name): value for name, value in metadata.items()}
    return {**stored, "_id": key, "text": text}


def stored_name(name: str) -> str:
    """The name under which a metadata field is stored."""
    return f"_{name}" if isinstance(name, str) and _OWN.fullmatch(name) else name


def stored_path(path: Field) -> Field:
    """The path by which a metadata field is stored."""
    return (stored_name(path[0]), *path[1:])


def metadata_of(document: Document | Hit) -> dict[str, Any]:
    """The metadata as they were given; a title that was not given as metadata is in `title`."""
    given = {
        name[1:] if _STORED.fullmatch(name) else name: value
        for name, value in document.metadata.items()
    }
    if document.title and "title" not in given:
        given["title"] = document.title
    return given
