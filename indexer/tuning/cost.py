"""What a query costs, counted and not timed: multiply-adds, and bytes that are touched."""

from dataclasses import dataclass

import numpy as np

from indexer.arrays import Floats
from indexer.config import RotationKind, Structure
from indexer.faiss_calls import faiss
from indexer.search.allowed import MOSTLY, Allowed
from indexer.search.exact import EXACT_ALLOWED
from indexer.segment import Segment
from indexer.storage.vectors import DTYPES
from indexer.tuning.footprint import footprint
from indexer.tuning.points import OperatingPoint


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one query, in the mean.

    Attributes:
        multiply_adds: of numbers, whatever their format.
        bytes_read: of codes, links and rows; what is met twice counts twice.
    """

    multiply_adds: float
    bytes_read: float


def exhaustive(rows: int, dim: int) -> float:
    """Multiply-adds of one query against every row at full width."""
    return float(rows) * dim


def cost(point: OperatingPoint, queries: Floats) -> Cost | None:
    """Count what queries (q, D) meet on their way; graphs and lists are asked (faiss's statistics).

    The rotation's D² multiply-adds are part of it, but of an exact scan, which could do without;
    so are the stages of a funnel. None for NSG, which does not count.
    """
    if any(segment.config.structure is Structure.NSG for segment in point.segments):
        return None
    pairs = zip(point.segments, point.live, strict=True)
    parts = [_segment_cost(segment, live, point, queries) for segment, live in pairs]
    return Cost(sum(part.multiply_adds for part in parts), sum(part.bytes_read for part in parts))


def _segment_cost(
    segment: Segment, live: Allowed | None, point: OperatingPoint, queries: Floats
) -> Cost:
    config, dim = segment.config, segment.dim
    width = np.dtype(DTYPES[config.storage]).itemsize
    turn = 0 if config.rotation is RotationKind.IDENTITY else dim * dim
    rows = segment.rows if live is None else live.size
    size = max(point.shortlist or config.shortlist, point.k)
    few = live is not None and rows <= EXACT_ALLOWED
    if point.shortlist is None or size >= rows or few:
        return Cost(exhaustive(rows, dim), float(rows) * dim * width)
    met, links = _met(segment, live, queries, size)
    code = footprint(config, segment.rows, dim).code
    adds, touched = met * config.prefix, met * code + links
    if config.structure is Structure.IVF:  # the centroids
        adds += segment.lists * config.prefix
        touched += 4.0 * segment.lists * config.prefix
    for stage, keep in config.stages:
        adds, touched = adds + size * stage, touched + size * stage * width
        size = max(keep, point.k)
    return Cost(
        adds + size * dim + turn,
        touched + size * dim * width + 4.0 * turn,
    )


def _met(segment: Segment, live: Allowed | None, queries: Floats, size: int) -> tuple[float, float]:
    """Codes compared by a query, and bytes of links followed for it, in the mean."""
    structure, count = segment.config.structure, len(queries)
    if structure is Structure.HNSW:
        faiss.cvar.hnsw_stats.reset()
        segment.shortlist(segment.rotate(queries), size, live)
        stats = faiss.cvar.hnsw_stats
        return stats.ndis / count, 8.0 * segment.config.hnsw_m * stats.nhops / count
    if structure is Structure.IVF:
        faiss.cvar.indexIVF_stats.reset()
        segment.shortlist(segment.rotate(queries), size, live)
        met = faiss.cvar.indexIVF_stats.ndis / count
        return met, 8.0 * met  # a row number beside every code
    scanned = segment.rows if live is None or live.share >= MOSTLY else live.size
    return float(scanned), 0.0
