"""How recall and latency grow with the number of rows."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from indexer.arrays import Floats, RowNumbers, evenly
from indexer.config import Code, Storage, Structure
from indexer.segment import Segment
from indexer.tuning.points import OperatingPoint, recall
from searchengine.bench.results import Growth, Spread

PARTS = (8, 4, 2, 1)
"""An eighth of the rows, a quarter, a half, and all."""
TURNS = 3
_TIMED = 100  # queries


def growth(
    segment: Segment, queries: Floats, k: int, name: str, build_s: float | None
) -> Iterator[Growth]:
    """Exact search and a segment's own recipe, built anew on evenly drawn parts of its rows.

    Exact search of a part is a scan of its rows at full width, copied into memory. All rows are
    searched by what is there, built in `build_s` seconds. Parts of fewer than 2 k rows are left
    out.
    """
    for part in PARTS:
        kept = evenly(segment.rows, segment.rows // part)
        if len(kept) < 2 * k:
            continue
        exact, own, built = _points(segment, kept, k)
        truth, _ = exact.at_once(queries)
        found, _ = own.at_once(queries)
        turns = [(_turn(exact, queries), _turn(own, queries)) for _ in range(TURNS)]
        spreads = [Spread.of(each) for each in zip(*turns, strict=True)]
        seconds = build_s if built is None else built
        yield Growth("exact", len(kept), 1.0, spreads[0], None)
        yield Growth(name, len(kept), recall(found, truth), spreads[1], seconds)


def _points(
    segment: Segment, kept: RowNumbers, k: int
) -> tuple[OperatingPoint, OperatingPoint, float | None]:
    """Exact search and the recipe over some rows, and seconds to build the latter, if it was."""
    config = segment.config
    if len(kept) == segment.rows:
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
    own = segment.over(config, kept)
    seconds = time.perf_counter() - begin
    return _point(segment.over(full, kept), k, k), _point(own, k, config.shortlist), seconds


def _point(segment: Segment, k: int, shortlist: int | None) -> OperatingPoint:
    return OperatingPoint((segment,), (None,), k, shortlist)


def _turn(point: OperatingPoint, queries: Floats) -> float:
    """Median milliseconds of a query."""
    return 1e3 * float(np.median(point.one_by_one(queries[:_TIMED])[1]))
