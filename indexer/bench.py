"""Recall and latency over prefixes and shortlist sizes, timed from outside the two stages."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

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
        p50_ms, p95_ms: latency of one query, rotation and merging included, milliseconds.
        shortlist_ms, rerank_ms: medians of the two stages over all segments; the full-width scan
            has no coarse stage and counts as rerank.
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


class _Timed(NamedTuple):
    result: SearchResult
    total: float  # seconds
    shortlist: float
    rerank: float


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

    Queries are sent one by one. For a prefix that is not a segment's own, a coarse stage of the
    same structure and code is built in memory. Threads are left as they are set.

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
        timed = _run(searched, queries, k, size, repeats)
        found = np.concatenate([one.result.rows for one in timed[: len(queries)]])
        if exact_rows is None:
            exact_rows = found
        total, first, second = (
            np.array([getattr(one, name) for one in timed]) * 1e3
            for name in ("total", "shortlist", "rerank")
        )
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
            shortlist_ms=float(np.median(first)),
            rerank_ms=float(np.median(second)),
        )
        rows.append(row)
        if on_row is not None:
            on_row(row)

    measure(segments, None)
    for p in prefixes:
        views = [segment.over(replace(segment.config, prefix=p)) for segment in segments]
        for size in shortlists:
            measure(views, size)
    return rows


def _run(
    segments: Sequence[Segment], queries: Floats, k: int, size: int | None, repeats: int
) -> list[_Timed]:
    """Each query alone, `repeats` times over; the first pass comes first. size None is exact."""
    bases = np.cumsum([0, *(segment.rows for segment in segments)])[:-1].tolist()
    singles = [queries[i : i + 1] for i in range(len(queries))]
    for query in singles[:_WARM_UP]:
        _one(segments, bases, query, k, size)
    return [_one(segments, bases, query, k, size) for _ in range(repeats) for query in singles]


def _one(
    segments: Sequence[Segment], bases: Sequence[int], query: Floats, k: int, size: int | None
) -> _Timed:
    begin = time.perf_counter()
    if size is None:
        parts = [segment.exact(query, k) for segment in segments]
        scored = time.perf_counter()
        result = merge(parts, bases, k)
        return _Timed(result, time.perf_counter() - begin, 0.0, scored - begin)
    rotated = [segment.rotate(query) for segment in segments]
    start = time.perf_counter()
    candidates = [
        segment.shortlist(turned, max(size, k))
        for segment, turned in zip(segments, rotated, strict=True)
    ]
    listed = time.perf_counter()
    parts = [
        segment.rerank(turned, rows, k)
        for segment, turned, rows in zip(segments, rotated, candidates, strict=True)
    ]
    scored = time.perf_counter()
    result = merge(parts, bases, k)
    return _Timed(result, time.perf_counter() - begin, listed - start, scored - listed)
