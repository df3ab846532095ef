"""The contract of backends: what a collection offers, wherever it is kept.

    Backend     an open collection: `reading` gives a Snapshot; `upsert` and `delete` change it
    Snapshot    one commit, to search and to read
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
returns. What can be written with these members is a function in entries.py.
"""

import json
import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from searchengine.backends.mode import Mode
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError, CorpusError, EncoderMismatch
from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import IndexerError

if TYPE_CHECKING:
    from searchengine.indexer.building import Progress
    from searchengine.indexer.search.scoring import SearchResult


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


class Passages(NamedTuple):
    """Passages: ids, their documents' ids, and their offsets in the texts; (n,) int64 each."""

    ids: Ids
    documents: Ids
    starts: Ids
    ends: Ids


class DocumentRow(NamedTuple):
    """A document as it is stored, for hits. `Document.stored` makes a Document of it."""

    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]


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
    def state(self) -> tuple[Hashable, ...]:
        """All but the vectors, which backends round; equal for equal entries."""
        document, metadata = self.document, as_json(self.document.metadata)
        origin = self.source, document.root or None, self.supplied
        return document.key, document.digest, metadata, *origin, self.spans


class WordScores(NamedTuple):
    """The documents that have words of a question, with their BM25.

    Attributes:
        scored: the documents.
        scale: the BM25 score that weighs as much as a cosine of 1: the best, or what the EXPECTED
            most telling words of the question give a document at most, if that is more. So the best
            document has the full share if it has all of these words, and less if it has few of
            them.
        first: document → its first passage, if the ranking has told.
    """

    scored: Scored
    scale: float = 1.0
    first: Mapping[int, int] = MappingProxyType({})


SAMPLE = 128
"""Passages in the sample."""
MAX_UNRELATED = 0.9
"""Maximum of the mean: among nearly equal texts, cosines would count without limit. That of E5 is
0.84 at most."""


def spread(count: int, size: int = SAMPLE) -> RowNumbers:
    """At most `size` of the numbers below `count`, evenly spread, rising, always the same ones."""
    return np.unique(np.linspace(0, max(count - 1, 0), size).astype(np.int64))[:count]


class Unrelated(NamedTuple):
    """A sample of passages: it tells the cosine that counts as 0 in a fusion.

    Attributes:
        mean: the mean cosine of two of them, 0–0.9.
        center: the mean of their vectors, (D,) float32; None: there are fewer than two.
    """

    mean: float = 0.0
    center: Floats | None = None

    @classmethod
    def of(cls, vectors: Floats) -> Self:
        """`vectors`: unit rows of the sample, (n, D)."""
        if len(vectors) < 2:
            return cls()
        total, count = vectors.sum(axis=0, dtype=np.float64), len(vectors)
        squares = float(np.square(vectors, dtype=np.float64).sum())
        mean = (float(total @ total) - squares) / (count * (count - 1))
        return cls(min(max(mean, 0.0), MAX_UNRELATED), (total / count).astype(np.float32))


class Snapshot(Protocol):
    """One commit of a collection, as a query reads it: nothing in it changes.

    Ids of documents rise in the order in which the documents were first added. An id that is not
    stored raises CollectionError.

    Attributes:
        settings: the collection settings.
    """

    settings: Mapping[str, Any]

    @property
    def shortlist(self) -> int:
        """How many passages are scored at full width unless a query says more."""

    @property
    def unrelated(self) -> Unrelated:
        """A sample of passages of different documents: which cosines count as 0."""

    def search(
        self,
        queries: Floats,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        phrases: tuple[str, ...] = (),
        exact: bool = False,
    ) -> "SearchResult":
        """Passage ids (as `rows`) and full-width cosines, both (q, at most k), by (−score, id).

        If a query has fewer than another, the rest is −1 and −inf. `queries`: (q, D).
        `phrases`: texts that the documents must contain, a filter too.
        """

    def prefix_ranks(
        self, query: Floats, passages: Ids, where: str | None, shortlist: int | None
    ) -> list[int]:
        """The ranks of passages (n,) by the prefix, from 1, each in its segment. `query`: (D,).

        Empty where a search with this filter and shortlist compares all at full width, and on a
        server.
        """

    def cosines(self, query: Floats, passages: Ids) -> "SearchResult":
        """These passages (n,) and their full-width cosines to a query (D,), as `search`: (1, n)."""

    def vectors(self, passages: Ids) -> Floats:
        """The vectors of passages: ids (n,) to (n, D) float32."""

    def by_words(
        self,
        question: str,
        k: int,
        where: str | None = None,
        *,
        required: tuple[str, ...] = (),
    ) -> WordScores:
        """The k best documents by words: (id, score), by (−score, id). Raises QueryError.

        They contain the phrases `required`. The synonyms that the settings have for the question
        are searched for as well.
        """

    def replacements(self, question: str) -> Mapping[tuple[int, int], str]:
        """Where a question has a word that no document has → the nearest that documents have.

        In order. Empty where words are not compared.
        """

    def passages(
        self,
        ids: Ids | None = None,
        of: Sequence[int] = (),
        known: Mapping[int, int] | None = None,
    ) -> Passages:
        """The passages with these ids, in this order; without `ids` all `of` documents, by id.

        `known`: document → one of its passages, of those for which one is known.
        """

    def documents(self, ids: Iterable[int], *, texts: bool = True) -> list[DocumentRow]:
        """The documents with these ids, in this order.

        Without `texts`, text and metadata are left empty: for keys and titles.
        """

    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        """Key → stored state, for the keys that are stored."""

    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        """The first ids above `after` of documents that match a filter, ascending, (n,) int64."""

    def count(self, where: str | None = None) -> int:
        """The number of documents that match a filter; None: all documents."""

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[Any, int]]:
        """Each value of a field, and the number of documents that match a filter and have it.

        Of a list each distinct element counts. 1, 1.0 and true may be told apart.
        """

    def sizes(self) -> dict[str, Any]:
        """Those attributes of upkeep.stats.Stats that depend on the backend, by name."""


class Backend(Protocol):
    """An open collection. Safe to use from several threads.

    Attributes:
        path: the folder, or the URL without its password, which names it in messages.
        accepts: called with the settings of a state before it is shown; may raise to refuse it.
    """

    path: Path | str
    accepts: Callable[[Mapping[str, Any]], None]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The collection settings."""

    def reading(self, *, newest: bool = False) -> AbstractContextManager[Snapshot]:
        """A snapshot, which stays as it is throughout the block.

        `newest`: of the last commit, whatever is shown.
        """

    def upsert(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None = None,
        made_by: Mapping[str, Any] | None = None,
        *,
        metadata: Sequence[Entry] = (),
        unchanged: Sequence[str] = (),
        choose: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        finished: int | None = None,
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
            finished: documents of an `add` that ends with this, and searches come next: build or
                merge what they need. 0: it was a single commit. None: it goes on.
            progress: progress callback of the index.

        Raises Changed if another writer has changed one of the documents since they were as
        expected, EncoderMismatch if a reindex has changed the encoder or the passages since, and
        CorpusError for an entry that cannot be stored; then nothing is written.
        """

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""

    def configure(self, values: Mapping[str, Any], *, fields: Iterable[str] = ()) -> None:
        """Store collection settings in one commit; None removes one. Others see it at a refresh.

        `fields`: metadata fields to index, for filters.
        """

    def refresh(self) -> None:
        """Show what others have committed."""

    def close(self) -> None:
        """Release files or connections; closing twice is harmless."""


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


def check_made_by(
    path: Path | str, made_by: Mapping[str, Any] | None, stored: Mapping[str, Any]
) -> None:
    """Raise EncoderMismatch unless passages and vectors made by these settings suit those stored.

    What an open collection shows does not count: another thread may have moved it since.
    """
    parts = [
        (each["encoder"]["fingerprint"], each["encoder"]["dim"], each.get("passages"))
        for each in (made_by or stored, stored)
    ]
    if parts[0] != parts[1]:
        now = stored["encoder"]
        name = now["source"] or now.get("name") or now["fingerprint"][:12]
        raise EncoderMismatch(
            f"{path} was reindexed by the encoder {name} after these vectors were made; they were "
            "not added, make them again by that encoder"
        )


def has_words(settings: Mapping[str, Any]) -> bool:
    """Whether documents are ranked by words; else the modes text and hybrid are refused."""
    return bool(settings["tokenizer"] != Tokenizer.NONE)


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and value >= least


_SENSIBLE: dict[str, Callable[[Any], object]] = {
    "encoder": lambda encoder: (
        _is_count(encoder["dim"], 1)
        and isinstance(encoder["fingerprint"], str)
        and isinstance(encoder["source"], str | None)
    ),
    "index": SegmentConfig.from_dict,
    "tokenizer": lambda name: isinstance(name, str) and Analyzer.parse(name),
    "mode": Mode,
    "weight": lambda weight: type(weight) in (int, float) and 0 <= weight <= 1,
    "passages": lambda cut: cut is None or _is_count(cut.get("tokens", 0)),
    "tuned": lambda tuned: "tuning" in tuned.keys(),
    "query_map": lambda query_map: {"dim", "fingerprint", "matrix"} <= query_map.keys(),
    "synonyms": lambda text: isinstance(text, str),
    "commit": lambda commit: int(commit) >= 0,
}
"""Setting → a check, which is false or an error for a value that makes no sense."""
_NEEDED = ("encoder", "index", "tokenizer")


def setting_faults(settings: Mapping[str, Any]) -> dict[str, str]:
    """Name → what is wrong, of settings that make no sense or are missing."""
    faults = {name: "is missing" for name in _NEEDED if name not in settings}
    for name, value in settings.items():
        try:
            fits = name not in _SENSIBLE or _SENSIBLE[name](value)
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError, IndexerError):
            fits = False
        if not fits:
            faults[name] = f"makes no sense: {value!r:.80}"
    return faults
