"""Operating points of segments, measured: recall and time per query.

Only the public search is called, so the times are those of users, with rotation and merging. The
number of threads is not changed.
"""

import mmap
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers, at_least_one
from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, merge
from searchengine.indexer.segment import Segment

_TIMED = 100
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


def recalls(rows: RowNumbers, exact: RowNumbers) -> Doubles:
    """recall@k of every query: |rows & exact| / |exact|.

    Args:
        rows, exact: (q, k) row numbers; -1 is padding and does not count. Queries without an exact
            row are left out.

    Raises:
        VectorError: different numbers of queries, or no query has an exact row.
    """
    if len(rows) != len(exact):
        raise VectorError(
            f"rows and exact must have equal query counts, got {len(rows)} and {len(exact)}"
        )
    shares = [
        len(truth & set(line[line >= 0].tolist())) / len(truth)
        for line, target in zip(rows, exact, strict=True)
        if (truth := set(target[target >= 0].tolist()))
    ]
    if not shares:
        raise VectorError("recall is undefined: no query has an exact row")
    return np.array(shares)


def recall(rows: RowNumbers, exact: RowNumbers) -> float:
    """The mean of `recalls`."""
    return float(recalls(rows, exact).mean())


class ColdRows:
    """Copies of the vectors files of segments; their pages can be dropped from the page cache.

    The coarse stage stays in memory. Only the full-width rows are cold; a search reads those of its
    shortlist. The files of the open segments are mapped and cannot be dropped, hence the copies.
    """

    def __init__(self, copies: Sequence[Path]) -> None:
        self._copies = tuple(copies)

    @classmethod
    @contextmanager
    def copied(cls, segments: Sequence[Segment], folder: Path) -> Iterator["ColdRows"]:
        """Copies in a new folder, for a block. OSError if they cannot be written."""
        folder.mkdir()
        try:
            copies = []
            for number, segment in enumerate(segments):
                copy = folder / f"{number}.faiss"
                shutil.copyfile(segment.path / segment.manifest.vectors_file, copy)
                with copy.open("rb") as file:
                    os.fsync(file.fileno())  # a dirty page cannot be dropped
                copies.append(copy)
            yield cls(copies)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def first(self, point: OperatingPoint, query: Floats) -> tuple[float, int]:
        """Seconds of one query (1, D) on a new map without a page in memory, and pages read.

        Pages include read-ahead. 0 means that the system did not drop them, e.g. because the folder
        is stored in memory.
        """
        for copy in self._copies:
            _drop(copy)
        pairs = zip(point.segments, self._copies, strict=True)
        fresh = [segment.remapped(copy) for segment, copy in pairs]
        cold = replace(point, segments=tuple(fresh))
        try:
            before = _read()
            begin = time.perf_counter()
            cold.search(query)
            seconds = time.perf_counter() - begin
            return seconds, _read() - before
        finally:
            for segment in fresh:
                segment.close()


def _read() -> int:
    """Pages that this process has read from the disk; if unknown, its major page faults."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        read_bytes = next(line for line in lines if line.startswith("read_bytes"))
        return int(read_bytes.split()[1]) // mmap.PAGESIZE
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _drop(path: Path) -> None:
    """Drop the cached pages of an unmapped file, where the system can; macOS cannot."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def milliseconds_alone(
    encode: Callable[[list[str]], object], questions: Sequence[str]
) -> list[float]:
    """Milliseconds of at most 100 questions, each encoded alone, after each was encoded once."""
    seconds = []
    for text in [*questions[:_TIMED]] * 2:
        begin = time.perf_counter()
        encode([text])
        seconds.append(time.perf_counter() - begin)
    return [1e3 * value for value in seconds[len(seconds) // 2 :]]
