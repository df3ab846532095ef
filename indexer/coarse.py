"""The shortlist structures: which rows have the most similar prefixes.

Everything that touches faiss is here. Scores made here rank candidates and are never returned to
a user. Ties are broken by row number wherever rows are scanned, also at the cut, so a flat coarse
stage is deterministic and a longer shortlist contains every shorter one.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers
from indexer.config import Code, SegmentConfig, Structure
from indexer.errors import SegmentError, VectorError

try:
    import faiss as _faiss
except ModuleNotFoundError as error:
    if error.name != "faiss":
        raise
    raise ImportError(
        "faiss is not installed: pip install 'searchengine[cpu]' (or 'searchengine[gpu]')"
    ) from error

faiss: Any = _faiss  # its type stubs describe the C++ side, not the Python methods laid over it

LEAST_EFFORT = 32
"""Lowest efSearch. Above it efSearch is the shortlist size: time spent on a longer shortlist
bought as much recall@10 as a more careful walk for the same one, or more (20k real sentences)."""

SCAN_SHARE = 0.1
"""Below this share of allowed rows a graph is not walked: they are scanned instead."""

Search = Callable[[Floats, int], tuple[Floats, RowNumbers]]


class CoarseIndex:
    """Prefixes of all rows of a segment, searched by inner product.

    Attributes:
        rows, width: how many prefixes, and how wide.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self._graph = isinstance(index, faiss.IndexHNSW)
        # A graph keeps its codes in a flat index of its own, which can be scanned as it is.
        self._flat = faiss.downcast_index(index.storage) if self._graph else index
        self.rows = int(index.ntotal)
        self.width = int(index.d)

    @classmethod
    def build(cls, blocks: Iterable[Floats], config: SegmentConfig) -> Self:
        """Index re-normalised prefixes (n_i, config.prefix) that arrive in blocks, in row order.

        Raises:
            VectorError: a block of another width, or no rows.
        """
        index = _empty(config)
        for block in blocks:
            if block.ndim != 2 or block.shape[1] != config.prefix:
                raise VectorError(
                    f"coarse blocks must be (n, {config.prefix}), got shape {block.shape}"
                )
            index.add(np.ascontiguousarray(block, dtype=np.float32))
        if index.ntotal == 0:
            raise VectorError("a coarse index needs at least one row, got none")
        return cls(index)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Load a saved index. The caller has verified the file's checksum: faiss trusts it.

        Raises:
            SegmentError: faiss cannot read it, or it is no structure that this package writes.
        """
        return cls(_read(path, 0))

    @classmethod
    def map_rows(cls, path: Path) -> Self:
        """The full-width rows of a vectors file as a flat index, mapped rather than loaded."""
        return cls(_read(path, faiss.IO_FLAG_MMAP_IFC))

    def save(self, path: Path) -> None:
        """Write the index to a file. OSError if the disk does not take it."""
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:  # how faiss reports every failed write
            raise OSError(f"could not write {path}: {error}") from error

    def shortlist(
        self, queries: Floats, size: int, allowed: RowNumbers | None = None
    ) -> RowNumbers:
        """The rows whose prefixes score highest.

        Args:
            queries: (q, width) float32. Their length does not matter, only their direction.
            size: rows wanted per query, >= 1.
            allowed: row numbers that may be returned, rising; None for all.

        Returns:
            (q, size) int64, best first. Exactly min(size, number of allowed rows) entries are
            rows, the rest are -1.
        """
        available = self.rows if allowed is None else allowed.size
        found = np.full((queries.shape[0], size), -1, np.int64)
        wanted = min(size, available)
        if wanted == 0:
            return found
        selector = None if allowed is None else _selector(allowed, self.rows)
        queries = np.ascontiguousarray(queries, dtype=np.float32)

        def scan(some: Floats, ask: int) -> tuple[Floats, RowNumbers]:
            parameters = None if selector is None else faiss.SearchParameters(sel=selector)
            with _threads(len(some)):
                scores, rows = self._flat.search(some, ask, params=parameters)
            return scores, rows

        if not self._graph or available < SCAN_SHARE * self.rows:
            found[:, :wanted] = _first(scan, queries, wanted, available)
            return found
        effort = max(LEAST_EFFORT, wanted)
        parameters = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
        with _threads(len(queries)):
            _, walked = self._index.search(queries, wanted, params=parameters)
        found[:, :wanted] = walked
        short = np.flatnonzero((walked < 0).any(axis=1))  # the walk ended before it found enough
        if short.size:
            found[short, :wanted] = _first(scan, queries[short], wanted, available)
        return found


@contextmanager
def _threads(queries: int) -> Iterator[None]:
    """No more OpenMP threads than queries, for faiss shares out queries and not rows.

    A thread without work still has to arrive at the barrier: on a busy machine one query waits
    whole time slices for it (16 ms instead of 0.2 ms was seen). The setting is the calling
    thread's own, so searches in other threads do not feel it.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(max(1, min(before, queries)))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _first(search: Search, queries: Floats, size: int, available: int) -> RowNumbers:
    """The first `size` of all rows by (-score, row), from a search that breaks ties at will.

    One row more than wanted tells whether the cut goes through a tie; if it does, the search is
    asked for more until the tie is whole.
    """
    found = np.empty((queries.shape[0], size), np.int64)
    pending = np.arange(queries.shape[0])
    ask = min(size + 1, available)
    while True:
        scores, rows = search(queries[pending], ask)
        order = np.lexsort((rows, -scores))[:, :size]
        found[pending] = np.take_along_axis(rows, order, axis=1)
        if ask == available:
            return found
        pending = pending[scores[:, size - 1] == scores[:, -1]]
        if pending.size == 0:
            return found
        ask = min(2 * ask, available)


def _empty(config: SegmentConfig) -> Any:
    """An empty faiss index of the configured structure and code, ready to add rows."""
    codes = faiss.ScalarQuantizer
    kind = {Code.FP16: codes.QT_fp16, Code.INT8: codes.QT_8bit_uniform}.get(config.code)
    metric = faiss.METRIC_INNER_PRODUCT
    width = config.prefix
    if config.structure is Structure.FLAT:
        index = (
            faiss.IndexFlatIP(width)
            if kind is None
            else faiss.IndexScalarQuantizer(width, kind, metric)
        )
    else:
        index = (
            faiss.IndexHNSWFlat(width, config.hnsw_m, metric)
            if kind is None
            else faiss.IndexHNSWSQ(width, kind, config.hnsw_m, metric)
        )
        index.hnsw.efConstruction = config.ef_construction
    if not index.is_trained:
        # Numbers of unit rows lie in [-1, 1]: with that as the fixed range of the 255 steps,
        # codes depend on their own row alone, and rows can be streamed without a sample.
        index.train(np.repeat(np.array([[-1.0], [1.0]], np.float32), width, axis=1))
    return index


def _read(path: Path, flags: int) -> Any:
    try:
        index = faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise SegmentError(f"faiss cannot read {path}: {error}") from error
    known = (faiss.IndexFlat, faiss.IndexScalarQuantizer, faiss.IndexHNSW)
    if not isinstance(index, known) or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise SegmentError(f"{path} holds {type(index).__name__}, no coarse structure of ours")
    return index


def _selector(allowed: RowNumbers, rows: int) -> Any:
    """A faiss selector of the allowed rows: one bit per row, tested in constant time."""
    mask: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
    mask[allowed] = True
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
