"""Recall and latency over prefixes and shortlist sizes, timed from outside."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from indexer.arrays import Floats, RowNumbers, at_least_one
from indexer.errors import VectorError
from indexer.rerank import SearchResult, merge
from indexer.segment import Segment

EXACT = "exact"
_WARM_UP = 10


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One operating point.

    Attributes:
        structure, code: of the coarse stage; "exact" and the stored rows' format for the
            full-width scan.
        prefix, shortlist: the operating point; D and all rows for the full-width scan.
        rows, queries, k: what was searched.
        recall: share of the true k nearest rows that was found, mean over the queries.
        p50_ms, p95_ms: latency of one query, searched as users' are, rotation and merging
            included, milliseconds.
        shortlist_ms, rerank_ms: medians of the two stages over all segments, called one after the
            other. Their sum may exceed p50_ms, for a search may go through both in one native
            call. Exact search has no coarse stage and counts as rerank.
    """

    structure: str
    code: str
    prefix: int
    shortlist: int
    rows: int
    queries: int
    k: int
    recall: float
    p50_ms: float
    p95_ms: float
    shortlist_ms: float
    rerank_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; recall goes by its full name, such as recall@10."""
        named = {"recall": f"recall@{self.k}"}
        return {named.get(name, name): value for name, value in asdict(self).items()}


def recall(found: RowNumbers, exact: RowNumbers) -> float:
    """The share of the exact rows that was found: mean over queries of |found & exact| / |exact|.

    Args:
        found, exact: (q, k) row numbers; -1 is padding and counts on neither side.

    Raises:
        VectorError: different numbers of queries, or no query has an exact row.
    """
    if len(found) != len(exact):
        raise VectorError(f"recall needs equal query counts, got {len(found)} and {len(exact)}")
    shares = [
        len(truth & set(line[line >= 0].tolist())) / len(truth)
        for line, target in zip(found, exact, strict=True)
        if (truth := set(target[target >= 0].tolist()))
    ]
    if not shares:
        raise VectorError("recall is undefined: no query has an exact row")
    return float(np.mean(shares))


def sweep(
    segments: Sequence[Segment],
    queries: Floats,
    *,
    k: int = 10,
    prefixes: Sequence[int],
    shortlists: Sequence[int],
    repeats: int = 3,
    on_row: Callable[[BenchRow], None] | None = None,
) -> list[BenchRow]:
    """Measure every prefix with every shortlist size against the exact full-width scan.

    Queries are sent one by one, without the stages of a funnel. For a prefix that is not a
    segment's own, a coarse stage of the same structure and code is built in memory. Threads are
    left as they are set.

    Args:
        segments: searched in turn; results are merged.
        queries: (q, D).
        k: neighbours sought.
        prefixes, shortlists: the grid; each segment gets the whole shortlist size.
        repeats: passes over the queries; latencies are over all of them.
        on_row: called with each row as soon as it is measured.

    Returns:
        The exact full-width scan first, then one row per prefix and shortlist size.

    Raises:
        VectorError: no segments, or bad queries, k, prefixes, shortlists or repeats.
    """
    if not segments:
        raise VectorError("a sweep needs at least one segment, got none")
    for name, values in (("k", [k]), ("repeats", [repeats]), ("shortlist", shortlists)):
        for value in values:
            at_least_one(name, value)
    rows: list[BenchRow] = []
    exact_rows: RowNumbers | None = None

    def measure(searched: Sequence[Segment], size: int | None) -> None:
        nonlocal exact_rows
        found, seconds = _searched(searched, queries, k, size, repeats)
        if exact_rows is None:
            exact_rows = found
        total = np.array(seconds) * 1e3
        if size is None:
            stages = 0.0, float(np.median(total))
        else:
            stages = _stages(searched, queries, k, max(size, k))
        config, count = searched[0].config, sum(segment.rows for segment in searched)
        row = BenchRow(
            structure=EXACT if size is None else str(config.structure),
            code=str(config.storage) if size is None else str(config.code),
            prefix=searched[0].dim if size is None else config.prefix,
            shortlist=count if size is None else size,
            rows=count,
            queries=len(queries),
            k=k,
            recall=recall(found, exact_rows),
            p50_ms=float(np.median(total)),
            p95_ms=float(np.percentile(total, 95)),
            shortlist_ms=stages[0],
            rerank_ms=stages[1],
        )
        rows.append(row)
        if on_row is not None:
            on_row(row)

    measure(segments, None)
    for p in prefixes:
        views = [segment.over(replace(segment.config, prefix=p, stages=())) for segment in segments]
        for size in shortlists:
            measure(views, size)
    return rows


def _searched(
    segments: Sequence[Segment], queries: Floats, k: int, size: int | None, repeats: int
) -> tuple[RowNumbers, list[float]]:
    """Rows (q, k) of each query alone, and seconds, `repeats` times over. size None is exact."""
    bases = np.cumsum([0, *(segment.rows for segment in segments)])[:-1].tolist()

    def search(query: Floats) -> SearchResult:
        if size is None:
            return merge([segment.exact(query, k) for segment in segments], bases, k)
        return merge([segment.search(query, k, size) for segment in segments], bases, k)

    singles = [queries[i : i + 1] for i in range(len(queries))]
    for query in singles[:_WARM_UP]:
        search(query)
    found: list[RowNumbers] = []
    seconds: list[float] = []
    for _ in range(repeats):
        found.clear()
        for query in singles:
            begin = time.perf_counter()
            found.append(search(query).rows)
            seconds.append(time.perf_counter() - begin)
    return np.concatenate(found), seconds


def _stages(segments: Sequence[Segment], queries: Floats, k: int, size: int) -> tuple[float, float]:
    """Median milliseconds of the two stages over all segments, in one pass over the queries."""
    times = []
    for i in range(len(queries)):
        rotated = [segment.rotate(queries[i : i + 1]) for segment in segments]
        begin = time.perf_counter()
        listed = [s.shortlist(turned, size) for s, turned in zip(segments, rotated, strict=True)]
        between = time.perf_counter()
        for segment, turned, rows in zip(segments, rotated, listed, strict=True):
            segment.rerank(turned, rows, k)
        times.append((between - begin, time.perf_counter() - between))
    shortlist, rerank = np.median(times, axis=0) * 1e3
    return float(shortlist), float(rerank)
