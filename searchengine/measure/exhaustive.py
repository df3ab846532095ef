"""Rankings of all passages of a collection by brute force: at full width, and by a prefix."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from searchengine.backends.folder.documents.store import SegmentRow
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.encoders.protocol import Vectors
from searchengine.indexer.arrays import prefix
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.config import Code, SegmentConfig, Structure
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.segment import Segment


def documents_of(snapshot: Snapshot, ids: npt.NDArray[np.int64]) -> Iterator[list[str]]:
    """The documents of passages (q, depth), padded with −1: a list of keys per question."""
    keys = iter(snapshot.store.keys(ids[ids >= 0]))
    return (list(islice(keys, int((row >= 0).sum()))) for row in ids)


def at_full_width(snapshot: Snapshot, vectors: Vectors, documents: int) -> tuple[int, SearchResult]:
    """Search until every question has `documents` documents; return (depth, result)."""
    depth = documents
    while True:
        k = depth
        result = snapshot.merge(lambda _, segment, live: segment.exact(vectors, k, live), k)  # noqa: B023
        if not snapshot.cuts or depth >= snapshot.rows:
            return depth, result
        # Several passages of a document count once.
        if all(len(set(keys)) >= documents for keys in documents_of(snapshot, result.rows)):
            return depth, result
        depth *= 4


class PrefixSearch:
    """Rankings by a prefix of all passages, whose indexes are built once."""

    def __init__(self, snapshot: Snapshot, dim: int) -> None:
        config = SegmentConfig(prefix=dim, structure=Structure.FLAT, code=Code.FP32)
        self._snapshot, self._dim = snapshot, dim
        self._indexes = {
            row: build_coarse(segment.prefix_rows(dim), config)
            for row, segment in snapshot.segments.items()
        }

    def rank(
        self, vectors: Vectors, shortlist: int, depth: int
    ) -> tuple[SearchResult, SearchResult]:
        """The ranking of the shortlist at full width, and the ranking by the prefix alone."""
        dim, size = self._dim, max(shortlist, depth)
        segments = self._snapshot.segments
        rotations = {row: segment.rotate(vectors) for row, segment in segments.items()}

        def nearest(row: SegmentRow, segment: Segment, live: Allowed | None) -> SearchResult:
            rotated = rotations[row]
            candidates = self._indexes[row].shortlist(
                rotated[:, :dim], min(size, segment.rows), live
            )
            return rerank(_Prefixes(segment, dim), prefix(rotated, dim), candidates, size)

        alone = self._snapshot.merge(nearest, size)
        # One shortlist over all segments: separate ones would depend on the number of segments.
        chosen = alone.rows[:, :shortlist]

        def reranked(row: SegmentRow, segment: Segment, _: Allowed | None) -> SearchResult:
            first, last = row.ends
            inside = np.where((first <= chosen) & (chosen <= last), chosen - first, -1)
            return segment.rerank(rotations[row], inside, depth)

        bare = SearchResult(alone.rows[:, :depth], alone.scores[:, :depth])
        return self._snapshot.merge(reranked, depth), bare


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, in the form that `rerank` takes."""

    segment: Segment
    dim: int

    def take(self, rows: npt.NDArray[np.int64]) -> Vectors:
        full = self.segment.take(rows)
        return prefix(full.reshape(-1, full.shape[-1]), self.dim).reshape(*rows.shape, self.dim)
