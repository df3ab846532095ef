"""Costs of an index config: bytes of a segment before it is built, and work of a query.

Both are counted, not timed: bytes by the file formats, multiply-adds by counters of the searches.
"""

from dataclasses import dataclass

import numpy as np

from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.coarse import empty
from searchengine.indexer.config import RotationKind, SegmentConfig, Structure
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.search.allowed import POST_FILTER_SHARE, Allowed
from searchengine.indexer.search.exact import EXACT_ALLOWED
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.vectors_file import DTYPES
from searchengine.indexer.tuning.points import OperatingPoint

_ID = 8  # bytes of a row number in a list or a map of faiss


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a segment of `rows` rows.

    Attributes:
        rows: number of rows.
        code: bytes of one code of the coarse stage.
        hot_row: bytes per row that should fit in memory, because every search may read them:
            codes, links and ids of the coarse stage.
        cold_row: bytes per row of the full-width file. A search reads them for the shortlist only.
        fixed: bytes that do not depend on the rows: the rotation, if any.
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
    """The bytes of a segment of `rows` vectors with `dim` dimensions. Nothing is built.

    Raises:
        SegmentConfigError: the config does not fit the vectors.
    """
    config = config.fitting(rows, dim)
    index = empty(config, rows)
    code = (index.storage if isinstance(index, faiss.IndexHNSW) else index).sa_code_size()
    m = config.hnsw_m
    links = {
        Structure.FLAT: 0.0,
        Structure.IVF: _ID + 4.0 * config.prefix * getattr(index, "nlist", 0) / rows,
        # Level 0 has 2 m links of 4 bytes; 1 row in m is on level 1 with m links, and so on. Then
        # the row's level (4), where its links begin (8), and its number.
        Structure.HNSW: 8 * m + 4 * m / (m - 1) + 12 + _ID,
    }[config.structure]
    return Footprint(
        rows=rows,
        code=code,
        hot_row=code + links,
        cold_row=dim * np.dtype(DTYPES[config.storage]).itemsize,
        # As read, transposed, and the copy of faiss.
        fixed=0 if config.rotation is RotationKind.IDENTITY else 5 * config.prefix * dim,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """The mean cost of one query.

    Attributes:
        multiply_adds: multiply-adds of values of any format.
        bytes_read: bytes of codes, links and rows; repeated reads count again.
    """

    multiply_adds: float
    bytes_read: float


def exhaustive(rows: int, dim: int) -> float:
    """Multiply-adds of one query against every row at full width."""
    return float(rows) * dim


def cost(point: OperatingPoint, queries: Floats) -> Cost:
    """The mean cost of queries (q, D), from the counters of graphs and lists.

    It includes the multiply-adds of the rotation, except for an exact scan, which needs none,
    and the stages of a funnel.
    """
    pairs = zip(point.segments, point.live, strict=True)
    parts = [_segment_cost(segment, live, point, queries) for segment, live in pairs]
    return Cost(sum(part.multiply_adds for part in parts), sum(part.bytes_read for part in parts))


def _segment_cost(
    segment: Segment, live: Allowed | None, point: OperatingPoint, queries: Floats
) -> Cost:
    config, dim = segment.config, segment.dim
    width = np.dtype(DTYPES[config.storage]).itemsize
    rotation = 0 if config.rotation is RotationKind.IDENTITY else config.prefix * dim
    rows = segment.rows if live is None else live.size
    size = max(point.shortlist or config.shortlist, point.k)
    exact = live is not None and rows <= EXACT_ALLOWED
    if point.shortlist is None or size >= rows or exact:
        return Cost(exhaustive(rows, dim), float(rows) * dim * width)
    compared, links = _compared(segment, live, queries, size)
    code = footprint(config, segment.rows, dim).code
    adds, touched = compared * config.prefix, compared * code + links
    if config.structure is Structure.IVF:  # the centroids
        adds += segment.lists * config.prefix
        touched += 4.0 * segment.lists * config.prefix
    for stage, keep in config.stages:
        adds, touched = adds + size * stage, touched + size * stage * width
        size = max(keep, point.k)
    return Cost(
        adds + size * dim + rotation,
        touched + size * dim * width + 4.0 * rotation,
    )


def _compared(
    segment: Segment, live: Allowed | None, queries: Floats, size: int
) -> tuple[float, float]:
    """Mean number of codes that a query is compared with, and bytes of links read for it."""
    structure, count = segment.config.structure, len(queries)
    if structure is Structure.HNSW:
        before = np.array(segment.walk_totals())
        segment.shortlist(queries, size, live)
        compared, followed = (np.array(segment.walk_totals()) - before) / count
        return float(compared), 8.0 * segment.config.hnsw_m * float(followed)
    if structure is Structure.IVF:
        faiss.cvar.indexIVF_stats.reset()
        segment.shortlist(queries, size, live)
        compared = faiss.cvar.indexIVF_stats.ndis / count
        return compared, 8.0 * compared  # a row number beside every code
    scanned = segment.rows if live is None or live.share >= POST_FILTER_SHARE else live.size
    return float(scanned), 0.0
