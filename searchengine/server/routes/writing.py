"""Documents of a request → checked documents and vectors → one commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from searchengine.corpus.documents import Document
from searchengine.corpus.text_files import bad
from searchengine.encoders.protocol import NO_ENCODER, Vectors
from searchengine.encoders.questions import as_array, check_vectors
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.server.settings import MAX_KEY

VECTOR = "_vector"
"""Field of a record that holds the document's vector, if it comes with one."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A document to store, with its vector (1, D) if it came with one."""

    document: Document
    vector: Vectors | None = None


def incoming(record: Mapping[str, Any], place: str, dim: int, key: str = "") -> Incoming:
    """A checked document. Raises CorpusError: `place` and what is wrong.

    Args:
        record: `_id` (or `key`), `title`, `text`, `_vector`, and metadata.
        place: begins the message.
        dim: width of the collection's vectors.
        key: for a record without `_id`.
    """
    rest = dict(record)
    given = rest.pop(VECTOR, None)
    vector = None
    if given is not None:
        try:
            vector = check_vectors(as_array([given]), dim)
        except QueryError as error:
            needed = f"{VECTOR} must be a list of {dim} finite numbers, not all zeros"
            raise bad(place, needed) from error
    document = Document.from_mapping(rest, place, key, needs_text=False)
    if len(document.key) > MAX_KEY:
        raise bad(place, f"a key has at most {MAX_KEY} characters, got {len(document.key)}")
    if key and document.key != key:
        raise bad(place, f"the _id is {document.key!r:.80}, but the address names {key!r:.80}")
    if not document.full_text and vector is None:
        raise bad(place, "the document has neither text nor title nor a vector")
    return Incoming(document, vector)


@dataclass(slots=True)
class Counts:
    """What became of documents."""

    added: int = 0
    changed: int = 0
    metadata_updated: int = 0
    unchanged: int = 0

    def result(self) -> str:
        """The one count that is not 0, for a single document."""
        names = ("added", "changed", "metadata_updated")
        return next((name for name in names if getattr(self, name)), "unchanged")


def write(engine: SearchEngine, batch: Sequence[Incoming]) -> Counts:
    """Commit documents of different keys: one commit, or two if only some come with vectors.

    In a collection without an encoder, those without a vector are found by their words.
    """
    encodes = engine.collection.settings["encoder"]["fingerprint"] != NO_ENCODER
    counts = Counts()
    encoded = [each for each in batch if encodes and each.vector is None]
    supplied = [each for each in batch if not encodes or each.vector is not None]
    for part, vectors in ((encoded, False), (supplied, True)):
        if not part:
            continue
        documents = [each.document for each in part]
        rows = [None if each.vector is None else each.vector[0] for each in part]
        summary = engine.add(documents, rows if vectors else None)
        if summary.bad.count or summary.without_text.count or summary.repeated.count:
            raise CorpusError("documents were left out that had been checked")
        for name in Counts.__slots__:
            setattr(counts, name, getattr(counts, name) + getattr(summary, name))
    return counts
