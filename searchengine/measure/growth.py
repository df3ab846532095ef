"""Recall and latency by number of rows."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from searchengine.indexer.arrays import Floats, RowNumbers, evenly
from searchengine.indexer.config import Code, Storage, Structure
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.points import OperatingPoint, recall
from searchengine.measure.results import Growth, Spread

PARTS = (8, 4, 2, 1)
"""Divisors of the number of rows: an eighth, a quarter, a half, and all."""
ROUNDS = 3
_TIMED = 100  # queries per round


def growth(
    segment: Segment, queries: Floats, k: int, name: str, build_s: float | None
) -> Iterator[Growth]:
    """Measure exact search and a segment's operating point on even samples of its rows.

    The coarse stage is built again for every sample; exact search scans a copy of its rows in
    memory. All rows are searched by the existing coarse stage, built in `build_s` seconds. Samples
    of fewer than 2 k rows are left out.
    """
    for part in PARTS:
        rows = evenly(segment.rows, segment.rows // part)
        if len(rows) < 2 * k:
            continue
        exact, point, seconds = _points(segment, rows, k)
        truth, _ = exact.at_once(queries)
        result, _ = point.at_once(queries)
        rounds = [(_round(exact, queries), _round(point, queries)) for _ in range(ROUNDS)]
        spreads = [Spread.of(medians) for medians in zip(*rounds, strict=True)]
        seconds = build_s if seconds is None else seconds
        yield Growth("exact", len(rows), 1.0, spreads[0], None)
        yield Growth(name, len(rows), recall(result, truth), spreads[1], seconds)


def _points(
    segment: Segment, rows: RowNumbers, k: int
) -> tuple[OperatingPoint, OperatingPoint, float | None]:
    """Exact search and the operating point over rows; seconds to build the latter, if built."""
    config = segment.config
    if len(rows) == segment.rows:
        return _point(segment.unbounded(), k, None), _point(segment, k, config.shortlist), None
    full = replace(
        config,
        prefix=segment.dim,
        structure=Structure.FLAT,
        code=Code.FP16 if config.storage is Storage.FLOAT16 else Code.FP32,
        stages=(),
        effort=0,
        shortlist=k,
    )
    begin = time.perf_counter()
    view = segment.over(config, rows)
    seconds = time.perf_counter() - begin
    return _point(segment.over(full, rows), k, k), _point(view, k, config.shortlist), seconds


def _point(segment: Segment, k: int, shortlist: int | None) -> OperatingPoint:
    return OperatingPoint((segment,), (None,), k, shortlist)


def _round(point: OperatingPoint, queries: Floats) -> float:
    """Median milliseconds per query."""
    return 1e3 * float(np.median(point.one_by_one(queries[:_TIMED])[1]))
