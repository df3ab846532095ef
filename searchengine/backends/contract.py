"""The contract of backends: what a collection offers, wherever it is kept.

    Backend     an open collection: `reading` gives a Snapshot; `upsert` and `delete` change it
    Snapshot    one commit, to search
    Tables      its documents and passages
    Entry       a document with its passages and their vectors, as they are copied between backends

Rules, which tests/searchengine/backends checks on every backend:

* Only full-width vectors go in, as the encoder gives them; the backend cuts the prefix itself.
* A score is the full-width cosine. Hits are sorted by it, equal ones by id.
* `shortlist` is a lower bound on the rows that are scored at full width. If it is not below the
  number of matching rows, the result is that of exact search.
* A filter is exact: no other document is found, and fewer than k only if fewer match.
* `upsert` is idempotent. A document replaces the one of its key as a whole: no reader sees
  passages of both. Several documents are one commit.
* Another encoder than the one that built the collection is refused.
* Index config, rotation and shortlist belong to the collection, not to the process that opens it.
* A part of the data that cannot be read raises an error. A search never returns less because of it.

What only a folder can do (segments, tuning, repair, backup) is asked of what `opening.in_folder`
returns. `reindex` distinguishes: a server keeps the new passages in tables.
"""

import hashlib
import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError, CorpusError
from searchengine.indexer.arrays import Floats

if TYPE_CHECKING:
    from searchengine.backends.unrelated import Unrelated
    from searchengine.indexer.building.build import Progress
    from searchengine.indexer.search.cascade import SearchResult

Ids = npt.NDArray[np.int64]
Span = tuple[int, int]
"""Character offsets [start, end)."""
Scored = list[tuple[int, float]]
"""(document id, score), by (−score, id)."""
EXPECTED = 4
"""Words of a question, those that tell most, that the best document can be expected to have."""
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # slow to construct


def as_json(metadata: Mapping[str, Any]) -> str:
    """Metadata as it is stored: as SQLite's own JSON functions write it."""
    return _COMPACT.encode(dict(metadata))


class Passage(NamedTuple):
    """A passage: its document's id, and its offsets in the document's text."""

    id: int
    document: int
    start: int
    end: int


class Known(NamedTuple):
    """The stored state of a document, enough to see whether it has changed.

    `vectors`: checksum of the vectors that came with it, empty if it came without one; None: the
    encoder computed them.
    """

    id: int
    digest: bytes
    metadata: str
    source: str | None
    root: str | None
    vectors: bytes | None = None

    @property
    def added(self) -> str:
        """The metadata as last added, before any update."""
        return self.metadata if self.source is None else self.source


@dataclass(frozen=True, slots=True)
class Entry:
    """A document as a backend stores it.

    Attributes:
        document: the document, with its metadata as searches show it.
        spans: its passages, as character offsets into the text; none for a document without vector.
        vectors: (passages, D) float32, of any length but 0.
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


class WordScores(list[tuple[int, float]]):
    """The documents that have words of a question, with their BM25: a Scored.

    Attributes:
        most: what the EXPECTED most telling words of the question give a document at most, on the
            same scale, divided by the part of the question that documents have; 0: unknown.
        scale: the BM25 score that weighs as much as a cosine of 1: the best, or `most` if that is
            more. So the best document has the full share if it has all of these words, and less if
            it has few of them. What phrases add exceeds it.
        first: document → its first passage, if the ranking has told.
    """

    __slots__ = ("first", "most", "scale")

    def __init__(
        self,
        scored: Iterable[tuple[int, float]] = (),
        most: float = 0.0,
        scale: float | None = None,
        first: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(scored)
        self.first = {} if first is None else first
        self.most = most
        best = self[0][1] if self else 0.0
        self.scale = (max(best, most) or 1.0) if scale is None else scale


class Tables(ABC):
    """Documents and passages of one commit, by id.

    Ids of documents rise in the order in which the documents were first added. An id that is not
    stored raises CollectionError.
    """

    def forget(self) -> None:
        """Drop rows that were kept for the next call, if any."""
        return

    @abstractmethod
    def passages(self, ids: Iterable[int]) -> list[Passage]:
        """The passages with these ids, in this order."""

    @abstractmethod
    def passages_of(self, documents: Iterable[int]) -> list[Passage]:
        """All passages of these documents, by id."""

    @abstractmethod
    def documents(self, ids: Iterable[int]) -> list[Document]:
        """The documents with these ids, in this order."""

    @abstractmethod
    def keys_of(self, ids: Iterable[int]) -> list[str]:
        """The keys of the documents of these ids, in their order."""

    @abstractmethod
    def titles_of(self, ids: Iterable[int]) -> list[tuple[str, str]]:
        """The keys and titles of the documents of these ids, in their order; reads no text."""

    @abstractmethod
    def ids_of(self, keys: Iterable[str]) -> dict[str, int]:
        """Key → id, for the keys that are stored."""

    @abstractmethod
    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        """Key → stored state, for the keys that are stored."""

    @abstractmethod
    def highest_number(self) -> int:
        """The highest key that is a number of at most 18 digits; −1 if there is none."""

    @abstractmethod
    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        """The first ids above `after` of documents that match a filter, ascending, (n,) int64."""

    @abstractmethod
    def count(self, where: str | None = None) -> int:
        """The number of documents that match a filter; None: of all."""

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """The numbers of documents and passages; reads all ids."""

    @abstractmethod
    def values(self, documents: Iterable[int], name: str) -> dict[int, Hashable]:
        """Document id → its value of a metadata field, to group by; missing values differ."""

    @abstractmethod
    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[str, Any, int]]:
        """Kind, value and number of documents that match a filter, for each value of a field.

        Kinds are those of SQLite's json_type; of a list each distinct element counts.
        """


class Snapshot(ABC):
    """One commit of a collection, as a query reads it: nothing in it changes.

    Attributes:
        path: names the collection in messages.
        settings: the collection settings.
    """

    path: Path | str
    settings: Mapping[str, Any]

    @property
    @abstractmethod
    def store(self) -> Tables:
        """Its documents and passages."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """At least the number of passages that can be found; 0 only if there are none."""

    def at_most(self, count: int) -> int:
        """`count`, or the number of passages if that is less and is known without much work."""
        return min(count, self.rows)

    @property
    @abstractmethod
    def shortlist(self) -> int:
        """How many passages are scored at full width unless a query says more."""

    @property
    @abstractmethod
    def commit_id(self) -> object:
        """Differs between two states."""

    @property
    def cuts(self) -> bool:
        """Whether a document may have several passages."""
        return self.settings.get("passages") is not None

    def documents_of(self, passages: Ids) -> list[int]:
        """The documents of passages (n,), in their order."""
        return [passage.document for passage in self.store.passages(passages.tolist())]

    def spans_of(self, passages: Sequence[int]) -> list[Span]:
        """The offsets of passages, in their order."""
        return [(passage.start, passage.end) for passage in self.store.passages(passages)]

    def passages_of(self, documents: Sequence[int], known: Mapping[int, int]) -> dict[int, int]:
        """Passage → document, of all passages of these documents; those of each by id.

        `known`: document → one of its passages, of those for which one is known.
        """
        return {passage.id: passage.document for passage in self.store.passages_of(documents)}

    @property
    @abstractmethod
    def unrelated(self) -> "Unrelated":
        """A sample of passages of different documents: which cosines count as 0."""

    @abstractmethod
    def search(
        self,
        queries: Floats,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        phrases: tuple[str, ...] = (),
        exact: bool = False,
        shown: int = 0,
    ) -> "SearchResult":
        """Passage ids (as `rows`) and full-width cosines, both (q, k), by (−score, id).

        If fewer than k match, the rest is −1 and −inf. `queries`: (q, D).
        `phrases`: texts that the documents must contain, a filter too. `shown`: the documents of so
        many of the first rows will be read next.
        """

    @abstractmethod
    def prefix_ranks(
        self, query: Floats, passages: Ids, where: str | None, shortlist: int | None
    ) -> list[int]:
        """The ranks of passages (n,) by the prefix, from 1, each in its segment. `query`: (D,).

        Empty where a search with this filter and shortlist compares all at full width.
        """

    @abstractmethod
    def cosines(self, query: Floats, passages: Ids) -> "SearchResult":
        """All these passages (n,) by full-width cosine to a query (D,), as `search`: (1, n)."""

    @abstractmethod
    def vectors(self, passages: Ids) -> Floats:
        """The vectors of passages: ids (n,) to (n, D) float32."""

    @abstractmethod
    def by_words(
        self,
        question: str,
        k: int,
        where: str | None = None,
        *,
        required: tuple[str, ...] = (),
    ) -> WordScores:
        """The k best documents by words: (id, score), by (−score, id). Raises QueryError.

        They contain the phrases `required`; other phrases of the question, in quotation marks, add
        to the score. The synonyms that the settings have for the question are
        searched for as well.
        """

    def replacements(self, question: str) -> Mapping[tuple[int, int], str]:
        """Where a question has a word that no document has → the nearest that documents have.

        In order. Empty where words are not compared.
        """
        return {}

    def word_fault(self, entries: Sequence["Entry"]) -> str | None:
        """What is wrong with the index of words of stored entries; None: nothing is known.

        Without entries: what is wrong with its totals.
        """
        return None

    @abstractmethod
    def warm(self) -> int:
        """Read what searches read into a cache, so that none waits for it; returns bytes."""

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """Those attributes of upkeep.stats.Stats that depend on the backend, by name."""


class Backend(ABC):
    """An open collection. Safe to use from several threads.

    Attributes:
        path: the folder, or the URL without its password, which names it in messages.
        address: what opens it again.
        wait: seconds to wait for a writer of another process.
        device: where vectors are scanned.
        accepts: called with the settings of a state before it is shown; may raise to refuse it.
        has_segments: whether it is files with checksums, which `opening.in_folder` returns.
        largest_commit: documents that `add` commits at once; None: any number.
    """

    path: Path | str
    address: Path | str
    wait: float
    device: str = "cpu"
    has_segments: bool = False
    largest_commit: int | None = None
    accepts: Callable[[Mapping[str, Any]], None]

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The collection settings."""

    @property
    def identity(self) -> tuple[int, int] | None:
        """Differs from that of a collection that takes its place."""
        return None

    @property
    @abstractmethod
    def words(self) -> str | None:
        """How documents are ranked by words; None: the modes text and hybrid are refused."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Snapshot]:
        """A snapshot, which stays as it is throughout the block."""

    def newest(self) -> AbstractContextManager[Snapshot]:
        """As `reading`, of the newest commit."""
        return self.reading()

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """Key → stored state of the documents, for change detection."""
        with self.reading() as snapshot:
            return snapshot.store.known(keys)

    def entries(self, keys: Sequence[str]) -> list[Entry]:
        """The stored entries of these keys, in their order, without unknown keys."""
        with self.reading() as snapshot:
            return entries_of(snapshot, keys)

    @abstractmethod
    def upsert(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None = None,
        made_by: Mapping[str, Any] | None = None,
        *,
        metadata: Sequence[Entry] = (),
        unchanged: Sequence[str] = (),
        choose: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        identity: tuple[int, int] | None = None,
        progress: "Progress | None" = None,
    ) -> None:
        """Store entries in one commit; they replace entries with the same keys.

        Args:
            entries: of several with one key, the last one counts.
            expected: what `known` returned for the keys; None: anything.
            made_by: the settings that passages and vectors were made with; None: those shown now.
            metadata: entries of stored documents: write only their metadata, source and root.
            unchanged: keys of others that must be as expected; a folder checks them.
            choose: returns settings to store, from those of a collection that is empty.
            identity: as the property; None: any.
            progress: progress callback of the index.

        Raises Changed if another writer has changed one of the documents since they were as
        expected, EncoderMismatch if a reindex has changed the encoder or the passages since, and
        CorpusError for an entry that cannot be stored; then nothing is written.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""

    @abstractmethod
    def update(self, patches: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents, all or none. Raises QueryError: unknown key."""

    @abstractmethod
    def index_fields(self, names: Iterable[str]) -> None:
        """Index metadata fields, for filters."""

    @abstractmethod
    def configure(self, values: Mapping[str, Any]) -> None:
        """Store collection settings in one commit; None removes one. Others see it at a refresh."""

    def highest_number(self) -> int:
        """The highest key that is a number of at most 18 digits; −1 if there is none."""
        with self.reading() as snapshot:
            return snapshot.store.highest_number()

    def remember_number(self, highest: int) -> None:
        """Called when keys up to the number `highest` were added, before another commit."""
        return

    def wait_ready(
        self,
        timeout: float | None = None,
        *,
        finished: int = 0,
        progress: "Progress | None" = None,
    ) -> None:
        """Build the index of vectors if it is missing. Raises CollectionError after `timeout` s.

        `finished`: documents of an `add` of several commits, after which searches come next.
        """
        return

    def follow(self) -> None:
        """Show the newest commit if another collection has taken the place of the one shown."""
        return

    @abstractmethod
    def refresh(self) -> None:
        """Show what others have committed."""

    @abstractmethod
    def close(self) -> None:
        """Release files or connections; closing twice is harmless."""


class Reindexed(CollectionError):
    """Another encoder has indexed the collection since its settings were read."""


class Changed(Exception):
    """Another writer has changed a document since it was read; nothing was written."""


def folders_only(name: Path | str, instead: str = "") -> CollectionError:
    """The error of what works on folders only, for a collection on a server.

    `instead`: what to do there; by default, to copy it to a folder.
    """
    quoted = shlex.quote(str(name))
    way_out = instead or f"copy it to a folder first: searchengine copy {quoted} FOLDER"
    return CollectionError(f"{name} is on a server, and this works on folders only; {way_out}")


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


def all_entries(snapshot: Snapshot, batch: int = 500) -> Iterator[list[Entry]]:
    """All entries of one commit, in the order in which the documents were first added."""
    last = -1
    while (ids := snapshot.store.ids_after(last, None, batch)).size:
        last = int(ids[-1])
        yield entries_of(snapshot, snapshot.store.keys_of(ids))
        snapshot.store.forget()


def scan(backend: Backend, after: str | None = None, batch: int = 500) -> Iterator[list[Entry]]:
    """All entries, in the order in which the documents were first added, in batches.

    Each batch is of one commit, so memory stays bounded and nothing is held between two batches.

    Args:
        backend: the collection.
        after: the key of the last document received, to continue from there. If that document was
            deleted meanwhile, the scan starts from the beginning, and entries can come twice.
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
        if entries := backend.entries(keys):  # others may have deleted them all
            yield entries


def entries_of(snapshot: Snapshot, keys: Sequence[str]) -> list[Entry]:
    """The entries of the stored ones of `keys`, in their order."""
    known = snapshot.store.known(keys)
    stored = {key: known[key] for key in keys if key in known}
    ids = [state.id for state in stored.values()]
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
