"""The shortlist of a segment whose config leaves it open: measured on its own rows.

Some of the rows are searched for, and the shortlist is the shortest of a ladder that finds enough
of their true neighbours. A small segment is searched exactly instead: its full-width rows are read
in less time than a question takes to be encoded, and nothing is lost.
"""

from itertools import count

import numpy as np

from indexer.arrays import RowNumbers, evenly
from indexer.config import SegmentConfig
from indexer.search.cascade import CoarseIndex
from indexer.storage.vectors import VectorFile

EXACT_BYTES = 8 << 20
"""A segment with full-width rows of at most so many bytes is searched exactly: some 5,000 rows of
768 dimensions in float16, read in half a millisecond."""

NEIGHBOURS = 10
RECALL = 0.995
"""Share of the true neighbours that the sample must find. Documents stand for questions here, and
those of users are further from their documents: so it is above the 0.99 that they should see."""

SAMPLE = 400
"""Rows that are searched for: 4,000 neighbours."""

_FIRST, _STEP = 25, 1.25  # the ladder: 25, 32, 40, 49, … rows


def measured_shortlist(file: VectorFile, coarse: CoarseIndex, config: SegmentConfig) -> int:
    """The shortlist for the rows of a file and a coarse stage over all of them; all rows if few.

    Args:
        file: the full-width rows, in the basis of the segment.
        coarse: the coarse stage that was built over them.
        config: how it is searched: prefix and effort.
    """
    if file.nbytes <= EXACT_BYTES:
        return file.rows
    sample = evenly(file.rows, SAMPLE)
    truth = _neighbours(file, sample)
    heads = file.take(sample, config.prefix)
    for step in count():
        size = min(round(_FIRST * _STEP**step), file.rows)
        # The row itself is found too, and is no neighbour.
        found = coarse.shortlist(heads, min(size + 1, file.rows), effort=config.effort)
        shares = [np.isin(true, rows).mean() for true, rows in zip(truth, found, strict=True)]
        if np.mean(shares) >= RECALL or size == file.rows:
            return size
    raise AssertionError("a shortlist of all rows finds all neighbours")


def _neighbours(file: VectorFile, sample: RowNumbers) -> RowNumbers:
    """The NEIGHBOURS nearest other rows of each row of the sample (s, NEIGHBOURS), any order."""
    queries = file.take(sample)
    best_rows = np.empty((len(sample), 0), np.int64)
    best_scores = np.empty((len(sample), 0), np.float32)
    start = 0
    for block in file.blocks():
        scores = queries @ block.T
        numbers = np.arange(start, start + len(block))
        own = np.flatnonzero((sample >= start) & (sample < start + len(block)))
        scores[own, sample[own] - start] = -np.inf
        scores = np.concatenate([best_scores, scores], axis=1)
        rows = np.concatenate([best_rows, np.broadcast_to(numbers, (len(sample), len(block)))], 1)
        kept = min(NEIGHBOURS, scores.shape[1])
        top = np.argpartition(scores, -kept, axis=1)[:, -kept:]
        best_scores = np.take_along_axis(scores, top, axis=1)
        best_rows = np.take_along_axis(rows, top, axis=1)
        start += len(block)
    return best_rows
