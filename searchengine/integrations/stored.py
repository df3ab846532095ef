"""Documents of other programs: their metadata, where any name may occur, and their embeddings.

`_id`, `title` and `text` are stored with an underscore in front, as `_title`; and names that look
so already get one more, so that every name comes back as it was.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from searchengine.engine import Document, Hit, SearchEngine

_OWN = re.compile(r"_+id|_*title|_*text")
_STORED = re.compile(r"__+id|_+title|_+text")


def record(key: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A document for SearchEngine.add."""
    stored = {stored_name(name): value for name, value in metadata.items()}
    return {**stored, "_id": key, "text": text}


def stored_name(name: str) -> str:
    """The name under which a metadata field is stored."""
    return f"_{name}" if isinstance(name, str) and _OWN.fullmatch(name) else name


def metadata_of(document: Document | Hit) -> dict[str, Any]:
    """The metadata as they were added; `title` has the document's title unless it is metadata."""
    metadata = {
        name[1:] if _STORED.fullmatch(name) else name: value
        for name, value in document.metadata.items()
    }
    if document.title:
        metadata.setdefault("title", document.title)
    return metadata


def embeddings(engine: SearchEngine, keys: Sequence[str]) -> list[list[float] | None]:
    """The mean of each document's vectors, scaled to length 1; None without a vector."""
    means: list[list[float] | None] = []
    for vectors in engine.vectors(keys):
        mean = np.zeros(1) if vectors is None or not len(vectors) else vectors.mean(axis=0)
        length = np.linalg.norm(mean)
        means.append((mean / length).tolist() if length else None)
    return means
