"""A collection in other programs: LangChain, LlamaIndex, Haystack. What they share is here.

Documents and hits have a key, a text and metadata; the metadata field `title` is the title of the
document, which a search reads too.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from searchengine.corpus.documents import plain_record
from searchengine.engine import Document, Hit


def make_document(key: str | None, text: str, metadata: Mapping[str, Any]) -> Document:
    """A document for SearchEngine.add. Without a key it has one computed from its content."""
    fields = plain_record(metadata, f"document {key or text!r:.80}")
    content = repr((text, fields)).encode()
    title = fields.pop("title", None) or ""
    return Document(key or sha256(content).hexdigest(), text, title, fields, derived=not key)


def text_and_metadata(hit: Hit, passages: bool) -> tuple[str, dict[str, Any]]:
    """The text of a hit, or its best passage alone, and the metadata with the title."""
    title = {"title": hit.title} if hit.title else {}
    return hit.passage if passages else hit.text, {**title, **hit.metadata}
