"""Reading a collection in a folder: a Snapshot is one commit, and a View shows one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock, RLock
from time import monotonic
from typing import Any

import numpy as np

from searchengine.backends import contract, lexical, limits
from searchengine.backends.contract import Ids, Known, Passages, Unrelated, WordScores, spread
from searchengine.backends.filters.parser import field_name
from searchengine.backends.folder.database import REOPENED, Identity, log_of
from searchengine.backends.folder.folders import (
    DATABASE,
    checksum,
    folder_errors,
    open_committed,
    stored_bytes,
)
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.folder.words import (
    TIED,
    Speller,
    WordIndex,
    best_by_key,
    contains,
    in_all,
    texts_of,
)
from searchengine.corpus.analyzer import runs
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import Device
from searchengine.indexer.search.cascade import merge
from searchengine.indexer.search.scoring import Allowed, SearchResult
from searchengine.indexer.segment import Segment, rows_beside

_FILTERS, _FILTERED_ROWS = 16, 1 << 24
"""Maximum number of filters with cached rows in a snapshot, and of their rows in all (9 bytes a
row)."""
_TRIES = 20  # to open a commit whose segments others replace
CONNECTIONS = 4
"""Connections of a snapshot, one of them for quick statements only."""
OpenSegment = Callable[[SegmentRow], Segment]
"""Opens a committed segment, or returns one that is open."""
Search = Callable[[SegmentRow, Segment, Allowed | None], SearchResult]


class Snapshot(contract.Snapshot):
    """One commit of a folder: its segments, and its tables in a read transaction.

    Safe to read from several threads. Members without a description: see contract.Snapshot.

    Attributes:
        path: the collection's folder.
        settings: the collection settings.
        segments: the segments, oldest first.
        live: the rows of each segment that are not deleted; None for all.
        readers: number of current readers; the view closes an old snapshot without readers.
        opened_at: when its read transaction began, by time.monotonic.
    """

    path: Path
    live: Mapping[SegmentRow, Allowed | None]
    _deletions: tuple[object, object]

    def __init__(
        self,
        path: Path,
        open_segment: OpenSegment,
        before: "Snapshot | None" = None,
    ) -> None:
        """Open the newest commit; unchanged parts are shared with `before`.

        Raises CollectionError when a segment is missing or damaged.
        """
        self.path = path
        self.readers = 0
        # Not measured or opened yet. A cached_property of Python 3.11 has a lock, which a fork at
        # that moment would leave locked in the child.
        self._unrelated: Unrelated | None = None
        self._words: WordIndex | None = None
        self._speller: Speller | None = None
        self.store = Store(path / DATABASE, readers=CONNECTIONS)
        try:
            self.store.hold()
            self.opened_at = monotonic()
            self.settings = self.store.settings()
            for name, fault in contract.setting_faults(self.settings).items():
                raise self.store.damaged(f"in its settings: {name}: {fault}")
            self.segments: Mapping[SegmentRow, Segment] = {
                row: open_segment(row) for row in self.store.segments()
            }
            self._deletions = self.store.identity, self.settings.get("tombstones_id")
            same = before.live if before and before._deletions == self._deletions else {}
            self.live = {
                row: same[row] if row in same else self._live(row) for row in self.segments
            }
            parts = self.segments.items()
            self._files = [(row, p.passages) for row, p in parts if p.passages is not None]
            if len(self._files) < len(parts):
                raise self.store.damaged("a segment has no file of passages")
            if not parts and self.store.read("SELECT EXISTS (SELECT 1 FROM passages)")[0][0]:
                raise self.store.damaged("it has passages and no segments")
        except BaseException:
            self.store.close()
            raise
        kept = min(_FILTERS, _FILTERED_ROWS // max(1, self.rows))
        self._matching = lru_cache(max(1, kept))(self._match)

    def _live(self, row: SegmentRow) -> Allowed | None:
        dead = self.store.dead(row)
        return Allowed.without(dead, row.rows) if dead.size else None

    @property
    def rows(self) -> int:
        """The number of passages that can be found."""
        return sum(row.rows if live is None else live.size for row, live in self.live.items())

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
        """As in the contract; each segment has a shortlist of the rows that match."""
        if not self.segments:
            none = np.zeros((len(queries), 0))
            return SearchResult(none.astype(np.int64), none.astype(np.float32), True)
        rows = max(1, self.rows)
        k, shortlist = min(k, rows), None if shortlist is None else min(shortlist, rows)
        # One row more shows a tie at the cut; not where it would lengthen the shortlist.
        beyond = int(k < (rows if exact else min(rows, shortlist or self.shortlist)))
        allowed = self._allowed(where, phrases)

        def best(queries: Floats, count: int, exact: bool) -> SearchResult:
            def search(row: SegmentRow, segment: Segment, _: Allowed | None) -> SearchResult:
                limits.check()
                if exact:
                    return segment.exact(queries, count, allowed[row])
                return segment.search(queries, count, shortlist=shortlist, allowed=allowed[row])

            return self.search_segments(search, count)

        result = best(queries, k + beyond, exact)
        if beyond and result.exact:
            last = result.scores[:, k - 1]
            for i in np.flatnonzero((last == result.scores[:, k]) & (last > -np.inf)).tolist():
                near = best(queries[i : i + 1], min(k + TIED, rows), True)
                order = best_by_key(near.rows[0], near.scores[0], k, self._keys_of)
                result.rows[i, :k] = near.rows[0, order]
        return SearchResult(result.rows[:, :k], result.scores[:, :k], result.exact)

    def _keys_of(self, passages: Ids) -> list[str]:
        """The keys of the documents of passages (n,)."""
        return self.store.keys_of(self.documents_of(passages))

    def prefix_ranks(
        self, query: Floats, passages: Ids, where: str | None, shortlist: int | None
    ) -> list[int]:
        queries, ranks = query[None], list[int]()
        allowed = self._allowed(where, ())
        for row, segment in self.segments.items():
            limits.check()
            inside = row.part_of(passages)
            if inside.size and not segment.search(queries, 1, shortlist, allowed[row]).exact:
                ranks += segment.prefix_ranks(queries, inside, allowed[row]).tolist()
        return ranks

    def cosines(self, query: Floats, passages: Ids) -> SearchResult:
        rising = np.sort(passages)
        results, bases = [], []
        for row, segment in self.segments.items():
            if (inside := row.part_of(rising)).size:
                results.append(segment.rerank(query[None], inside[None], inside.size))
                bases.append(row.base)
        return merge(results, bases, len(passages))

    def documents_of(self, passages: Ids) -> Ids:
        """The documents of passages (n,), in their order."""
        documents: Ids = self._columns(passages, 1)[0]
        return documents

    def _columns(self, passages: Ids, count: int = 3) -> Ids:
        """The first columns of passages (n,) in their files; −1 for those in none."""
        columns = np.full((count, passages.size), -1)
        for row, file in self._files:
            inside = (passages >= row.base) & (passages < row.base + row.rows)
            columns[:, inside] = file[:count, passages[inside] - row.base]
        return columns

    def passages(
        self,
        ids: Ids | None = None,
        of: Sequence[int] = (),
        known: Mapping[int, int] | None = None,
    ) -> Passages:
        if ids is None:
            if known is None or not known.keys() >= set(of):
                return self.store.passages_of(of)
            ids = self._beside(np.sort(np.array([known[document] for document in of], np.int64)))
        return Passages(ids, *self._columns(ids))

    def _beside(self, passages: Ids) -> Ids:
        """All passages of some documents. `passages`: one of each, rising."""
        ids = [np.zeros(0, np.int64)]
        for segment, file in self._files:
            rows = rows_beside(file[0], segment.part_of(passages))
            live = self.live[segment]
            ids.append(segment.base + (rows if live is None else rows[live.mask[rows]]))
        return np.concatenate(ids)

    def documents(self, ids: Iterable[int], *, texts: bool = True) -> list[contract.DocumentRow]:
        return self.store.documents(ids, texts=texts)

    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        return self.store.known(keys)

    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        return self.store.ids_after(after, where, limit)

    def count(self, where: str | None = None) -> int:
        return self.store.count(where)

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[Any, int]]:
        return self.store.value_counts(name, where)

    @property
    def words(self) -> WordIndex:
        """The index of words. Raises QueryError if the collection has none."""
        if self._words is None:
            used, owners = lexical.analyzer_of(self.settings), self.documents_of
            self._words = WordIndex(self.store, self.segments, self.live, used, owners)
        return self._words

    def by_words(
        self,
        question: str,
        k: int,
        where: str | None = None,
        *,
        required: tuple[str, ...] = (),
    ) -> WordScores:
        """The k best documents by words: (id, BM25), by (−score, id); see `lexical`."""
        first: dict[int, int] = {}
        words, allowed = self.words, self._matching(where, required)
        ranker = partial(words.best, allowed=allowed, first=first)
        found = lexical.search(words.documents, words.counts, ranker, question, k, self.settings)
        return found._replace(first=first)

    def replacements(self, question: str) -> Mapping[tuple[int, int], str]:
        if self._speller is None:
            self._speller = Speller(self.words, lexical.known_synonyms(self.settings))
        return self._speller.replacements(question)

    def _with_phrases(self, where: str | None, phrases: tuple[str, ...]) -> Ids:
        """The documents that match a filter and contain phrases.

        The texts of the documents with all words of the phrases are read.
        """
        words, found = self.words, [] if where is None else [self.store.matching(where)]
        for phrase in phrases:
            passages = words.passages_with(words.terms(runs(phrase)))
            found.append(self.documents_of(passages))
        ids = in_all(found).tolist()
        rows = texts_of(self.store.scan, ids)
        has = partial(contains, used=words.analyzer)
        kept = [ids[row] for row, text in rows if all(has(text, each) for each in phrases)]
        return np.array(kept, np.int64)

    def _match(
        self, where: str | None, phrases: tuple[str, ...]
    ) -> Mapping[SegmentRow, Allowed] | None:
        """The rows of each segment with matching documents; None for all."""
        if where is None and not phrases:
            return None
        documents = self._with_phrases(where, phrases) if phrases else self.store.matching(where)
        rows = dict[SegmentRow, Allowed]()
        matches = np.zeros(documents.max(initial=0) + 2, bool)  # the last one: of larger ids
        matches[documents] = True
        for row, file in self._files:
            found = matches[np.minimum(file[0], matches.size - 1)]
            live = self.live[row]
            allowed = found if live is None else found & live.mask
            rows[row] = Allowed.from_rows(np.flatnonzero(allowed), row.rows)
        return rows

    def _allowed(
        self, where: str | None, phrases: tuple[str, ...]
    ) -> Mapping[SegmentRow, Allowed | None]:
        """The rows of each segment that may be found; None for all."""
        matching = self._matching(where, phrases)
        return self.live if matching is None else matching

    @property
    def unrelated(self) -> Unrelated:
        """As in contract.Snapshot; measured once."""
        if self._unrelated is None:
            sample = self._sample()
            self._unrelated = Unrelated.of(self.vectors(sample)) if sample.size else Unrelated()
        return self._unrelated

    def _sample(self) -> Ids:
        """A passage of each of at most SAMPLE documents, evenly spread in the order of their ids.

        Not by rows, whose order depends on merges: equal documents are to have equal scores.
        """
        parts = [(np.zeros(0, np.int64),) * 3]  # of each document: id, first passage, passages
        for row, file in self._files:
            live = self.live[row]
            rows = np.arange(row.rows) if live is None else live.rows
            owners = file[0][rows]
            first = np.flatnonzero(np.diff(owners, prepend=-1))
            parts.append((owners[first], row.base + rows[first], np.diff(first, append=rows.size)))
        documents, passages, counts = [np.concatenate(part) for part in zip(*parts, strict=True)]
        order = np.argsort(documents)[spread(documents.size)]
        sample: Ids = passages[order] + np.arange(order.size) % counts[order]
        return sample

    @property
    def shortlist(self) -> int:
        """The most rows that a segment is configured to score at full width."""
        return max((segment.reranked for segment in self.segments.values()), default=1)

    def sizes(self) -> dict[str, Any]:
        segments = self.segments.values()
        rows = sum(segment.rows for segment in segments)
        with Store(self.path / DATABASE, readers=1) as store:  # a reindex goes on without commits
            works = store.works() if store.identity == self.store.identity else []
        return {
            "passages": self.store.counts()[1],
            "segments": len(segments),
            "tombstones": rows - self.rows,
            "commit": int(self.settings.get("commit", 0)),
            "fields": tuple(map(field_name, self.store.indexed())),
            "shortlist": self.shortlist if segments else None,
            "exact": all(segment.config.shortlist >= segment.rows for segment in segments),
            "bytes": stored_bytes(self.path),
            "pending": tuple(map(self.store.describe, works)),
        }

    def search_segments(self, search: Search, k: int) -> SearchResult:
        """The k best of the results of `search` in each segment; rows become passage ids."""
        if not self.segments:
            raise CollectionError(f"{self.path} is empty; add documents first: searchengine index")
        results = [search(row, part, self.live[row]) for row, part in self.segments.items()]
        return merge(results, [row.base for row in self.segments], k)

    def vectors(self, passages: Ids) -> Floats:
        order = np.argsort(passages)
        rising = passages[order]
        parts = [
            segment.vectors(inside)
            for row, segment in self.segments.items()
            if (inside := row.part_of(rising)).size
        ]
        if sum(map(len, parts)) != passages.size:
            raise self.store.damaged("a segment lacks the row of a passage")
        stacked = np.concatenate(parts)
        vectors = np.empty_like(stacked)
        vectors[order] = stacked
        return vectors

    def close(self) -> None:
        """End the read transaction. Segments are not closed: other snapshots may share them."""
        self.store.close()
        for name in ("_matching", "_words", "_speller"):  # breaks the cycle of references
            vars(self).pop(name, None)


class View(contract.Backend):
    """What an open collection shows: a commit, until `refresh` or a change.

    Safe to use from several threads: the snapshot is replaced as a whole. If another folder takes
    the place of `path`, the snapshot stays until `refresh` or the next change, which open the new
    folder. Members without a description: see contract.Backend.

    Attributes:
        path: the folder.
        device: where segments are scanned.
        accepts: called with the settings of a commit before it is shown; may raise to refuse it.
    """

    path: Path

    def __init__(self, path: Path, device: Device) -> None:
        """Open the newest commit. Raises CollectionError for damaged files."""
        self.path, self.device = path, device
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._changing, self._advancing = Lock(), RLock()
        self._interrupted = False  # Ctrl-C may have come between a commit and showing it
        self._shown: Snapshot | None = None
        self._shown = self._newest({})

    @contextmanager
    def reading(self, *, newest: bool = False) -> Iterator[Snapshot]:
        """The snapshot shown now, which stays open throughout the block.

        `newest`: the newest commit; searches continue on the one they see.
        """
        if newest:
            snapshot = self._newest(self._current().segments)
            try:
                yield snapshot
            finally:
                snapshot.close()
            return
        self._catch_up()
        with self._changing:
            snapshot = self._current()
            snapshot.readers += 1
        try:
            yield snapshot
        finally:
            with self._changing:
                snapshot.readers -= 1
                if snapshot is not self._shown and not snapshot.readers:
                    snapshot.close()

    @property
    def segments(self) -> Mapping[SegmentRow, Segment]:
        """The segments shown now."""
        return self._current().segments

    @property
    def identity(self) -> Identity:
        """Differs from that of a collection that takes its place."""
        return self._current().store.identity

    @property
    def settings(self) -> Mapping[str, Any]:
        """The collection settings shown now."""
        self._catch_up()
        return self._current().settings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._shown is None

    def refresh(self) -> None:
        """Show the newest commit of the collection that is in this folder now."""
        with self._advancing, folder_errors(self.path):
            current = self._current()
            with Store(self.path / DATABASE, readers=1) as store:
                if (store.identity, store.settings().get("commit_id")) == (
                    current.store.identity,
                    current.settings.get("commit_id"),
                ) and not (store.overgrown and monotonic() > current.opened_at + REOPENED):
                    return
            self._show_newest(current.segments)

    def close(self) -> None:
        """Release the files; closing twice is harmless."""
        with self._changing:
            shown, self._shown = self._shown, None
            if shown is None:
                return
            if not shown.readers:
                shown.close()
        # The last connection to close checkpoints SQLite's log, which needs one that may write.
        with suppress(CollectionError, OSError):
            if log_of(self.path / DATABASE).exists():
                Store(self.path / DATABASE).close()

    def _catch_up(self) -> None:
        """Show the newest commit after an interrupted change."""
        if self._interrupted and self._shown is not None:
            self.refresh()
            self._interrupted = False

    def _current(self) -> Snapshot:
        if self._shown is None:
            raise CollectionError(f"{self.path} is closed; open it again")
        return self._shown

    def _newest(self, held: Mapping[SegmentRow, Segment]) -> Snapshot:
        """A snapshot of the last commit; segments in `held` are not opened again."""
        open_segment = self._opener(dict(held))  # a failed try adds to it: the next is quicker
        failed: list[SegmentRow] | None = None
        with folder_errors(self.path):
            for tries_left in reversed(range(_TRIES)):
                try:
                    snapshot = Snapshot(self.path, open_segment, self._shown)
                    break
                except (CollectionError, OSError):
                    # Replaced just now and removed by the next writer? Then others are listed.
                    before = failed
                    with Store(self.path / DATABASE, readers=1) as store:
                        failed = store.segments()
                    if failed == before or not tries_left:
                        raise
        try:
            self.accepts(snapshot.settings)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _show_newest(self, held: Mapping[SegmentRow, Segment]) -> None:
        """Show the newest commit; the former snapshot is closed when it has no readers.

        One thread at a time, so that no thread shows an older commit than another before.
        """
        with self._advancing:
            snapshot = self._newest(held)
            with self._changing:
                before = self._shown
                if before is None:  # closed meanwhile
                    snapshot.close()
                    return
                self._shown = snapshot
                if not before.readers:
                    before.close()

    def _opener(self, opened: dict[SegmentRow, Segment]) -> OpenSegment:
        """Opens committed segments, unless they are in `opened`, where it puts them."""

        def open_segment(row: SegmentRow) -> Segment:
            if row not in opened:
                with folder_errors(self.path):
                    options = {"device": self.device, "checksum": checksum}
                    opened[row] = open_committed(self.path, row, **options)
            return opened[row]

        return open_segment
