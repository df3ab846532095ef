"""One committed state of a collection, to read from for as long as one likes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.search.allowed import Allowed
from indexer.search.rerank import SearchResult, merge
from indexer.segment import Segment, SegmentConfig
from searchengine.errors import CollectionError
from searchengine.storage.documents.store import Ids, SegmentRow, Store

Vectors = npt.NDArray[np.float32]
READERS = 4
"""Connections of a snapshot: statements that run at once. One of them is kept for quick ones."""
Search = Callable[[SegmentRow, Segment, Allowed | None], SearchResult]


def _checked(store: Store) -> dict[str, Any]:
    """The settings, if they say what a collection needs."""
    settings = store.settings()
    try:
        SegmentConfig.from_dict(settings["index"])
        int(settings.get("commit", 0))
        missing = {"dim", "fingerprint", "source"} - settings["encoder"].keys()
        if missing or type(settings["encoder"]["dim"]) is not int:
            raise ValueError("the encoder is not described")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise store.damaged(f"in its settings: {error}") from error
    return settings


class Snapshot:
    """The segments of one commit and, in a read transaction, the tables of the same.

    Safe to read from several threads. Made by Collection.reading.

    Attributes:
        path: the collection's folder.
        store: the tables.
        settings: how the collection is built.
        segments: the segments, oldest first.
        live: the rows of each that were not deleted; None for all.
        readers: how many are reading from it; the collection closes what nobody reads.
    """

    def __init__(
        self,
        path: Path,
        open_segment: Callable[[SegmentRow], Segment],
        before: "Snapshot | None" = None,
    ) -> None:
        """What has not changed since `before` is taken from it.

        Raises CollectionError when a segment is missing or damaged.
        """
        self.path = path
        self.readers = 0
        self.store = Store(path / "documents.db", readers=READERS)
        try:
            self.store.hold()
            self.settings = _checked(self.store)
            self.segments: Mapping[SegmentRow, Segment] = {
                row: open_segment(row) for row in self.store.segments()
            }
            self.live = {row: self._live(row, before) for row in self.segments}
        except BaseException:
            self.store.close()
            raise

    def _live(self, row: SegmentRow, before: "Snapshot | None") -> Allowed | None:
        if before is not None and row in before.live and self._deleted == before._deleted:
            return before.live[row]
        dead = self.store.dead(row)
        return Allowed.without(dead, row.rows) if dead.size else None

    @property
    def _deleted(self) -> tuple[object, object]:
        """What is the same for two snapshots that have the same tombstones."""
        return self.store.identity, self.settings.get("tombstones_id")

    @property
    def commit(self) -> int:
        """The number of this commit."""
        return int(self.settings.get("commit", 0))

    @property
    def commit_id(self) -> object:
        """The random id of this commit, which tells apart two histories of one number."""
        return self.settings.get("commit_id")

    @property
    def cuts(self) -> bool:
        """Whether a document may have several passages."""
        return self.settings.get("passages") is not None

    @property
    def rows(self) -> int:
        """How many passages can be found."""
        return sum(row.rows if live is None else live.size for row, live in self.live.items())

    def search(
        self,
        queries: Vectors,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        exact: bool = False,
    ) -> SearchResult:
        """Passage ids (as `rows`) and full-width cosines, both (q, k), by (−score, id).

        k is cut to the number of rows; where fewer than that match, the rest is −1 and −inf. The
        filter is applied before the shortlist is counted; each segment gives one of its own.
        `exact` proves that there is nothing better, and needs no shortlist.
        """
        rows = max(1, self.rows)
        k, shortlist = min(k, rows), None if shortlist is None else min(shortlist, rows)
        matching = None if where is None else self.store.matching(where)

        def search(row: SegmentRow, segment: Segment, live: Allowed | None) -> SearchResult:
            allowed = live
            if matching is not None:  # only what is live has a passage
                allowed = Allowed.of(row.part_of(matching), row.rows)
            if exact:
                return segment.exact(queries, k, allowed)
            return segment.search(queries, k, shortlist=shortlist, allowed=allowed)

        return self.merge(search, k)

    def merge(self, search: Search, k: int) -> SearchResult:
        """The k best over all segments of what `search` finds in each; rows become passage ids."""
        if not self.segments:
            raise CollectionError(f"{self.path} is empty; add documents first: searchengine index")
        found = [search(row, each, self.live[row]) for row, each in self.segments.items()]
        return merge(found, [row.base for row in self.segments], k)

    def vectors(self, passages: Ids) -> Vectors:
        """The vectors of passages in the encoder's own basis: ids (n,) to (n, D) float32."""
        order = np.argsort(passages)
        asked = passages[order]
        parts = [
            segment.vectors(inside)
            for row, segment in self.segments.items()
            if (inside := row.part_of(asked)).size
        ]
        found = np.concatenate(parts)
        vectors = np.empty_like(found)
        vectors[order] = found
        return vectors

    def close(self) -> None:
        """End the read transaction. Segments are let go of, for others may be searching them."""
        self.store.close()
