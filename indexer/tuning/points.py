"""Operating points of segments: recall, time and memory.

Only the public search is called, so the times are those of users, with rotation and merging; the
number of threads is not changed. Memory is counted by the file formats.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers
from searchengine.indexer.building.coarse import empty
from searchengine.indexer.config import LINKS, Code, RotationKind, SegmentConfig, Structure
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, merge
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.vectors_file import DTYPES

_WARM_UP = 10  # queries that are searched before those that are timed


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A way to search several segments together.

    Attributes:
        segments: searched in turn; results are merged, and rows numbered through all segments.
        live: the rows of each that may be found; None for all.
        k: neighbours sought.
        shortlist: rows of each segment that are scored at full width; 0 takes the number that each
            segment is configured with, None scores every row.
    """

    segments: tuple[Segment, ...]
    live: tuple[Allowed | None, ...]
    k: int
    shortlist: int | None = 0
    # computed once, not in timed calls
    _bases: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = (segment.rows for segment in self.segments[:-1])
        object.__setattr__(self, "_bases", list(accumulate(rows, initial=0)))

    def search(self, queries: Floats) -> SearchResult:
        """The k best rows of queries (q, D)."""
        results = []
        for segment, live in zip(self.segments, self.live, strict=True):
            if self.shortlist is None:
                results.append(segment.exact(queries, self.k, live))
            else:
                results.append(segment.search(queries, self.k, self.shortlist or None, live))
        return merge(results, self._bases, self.k)

    def seconds(self, queries: Floats) -> Doubles:
        """Seconds of each query searched alone (q,)."""
        parts = [queries[i : i + 1] for i in range(len(queries))]
        for part in parts[:_WARM_UP]:
            self.search(part)
        seconds = np.empty(len(parts))
        for i, part in enumerate(parts):
            begin = time.perf_counter()
            self.search(part)
            seconds[i] = time.perf_counter() - begin
        return seconds


def in_turns(
    points: Sequence[OperatingPoint], queries: Floats, rounds: int
) -> Iterator[tuple[int, Doubles]]:
    """The number of a point and its `seconds`: all points in each round, from another one on.

    So other work on the machine affects all of them.
    """
    for number in range(rounds):
        start = number * len(points) // rounds
        for i in (*range(start, len(points)), *range(start)):
            yield i, points[i].seconds(queries)


def recalls(rows: RowNumbers, exact: RowNumbers) -> Doubles:
    """recall@k of every query: |rows & exact| / |exact|.

    rows, exact: (q, k) row numbers; -1 is padding and does not count. Queries without an exact row
    are left out.
    """
    true = exact >= 0
    hits = ((rows[:, :, None] == exact[:, None]).any(axis=1) & true).sum(axis=1)
    counts = true.sum(axis=1)
    shares: Doubles = hits[counts > 0] / counts[counts > 0]
    return shares


def hot_row(config: SegmentConfig, rows: int, dim: int) -> float:
    """Bytes per row that should fit in memory, because every search may read them.

    Codes, links and ids of the coarse stage over `rows` rows with `dim` dimensions. Nothing is
    built. SegmentConfigError: the config does not fit the vectors.
    """
    config = config.fitting(rows, dim)
    m, links = LINKS, 0.0
    if config.structure is Structure.IVF:
        links = 8 + 4.0 * config.prefix * empty(config, rows).nlist / rows
    elif config.structure is Structure.HNSW:
        # Level 0 has 2 m links of 4 bytes; 1 row in m is on level 1 with m links, and so on. Then
        # the row's level (4), where its links begin (8), and its number.
        links = 8 * m + 4 * m / (m - 1) + 12 + 8
    return config.prefix * (1 if config.code is Code.INT8 else 2) + links


def hot_bytes(config: SegmentConfig, rows: int, dim: int) -> int:
    """Bytes of a segment that should stay in memory: rotation (32 and 8 bits), coarse stage."""
    matrix = 0 if config.rotation is RotationKind.IDENTITY else config.prefix * dim
    return 5 * matrix + round(rows * hot_row(config, rows, dim))


def cold_row(config: SegmentConfig, dim: int) -> int:
    """Bytes of a full-width row, which may stay on the disk."""
    return dim * int(np.dtype(DTYPES[config.storage]).itemsize)
