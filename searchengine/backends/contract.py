"""The contract of backends: what a collection offers, wherever it is kept.

    Backend     an open collection: `reading` gives a Snapshot; `upsert` and `delete` change it
    Snapshot    one commit, to search
    Entry       a document with its passages and their vectors, as they are copied between backends

Rules, which tests/searchengine/backends checks on every backend:

* Only full-width vectors go in, in the encoder's basis; the backend cuts the prefix itself.
* A score is the full-width cosine. Hits are sorted by it, equal ones by id.
* `shortlist` is a lower bound on the rows that are scored at full width. If it is not below the
  number of matching rows, the result is that of exact search.
* A filter is exact: no other document is found, and fewer than k only if fewer match.
* `upsert` is idempotent. A document replaces the one of its key as a whole: no reader sees
  passages of both. Several documents are one commit.
* Another encoder than the one that built the collection is refused.
* Index config, rotation and shortlist belong to the collection, not to the process that opens it.
* A part of the data that cannot be read raises an error. A search never returns less because of it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from searchengine.backends.folder.documents.changes import Known, Span, as_json
from searchengine.backends.folder.documents.scored import WordScores
from searchengine.backends.folder.documents.tables import Ids, Tables
from searchengine.corpus.documents import Document
from searchengine.errors import CorpusError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.search.cascade import SearchResult


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do beyond the contract.

    Attributes:
        name: "embedded" or "postgresql".
        words: how documents are ranked by words; None: not at all, so that the modes text and
            hybrid are refused.
        shortlist_per: what has a shortlist of its own: "segment" or "collection".
        certificate: whether exact search is proved to be exact without reading all rows.
    """

    name: str
    words: str | None
    shortlist_per: str
    certificate: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A document as a backend stores it.

    Attributes:
        document: the document, with its metadata as searches show it.
        spans: its passages, as character offsets into the text; none for a document without vector.
        vectors: (passages, D) float32, in the encoder's basis, of any length but 0.
        source: the metadata as last added, as JSON, if an update has changed it since; else None.
        supplied: the checksum of vectors that came with the document, empty if it came without;
            None: the encoder computed them.
    """

    document: Document
    spans: tuple[Span, ...]
    vectors: Floats
    source: str | None = None
    supplied: bytes | None = None

    @property
    def checksum(self) -> bytes:
        """SHA-256 of all but the vectors, which backends round."""
        parts = (
            self.document.key,
            self.document.digest.hex(),
            as_json(self.document.metadata),
            self.source,
            self.document.root or None,
            None if self.supplied is None else self.supplied.hex(),
            self.spans,
        )
        return hashlib.sha256(repr(parts).encode()).digest()


class Snapshot(Protocol):
    """One commit of a collection, as a query reads it: nothing in it changes.

    searchengine.backends.folder.snapshot.Snapshot is that of a folder. Attributes:
        path: names the collection in messages.
        settings: the collection settings.
        store: its documents and passages.
        rows: number of passages that can be found.
        shortlist: how many of them are scored at full width unless a query says more.
        cuts: whether a document may have several passages.
        commit_id: differs between two states.
        unrelated: mean cosine of unrelated passages, 0–0.95; 0 where it cannot be had cheaply.
    """

    @property
    def path(self) -> Path | str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def store(self) -> Tables: ...
    @property
    def rows(self) -> int: ...
    @property
    def shortlist(self) -> int: ...
    @property
    def cuts(self) -> bool: ...
    @property
    def commit_id(self) -> object: ...
    @property
    def unrelated(self) -> float: ...

    def search(
        self,
        queries: Floats,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        phrases: tuple[str, ...] = (),
        exact: bool = False,
    ) -> SearchResult:
        """Passage ids (as `rows`) and full-width cosines, both (q, k), by (−score, id).

        If fewer than k match, the rest is −1 and −inf. `queries`: (q, D), in the encoder's basis.
        `phrases`: texts that the documents must contain, a filter too.
        """

    def cosines(self, query: Floats, passages: Ids) -> SearchResult:
        """All these passages (n,) by full-width cosine to a query (D,), as `search`: (1, n)."""

    def vectors(self, passages: Ids) -> Floats:
        """The vectors of passages in the encoder's basis: ids (n,) to (n, D) float32."""

    def by_words(
        self,
        question: str,
        k: int,
        where: str | None = None,
        *,
        required: tuple[str, ...] = (),
        as_you_type: bool = False,
    ) -> WordScores:
        """The k best documents by words: (id, score), by (−score, id). Raises QueryError.

        They contain the phrases `required`; other phrases of the question, in quotation marks, add
        to the score. `as_you_type`: its last word may be unfinished.
        """


class Backend(Protocol):
    """An open collection. Safe to use from several threads.

    Attributes:
        path: the folder, or the URL without its password, which names it in messages.
        address: what opens it again.
        wait: seconds to wait for a writer of another process.
        accepts: called with the settings of a state before it is shown; may raise to refuse it.
    """

    wait: float
    accepts: Callable[[Mapping[str, Any]], None]

    @property
    def path(self) -> Path | str: ...
    @property
    def address(self) -> Path | str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def reading(self) -> AbstractContextManager[Snapshot]:
        """A snapshot, which stays as it is throughout the block."""

    def carried(self) -> dict[str, Any]:
        """What a copy on a server takes over: `rotation` (D, D) float32 or None, `shortlist`."""

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """Key → stored state of the documents, for change detection."""

    def entries(self, keys: Sequence[str]) -> list[Entry]:
        """The stored entries of these keys, in their order, without unknown keys."""

    def upsert(self, entries: Sequence[Entry], expected: Mapping[str, Known] | None = None) -> None:
        """Store entries in one commit, in place of those of the same keys.

        Of several with one key, the last one counts. `expected`: what `known` returned for their
        keys. Raises Changed if another writer has changed one of them since, and CorpusError for
        an entry that cannot be stored; then nothing is written.
        """

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""

    def update(self, patches: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents, all or none. Raises QueryError: unknown key."""

    def index_fields(self, names: Iterable[str]) -> None:
        """Index metadata fields, for filters."""

    def configure(self, values: Mapping[str, Any]) -> None:
        """Store collection settings in one commit; None removes one. Others see it at a refresh."""

    def flush(self) -> None:
        """Return when everything that was written survives a power cut and can be found."""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Build the index of vectors if it is missing. Raises CollectionError after `timeout` s."""

    def follow(self) -> None:
        """Show the newest commit if another collection has taken the place of the one shown."""

    def refresh(self) -> None:
        """Show what others have committed."""

    def close(self) -> None:
        """Release files or connections; closing twice is harmless."""


class Changed(Exception):
    """Another writer has changed a document since it was read; nothing was written."""


def checked(entries: Sequence[Entry], dim: int) -> dict[str, Entry]:
    """Key → entry, the last one of each key. `upsert` begins with it.

    Raises CorpusError unless each passage has a vector of `dim` numbers.
    """
    for entry in entries:
        if entry.vectors.shape != (len(entry.spans), dim):
            raise CorpusError(
                f"document {entry.document.key!r:.80}: expected a vector of {dim} numbers for each "
                f"of {len(entry.spans)} passages, got shape {entry.vectors.shape}"
            )
    return {entry.document.key: entry for entry in entries}


def check_unchanged(
    expected: Mapping[str, Known] | None, known: Mapping[str, Known], keys: Iterable[str]
) -> None:
    """Raise Changed unless the stored state of these keys is as expected; None expects nothing."""
    if expected is not None and any(expected.get(key) != known.get(key) for key in keys):
        raise Changed


def scan(backend: Backend, after: str | None = None, batch: int = 500) -> Iterator[list[Entry]]:
    """All entries, in the order in which the documents were first added, in batches.

    Each batch is of one commit, so memory stays bounded and nothing is held between two batches.

    Args:
        backend: the collection.
        after: the key of the last document received, to continue from there. If it was deleted
            meanwhile, the scan begins again: what reads it must bear to get an entry twice.
        batch: documents in a batch.
    """
    last = -1
    if after is not None:
        with backend.reading() as snapshot:
            last = snapshot.store.ids_of([after]).get(after, -1)
    while True:
        with backend.reading() as snapshot:
            ids = snapshot.store.ids_after(last, None, batch)
            keys = snapshot.store.keys_of(ids)
        if not keys:
            return
        last = int(ids[-1])
        if found := backend.entries(keys):  # others may have deleted them all
            yield found


def entries_of(snapshot: Snapshot, known: Mapping[str, Known], keys: Iterable[str]) -> list[Entry]:
    """The entries of those of `keys` that are known, in their order."""
    stored = {key: known[key] for key in keys if key in known}
    ids = [each.id for each in stored.values()]
    documents = snapshot.store.documents(ids)
    passages = snapshot.store.passages_of(ids)
    dim = snapshot.settings["encoder"]["dim"]
    vectors = np.empty((0, dim), np.float32)
    if passages:
        vectors = snapshot.vectors(np.array([passage.id for passage in passages]))
    rows: dict[int, list[int]] = {}
    for row, passage in enumerate(passages):
        rows.setdefault(passage.document, []).append(row)
    return [
        Entry(
            Document(
                document.key,
                document.text,
                document.title,
                document.metadata,
                root=state.root or "",
            ),
            tuple((passages[row].start, passages[row].end) for row in rows.get(state.id, ())),
            vectors[rows.get(state.id, [])],
            state.source,
            state.vectors,
        )
        for document, state in zip(documents, stored.values(), strict=True)
    ]
