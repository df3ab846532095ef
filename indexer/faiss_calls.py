"""How this package calls faiss: index files, threads, row selectors, ties."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Floats, Mask, RowNumbers
from searchengine.indexer.config import Structure
from searchengine.indexer.errors import SegmentError, shortened
from searchengine.indexer.threads import threads

try:
    import faiss as _faiss
except ModuleNotFoundError as error:
    if error.name != "faiss":
        raise
    raise ImportError("faiss is not installed: pip install faiss-cpu (or faiss-gpu)") from error

faiss: Any = _faiss  # its type stubs describe the C++ side, not the Python methods laid over it

# Beyond so many queries, faiss calls its BLAS, which is of 2021 and takes newer processors for old.
faiss.cvar.distance_compute_blas_threshold = 1 << 30

_WRITTEN = 1 << 20  # bytes passed to Python at a time
Search = Callable[[Floats, int], tuple[Floats, RowNumbers]]


def read_index(path: Path) -> Any:
    """A faiss index, mapped from a file. SegmentError if faiss cannot read it.

    faiss trusts what it reads: a file made to harm can end the process. See docs/format.md.
    """
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:  # a length in the file may be any number
        reason = shortened(str(error) or "it asks for more memory than there is")
        raise SegmentError(f"faiss cannot read {path}: {reason}") from error


def write_index(index: Any, path: Path) -> None:
    """A faiss index to a file. OSError if the disk does not take it.

    By Python's own writes: faiss passes over an error when it closes the file, and with it up to
    4 KB that found no room.
    """
    with path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, _WRITTEN))


@contextmanager
def native_threads(limit: int) -> Iterator[None]:
    """Take at most `limit` of the process's threads for one faiss call.

    `limit` is at most the number of queries, because faiss divides a call by queries, not rows. A
    thread without work still has to reach the barrier: on a busy machine one query waits whole time
    slices for it (16 ms instead of 0.2 ms). The setting applies to the calling thread only.
    """
    with threads.take(limit) as count:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(count)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)


def bitmap(mask: Mask) -> Any:
    """A faiss selector of the rows that are True: one bit per row, tested in constant time."""
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def ordered(
    search: Search, queries: Floats, size: int, available: int
) -> tuple[Floats, RowNumbers]:
    """Scores and rows (q, size) by (-score, row), from a search that breaks ties arbitrarily.

    One row more than `size` shows whether the cut goes through a tie; if it does, more rows are
    requested until the tie is complete.

    Args:
        search: queries and a size to scores and rows, best first.
        queries: (q, width) float32.
        size: rows per query.
        available: the most rows that `search` can return.
    """
    requested = min(size + 1, available)
    scores, rows = search(queries, requested)
    if (scores[:, 1:] < scores[:, :-1]).all():
        return scores[:, :size], rows[:, :size]  # no tie: faiss has sorted them
    best_rows = np.empty((queries.shape[0], size), np.int64)
    best_scores = np.empty(best_rows.shape, np.float32)
    pending = np.arange(queries.shape[0])
    while True:
        order = np.lexsort((rows, -scores))[:, :size]
        best_rows[pending] = np.take_along_axis(rows, order, axis=1)
        best_scores[pending] = np.take_along_axis(scores, order, axis=1)
        if requested == available:
            return best_scores, best_rows
        pending = pending[scores[:, size - 1] == scores[:, -1]]
        if pending.size == 0:
            return best_scores, best_rows
        requested = min(2 * requested, available)
        scores, rows = search(queries[pending], requested)


def structure_of(index: Any) -> Structure | None:
    """The Structure of a faiss index; None if it is another kind."""
    kinds = {
        faiss.IndexHNSW: Structure.HNSW,
        faiss.IndexIVF: Structure.IVF,
        faiss.IndexFlatCodes: Structure.FLAT,
    }
    if hasattr(faiss, "GpuIndexFlat"):
        kinds[faiss.GpuIndexFlat] = Structure.FLAT
    return next((kind for types, kind in kinds.items() if isinstance(index, types)), None)
