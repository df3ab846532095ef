"""Operating points of segments, measured: recall and time per query.

Only the public search is called, so the times are those of users, with rotation and merging. The
number of threads is not changed.
"""

import time
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from indexer.arrays import Doubles, Floats, RowNumbers, at_least_one
from indexer.errors import VectorError
from indexer.search.allowed import Allowed
from indexer.search.cascade import SearchResult, merge
from indexer.segment import Segment

WARM_UP = 10
"""Queries that are searched before those that are timed."""


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
    shortlist: int | None
    _bases: list[int] = field(
        init=False, repr=False, compare=False
    )  # computed once, not in timed calls

    def __post_init__(self) -> None:
        if not self.segments:
            raise VectorError("an operating point needs at least one segment, got none")
        at_least_one("k", self.k)
        if self.shortlist:
            at_least_one("shortlist", self.shortlist)
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

    def one_by_one(self, queries: Floats) -> tuple[RowNumbers, Doubles]:
        """Rows (q, k) and seconds (q,) of queries searched one after the other."""
        for i in range(min(WARM_UP, len(queries))):
            self.search(queries[i : i + 1])
        rows, seconds = [], np.empty(len(queries))
        for i in range(len(queries)):
            begin = time.perf_counter()
            rows.append(self.search(queries[i : i + 1]).rows)
            seconds[i] = time.perf_counter() - begin
        return np.concatenate(rows), seconds

    def at_once(self, queries: Floats) -> tuple[RowNumbers, float]:
        """Rows (q, k) and seconds of queries searched in one call."""
        begin = time.perf_counter()
        rows = self.search(queries).rows
        return rows, time.perf_counter() - begin


def recalls(found: RowNumbers, exact: RowNumbers) -> Doubles:
    """recall@k of every query: |found & exact| / |exact|.

    Args:
        found, exact: (q, k) row numbers; -1 is padding and does not count. Queries without an exact
            row are left out.

    Raises:
        VectorError: different numbers of queries, or no query has an exact row.
    """
    if len(found) != len(exact):
        raise VectorError(
            f"found and exact must have equal query counts, got {len(found)} and {len(exact)}"
        )
    shares = [
        len(truth & set(line[line >= 0].tolist())) / len(truth)
        for line, target in zip(found, exact, strict=True)
        if (truth := set(target[target >= 0].tolist()))
    ]
    if not shares:
        raise VectorError("recall is undefined: no query has an exact row")
    return np.array(shares)


def recall(found: RowNumbers, exact: RowNumbers) -> float:
    """The mean of `recalls`."""
    return float(recalls(found, exact).mean())
