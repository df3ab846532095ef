"""An open segment, searched: what Segment's methods do once their arguments are checked."""

from dataclasses import replace

import numpy as np

from indexer.arrays import Floats, RowNumbers
from indexer.config import SegmentConfig
from indexer.search import gpu
from indexer.search.allowed import Allowed
from indexer.search.exact import certify, scan, score_slack
from indexer.search.parts import Parts
from indexer.search.rerank import SearchResult, narrow, rerank

EXACT_ALLOWED = 1000
"""A filter that leaves at most this many rows makes the coarse stage pointless: score them all."""


def shortlist(
    parts: Parts, config: SegmentConfig, rotated: Floats, size: int, only: Allowed | None
) -> RowNumbers:
    """See Segment.shortlist."""
    within = parts.searched(only)
    available = parts.file.rows if within is None else within.size
    if size < available:
        head = rotated[:, : config.prefix]
        coarse = parts.scanner("coarse", size, only is not None)
        return coarse.shortlist(head, size, only, config.effort)
    found = np.full((len(rotated), size), -1, np.int64)
    found[:, :available] = np.arange(available) if within is None else within.rows
    return found


def search(
    parts: Parts, config: SegmentConfig, rotated: Floats, k: int, size: int, only: Allowed | None
) -> SearchResult:
    """See Segment.search; `size` is that of the shortlist, >= k."""
    within = parts.searched(only)
    available = parts.file.rows if within is None else within.size
    if available <= size or (only is not None and available <= EXACT_ALLOWED):
        return exact(parts, config, rotated, k, only)
    if config.stages or not parts.coarse.walks(available):
        if only is not None and not parts.coarse.selects:
            return exact(parts, config, rotated, k, only)
        candidates = shortlist(parts, config, rotated, size, only)
        for width, keep in config.stages:
            candidates = narrow(parts.file, rotated, candidates, width, max(keep, k))
        return rerank(parts.file, rotated, candidates, k)
    found = parts.cascade.search(rotated, k, size, config.effort, only)
    short = np.flatnonzero(found.rows[:, -1] < 0)  # the walk ended before it found enough
    if short.size:
        again = shortlist(parts, config, rotated[short], size, only)
        mended = rerank(parts.file, rotated[short], again, k)
        found.rows[short], found.scores[short] = mended.rows, mended.scores
    return found


def exact(
    parts: Parts, config: SegmentConfig, rotated: Floats, k: int, only: Allowed | None
) -> SearchResult:
    """See Segment.exact."""
    within = parts.searched(only)
    available = parts.file.rows if within is None else within.size
    startable = only is None or parts.coarse.selects
    if parts.bounds is not None and startable and available > max(EXACT_ALLOWED, k):
        size = min(max(k, config.shortlist), available)
        start = shortlist(parts, config, rotated, size, only)
        proof = certify(parts.bounds, parts.file, parts.full, rotated, k, start, within)
        return replace(proof.result, proven=True, read=proof.read)
    if available == 0:
        nothing = rerank(parts.file, rotated, np.full((len(rotated), 1), -1), k)
        return replace(nothing, proven=True, read=np.zeros(len(rotated), np.int64))
    slack = score_slack(parts.file.dim) + (gpu.SLACK if parts.gpu_full is not None else 0)

    def scanned(some: Floats, size: int) -> RowNumbers:
        return parts.scanner("full", size, within is not None).shortlist(some, size, within)

    result = scan(scanned, parts.file, rotated, k, available, slack)
    return replace(result, proven=True, read=np.full(len(rotated), available))
