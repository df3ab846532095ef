"""How recall and latency grow with the number of rows."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from indexer.arrays import Floats, RowNumbers, evenly
from indexer.bench import OperatingPoint, recall
from indexer.config import Code, SegmentConfig, Structure
from indexer.segment import Segment
from searchengine.bench.results import Growth, Spread

PARTS = (8, 4, 2, 1)
"""An eighth of the rows, a quarter, a half, and all."""
TURNS = 3
_TIMED = 100  # queries


def growth(
    segment: Segment, queries: Floats, k: int, name: str, config: SegmentConfig
) -> Iterator[Growth]:
    """Exact search and one recipe, built on evenly drawn parts of a segment's rows.

    Exact search is a scan of the part's rows at full width, copied into memory. Parts of fewer
    than 2 k rows are left out.
    """
    full = replace(
        config,
        prefix=segment.dim,
        structure=Structure.FLAT,
        code=Code.FP16,
        stages=(),
        effort=0,
        shortlist=k,
    )
    for part in PARTS:
        kept = evenly(segment.rows, segment.rows // part)
        if len(kept) < 2 * k:
            continue
        exact: RowNumbers | None = None
        for called, recipe in (("exact", full), (name, config)):
            begin = time.perf_counter()
            view = segment.over(recipe, kept)
            seconds = time.perf_counter() - begin
            point = OperatingPoint((view,), (None,), k, recipe.shortlist)
            found, _ = point.at_once(queries)
            exact = found if exact is None else exact
            turns = [point.one_by_one(queries[:_TIMED])[1] for _ in range(TURNS)]
            medians = [1e3 * float(np.median(turn)) for turn in turns]
            built = None if called == "exact" else seconds
            yield Growth(called, len(kept), recall(found, exact), Spread.of(medians), built)
