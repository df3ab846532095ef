"""A collection in other programs: LangChain, LlamaIndex, Haystack. What they share is here.

Documents and hits have a key, a text and metadata; the metadata field `title` is the title of the
document, which a search reads too.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from searchengine.engine import Document, Hit


def make_document(key: str | None, text: str, metadata: Mapping[str, Any]) -> Document:
    """A document for SearchEngine.add. Without a key it has one computed from its content."""
    record = {**metadata, "_id": key or "-", "text": text}
    document = Document.from_mapping(record, f"document {key or text!r:.80}")
    content = repr((text, document.title, document.metadata)).encode()
    return document if key else replace(document, key=sha256(content).hexdigest(), derived=True)


def text_and_metadata(hit: Hit, passages: bool) -> tuple[str, dict[str, Any]]:
    """The text of a hit, or its best passage alone, and the metadata with the title."""
    title = {"title": hit.title} if hit.title else {}
    return hit.passage if passages else hit.text, {**title, **hit.metadata}
