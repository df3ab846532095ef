"""Rows in a file and a graph over their prefixes, for tests of the compiled kernel."""

import ctypes
from pathlib import Path
from unittest.mock import patch

import numpy as np

from searchengine.indexer import building, config
from searchengine.indexer.arrays import address, unit_rows
from searchengine.indexer.building import build_coarse
from searchengine.indexer.config import SegmentConfig, Storage
from searchengine.indexer.native.hnsw import NativeGraph
from searchengine.indexer.native.library import load
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.files import DTYPES
from searchengine.indexer.storage.vectors import Prefixes, write_vectors

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES = {
    "kernel_work": (None, [_POINTER, _POINTER]),
    "kernel_score_codes": (None, [_INT, _POINTER, _LONG, _POINTER, _POINTER, _INT, _POINTER]),
    "kernel_score_block": (
        ctypes.c_uint64,
        [_INT, _POINTER, _LONG, _POINTER, _POINTER, _INT, ctypes.c_int32, _POINTER],
    ),
}
"""Of functions that only tests call."""
for name, (result, arguments) in _SIGNATURES.items() if load() else ():
    function = getattr(load(), name)
    function.restype, function.argtypes = result, arguments


class Case:
    """Rows in a file and a graph over their prefixes, of any size."""

    def __init__(
        self,
        folder: Path,
        rows: np.ndarray,
        width: int,
        storage: str = "float16",
        kept: np.ndarray | None = None,
        links: int = 8,
        candidates: int = 100,
    ) -> None:
        path = folder / "vectors"
        path.unlink(missing_ok=True)
        stored = unit_rows(rows).astype(DTYPES[Storage(storage)])
        self.file = write_vectors(path, rows.shape[1], Storage(storage), [stored])
        self.config = SegmentConfig.from_dict(
            {"prefix": width, "structure": "hnsw", "code": "int8"}
        )
        with (
            patch.object(config, "LINKS", links),
            patch.object(building, "CANDIDATES", candidates),
        ):
            self.coarse = build_coarse(Prefixes(self.file, width), self.config, kept=kept)
        self.index = self.coarse.index
        self.stored = self.file.take(np.arange(len(rows)))

    def graph(self, level: int = 0, matrix: np.ndarray | None = None) -> NativeGraph:
        return NativeGraph(self.index, self.file, level, "coarse.faiss", matrix)


def work(graph: NativeGraph) -> tuple[int, int]:
    """Codes scored and nodes followed in all searches so far."""
    totals = np.empty(2, np.int64)
    load().kernel_work(graph._handle, address(totals))
    return int(totals[0]), int(totals[1])


def clustered(rng: np.random.Generator, rows: int, dim: int, clusters: int = 8) -> np.ndarray:
    centres = rng.standard_normal((clusters, dim))
    noise = 0.4 * rng.standard_normal((rows, dim))
    spread = (centres[rng.integers(clusters, size=rows)] + noise) * np.arange(1, dim + 1) ** -0.4
    unit = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    return unit.astype(np.float32)


def small_segment(folder: Path) -> Path:
    """The folder of a segment of 3,000 rows with a graph of 8-bit codes."""
    path = folder / "segment"
    rows = clustered(np.random.default_rng(0), 3000, 48, 60)
    settings = {"prefix": 24, "structure": "hnsw", "code": "int8", "shortlist": 40}
    Segment.build(path, rows, SegmentConfig.from_dict(settings)).close()
    return path
