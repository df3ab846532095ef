"""What a segment will take, known before it is built."""

from dataclasses import dataclass

import numpy as np

from indexer.building.coarse import empty
from indexer.config import RotationKind, SegmentConfig, Structure
from indexer.faiss_calls import faiss
from indexer.storage.vectors import DTYPES

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
