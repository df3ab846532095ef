"""Documents → passages → vectors → a server: what `add` does where the collection is not a folder.

Each block of documents is a commit of its own, made after its passages are encoded. After an
interruption the same call continues after the last commit: stored documents are not encoded
again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from searchengine.backends.contract import Backend, Changed, Entry, Known, Span
from searchengine.backends.folder.documents.changes import Comparison, compare, merged
from searchengine.corpus.documents import DataFrame, Document, LeftOut, as_documents, numbered
from searchengine.encoders.protocol import Vectors
from searchengine.errors import CollectionError, DuplicateKey, EmptyCorpus, QueryError
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.settings import AddOptions, AddSummary
from searchengine.ingest.supplied import Rows, VectorsArgument, checksum_of, number_taken

_BLOCK = 2000  # documents read, encoded and committed together
_TRIES = 100  # to write a block that others change


def upsert_documents(
    backend: Backend,
    documents: Iterable[Document | Mapping[str, Any]] | DataFrame | None,
    vectors: VectorsArgument | None,
    reader: PassageReader | None,
    options: AddOptions,
) -> AddSummary:
    """Commit documents to a server; see SearchEngine.add. One of `vectors` and `reader` is None."""
    rows = None
    if vectors is not None:
        if options.skip_bad:
            raise QueryError("skip_bad would shift the rows of the vectors; leave skip_bad out")
        rows = Rows.checked(vectors, backend.settings["encoder"]["dim"])
    adding = _Adding(backend, reader, rows, options, numbered=documents is None)
    if documents is None:
        assert rows is not None
        with backend.reading() as snapshot:
            documents = numbered(rows.documents, first=snapshot.store.highest_number() + 1)
    stream = as_documents(
        documents, adding.bad if options.skip_bad else None, needs_text=rows is None
    )
    while block := list(islice(stream, min(_BLOCK, options.commit_every or _BLOCK))):
        adding.add(block)
    adding.end()
    backend.wait_ready()
    return adding.summary()


@dataclass
class _Adding:
    """One call of `add`: what was done so far."""

    backend: Backend
    reader: PassageReader | None
    rows: Rows | None
    options: AddOptions
    numbered: bool  # vectors without documents, under new numbers
    added: int = 0
    changed: int = 0
    metadata_updated: int = 0
    unchanged: int = 0
    without_text: LeftOut = field(default_factory=LeftOut)
    bad: LeftOut = field(default_factory=LeftOut)
    repeated: LeftOut = field(default_factory=LeftOut)
    seen: set[str] = field(default_factory=set)
    position: int = 0  # documents read

    def add(self, block: Sequence[Document]) -> None:
        """Commit a block."""
        supplied = self._supplied(block)
        storable = self._storable(block, supplied)
        checksums = {key: checksum for key, (_, _, checksum) in supplied.items()}
        vectors: dict[str, tuple[Sequence[Span], Vectors]] = {
            key: (spans, own) for key, (spans, own, _) in supplied.items()
        }
        tokens = 0
        for _ in range(_TRIES):
            stored = self.backend.known([document.key for document in storable])
            if self.numbered and stored:
                raise number_taken(self.backend.path, next(iter(stored)))
            comparison = compare(storable, stored, checksums)
            if new := [each for each in comparison.changed if each.key not in vectors]:
                tokens += self._encode(new, vectors)
            try:
                self._upsert(comparison, stored, vectors, checksums)
                break
            except Changed:  # look again; only what is new by now is encoded
                continue
        else:
            raise CollectionError(
                f"{self.backend.path}: other writers changed the same documents {_TRIES} times in "
                "a row; nothing was added since the last commit, try again"
            )
        replaced = sum(document.key in stored for document in comparison.changed)
        self.changed += replaced
        self.added += len(comparison.changed) - replaced
        self.metadata_updated += comparison.metadata_updated
        self.unchanged += comparison.unchanged
        if self.options.progress is not None:
            self.options.progress(len(block), tokens)

    def _upsert(
        self,
        comparison: Comparison,
        stored: Mapping[str, Known],
        vectors: Mapping[str, tuple[Sequence[Span], Vectors]],
        checksums: Mapping[str, bytes],
    ) -> None:
        """Store what differs. Raises Changed if another writer has changed some of it."""
        entries = []
        for document in comparison.changed:
            checksum = checksums.get(document.key)
            entries.append(_entry(document, *vectors[document.key], stored, checksum))
        kept = self.backend.entries([document.key for document in comparison.metadata])
        by_key = {entry.document.key: entry for entry in kept}
        for document in comparison.metadata:
            before = by_key.get(document.key)
            if before is None:
                raise Changed
            parts = (before.spans, before.vectors, stored, before.supplied)
            entries.append(_entry(document, *parts))
        if entries:
            self.backend.upsert(entries, stored)

    def end(self) -> None:
        """Check what is known only when all documents are read."""
        if self.rows is not None and self.position != self.rows.documents:
            raise self._other_number()
        if not (self.added or self.changed or self.metadata_updated or self.unchanged):
            raise EmptyCorpus("no document to index; nothing was changed")

    def summary(self) -> AddSummary:
        """What was done."""
        return AddSummary(
            self.added,
            self.changed,
            self.metadata_updated,
            self.unchanged,
            self.without_text,
            self.bad,
            self.repeated,
        )

    def _supplied(self, block: Sequence[Document]) -> dict[str, tuple[list[Span], Vectors, bytes]]:
        """Key → passage, vector and checksum, of documents that come with vectors."""
        first, self.position = self.position, self.position + len(block)
        if self.rows is None:
            return {}
        if self.position > self.rows.documents:
            raise self._other_number()
        numbers = np.arange(first, self.position)
        if self.rows.of_document is not None:
            numbers = self.rows.of_document[first : self.position]
        vectors = self.rows.read(numbers[numbers >= 0].tolist())
        following = iter(vectors)
        supplied: dict[str, tuple[list[Span], Vectors, bytes]] = {}
        for document, number in zip(block, numbers, strict=True):
            cut = [(0, len(document.text))] if number >= 0 else []
            own = np.stack([next(following)]) if cut else vectors[:0]
            supplied.setdefault(document.key, (cut, own, checksum_of(cut, own)))
        return supplied

    def _other_number(self) -> QueryError:
        assert self.rows is not None
        return QueryError(
            f"every document needs one row of the vectors, got {self.rows.documents} rows and "
            f"{'more' if self.position > self.rows.documents else self.position} documents; "
            "nothing was added since the last commit"
        )

    def _storable(self, block: Sequence[Document], supplied: Mapping[str, Any]) -> list[Document]:
        """Documents with a text or vector and a new key; counts the others."""
        kept = []
        for document in block:
            if not document.full_text and not (
                document.key in supplied and supplied[document.key][0]
            ):
                self.without_text.add(document.key)
            elif document.key not in self.seen:
                self.seen.add(document.key)
                kept.append(document)
            elif document.derived:
                self.repeated.add(document.key)
            else:
                message = (
                    f"{document.origin or 'add'}: the key {document.key!r} occurs twice; give it "
                    "another key or leave it out"
                )
                if not self.options.skip_bad:
                    raise DuplicateKey(message)
                self.bad.add(message)
        return kept

    def _encode(
        self,
        documents: Sequence[Document],
        vectors: dict[str, tuple[Sequence[Span], Vectors]],
    ) -> int:
        """Add passages and vectors of documents, by key; returns the number of tokens."""
        assert self.reader is not None
        spans, encoded, tokens = self.reader.cut_and_encode(documents)
        parts = np.split(encoded, np.cumsum([len(cut) for cut in spans])[:-1])
        for document, cut, own in zip(documents, spans, parts, strict=True):
            vectors[document.key] = cut, own
        return tokens


def _entry(
    document: Document,
    spans: Sequence[Span],
    vectors: Vectors,
    stored: Mapping[str, Known],
    supplied: bytes | None,
) -> Entry:
    """The entry of a document; values that `update` set stay (storage.documents.changes)."""
    metadata, source = merged(stored.get(document.key), document)
    document = replace(document, metadata=json.loads(metadata), origin="", file="")
    return Entry(document, tuple(spans), vectors, source, supplied)
