"""Measuring the shortlist of a segment with shortlist 0 in its config.

A sample of the rows is used as queries. The shortlist is the shortest of a ladder that finds enough
of their true neighbours, or of rows that score as high. A small segment is searched exactly
instead: reading its full-width rows takes less time than encoding a question.
"""

from itertools import count

import numpy as np

from searchengine.indexer.arrays import evenly
from searchengine.indexer.config import SegmentConfig, Structure
from searchengine.indexer.search.cascade import CoarseIndex
from searchengine.indexer.search.segment_files import Parts

EXACT_BYTES = 8 << 20
"""A segment with full-width rows of at most this many bytes is searched exactly: some 5,000 rows of
768 dimensions in float16, read in half a millisecond."""

NEIGHBOURS = 10
RECALL = 0.995
"""Share of the true neighbours that the sample must find. Documents stand for questions here, and
users' questions are further from their documents: so it is above the 0.99 to give them."""

SAMPLE = 400
"""Rows that are searched for: 4,000 neighbours."""

_FIRST, _STEP = 25, 1.25  # the ladder: 25, 32, 40, 49, … rows
_LOSS = 0.001  # of recall that is given for a shorter one, where none finds enough


def measured_shortlist(parts: Parts, config: SegmentConfig) -> int:
    """The shortlist for the rows of a coarse stage over all of them; all rows if few.

    `config`: how it is searched: its effort.
    """
    file, coarse = parts.file, parts.coarse
    if file.nbytes <= EXACT_BYTES:
        return file.rows
    sample = evenly(file.rows, SAMPLE)
    queries = file.take(sample)
    nearest = parts.exact(queries, NEIGHBOURS + 1, None)  # a row finds itself, no neighbour, too
    others = np.where(nearest.rows == sample[:, None], -np.inf, nearest.scores)
    # Rows are not compared: of many equal ones, any will do.
    needed = np.sort(others, axis=1)[:, -NEIGHBOURS, None]
    most = _reached(coarse, config)
    recalls: dict[int, float] = {}
    for step in count():
        size = min(round(_FIRST * _STEP**step), most)
        length = min(size + 1, file.rows)
        candidates = parts.shortlist(queries, length, None, config.effort)
        candidates[candidates == sample[:, None]] = -1
        best = parts.rerank(queries, candidates, NEIGHBOURS).scores
        recalls[size] = float(np.mean(best >= needed))
        if recalls[size] >= RECALL:
            return size
        if size == most:
            return next(s for s, recall in recalls.items() if recall >= recalls[most] - _LOSS)
    raise AssertionError("a shortlist of all rows finds all neighbours")


def _reached(coarse: CoarseIndex, config: SegmentConfig) -> int:
    """Rows that a search compares; for an IVF, the mean of the rows in the lists that it probes.

    A longer shortlist would be filled by a scan of all rows, each time.
    """
    if coarse.structure is not Structure.IVF:
        return coarse.rows
    probed = coarse.nprobe(config.effort)
    return max(1, coarse.rows * probed // coarse.lists)
