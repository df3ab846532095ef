"""What an index config costs: bytes of a segment before it is built, and work of a query.

Both are counted, not timed: bytes by the file formats, multiply-adds by the counters of faiss.
"""

from dataclasses import dataclass

import numpy as np

from indexer.arrays import Floats
from indexer.building.coarse import empty
from indexer.config import RotationKind, SegmentConfig, Structure
from indexer.faiss_calls import faiss
from indexer.search.allowed import POST_FILTER_SHARE, Allowed
from indexer.search.exact import EXACT_ALLOWED
from indexer.segment import Segment
from indexer.storage.vectors import DTYPES
from indexer.tuning.points import OperatingPoint

_ID = 8  # a row number in a list or a map of faiss


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a segment of `rows` rows.

    Attributes:
        rows: how many.
        code: bytes of one code of the coarse stage.
        hot_row: bytes a row that every search may touch, and that should fit in memory: codes,
            links and ids of the coarse stage.
        cold_row: bytes a row of the full-width file (and of the bounds, if there are any), of
            which a search reads the shortlist's rows alone.
        fixed: bytes whatever the rows: the rotation, if there is one.
    """

    rows: int
    code: int
    hot_row: float
    cold_row: int
    fixed: int

    @property
    def hot(self) -> int:
        """Bytes that should stay in memory: rotation and coarse stage."""
        return self.fixed + round(self.rows * self.hot_row)

    @property
    def cold(self) -> int:
        """Bytes that may stay on the disk."""
        return self.rows * self.cold_row


def footprint(config: SegmentConfig, rows: int, dim: int) -> Footprint:
    """What `rows` vectors of width `dim` take by a recipe. Nothing is built.

    Raises:
        SegmentConfigError: the recipe does not fit the width.
    """
    config = config.fitting(rows, dim)
    index = empty(config, rows)
    graph = isinstance(index, faiss.IndexHNSW | faiss.IndexNSG)
    code = (index.storage if graph else index).sa_code_size()
    m = config.hnsw_m
    links = {
        Structure.FLAT: 0.0,
        Structure.IVF: _ID + 4.0 * config.prefix * getattr(index, "nlist", 0) / rows,
        # Level 0 has 2 m links of 4 bytes; 1 row in m is on level 1 with m links, and so on. Then
        # the row's level (4), where its links begin (8), and its number.
        Structure.HNSW: 8 * m + 4 * m / (m - 1) + 12 + _ID,
        Structure.NSG: 4.0 * m + _ID,
    }[config.structure]
    # Three lengths and the row's number: see indexer.search.exact.
    bounds = min(config.bounds, dim) + 3 + _ID if config.bounds else 0
    return Footprint(
        rows=rows,
        code=code,
        hot_row=code + links,
        cold_row=dim * np.dtype(DTYPES[config.storage]).itemsize + bounds,
        # As read, transposed, and faiss's own.
        fixed=0 if config.rotation is RotationKind.IDENTITY else 3 * 4 * dim * dim,
    )


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
    scanned = segment.rows if live is None or live.share >= POST_FILTER_SHARE else live.size
    return float(scanned), 0.0
