"""faiss, as this package calls it: its files, its threads, its selectors of rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers
from indexer.errors import SegmentError, shortened
from indexer.threads import threads

try:
    import faiss as _faiss
except ModuleNotFoundError as error:
    if error.name != "faiss":
        raise
    raise ImportError(
        "faiss is not installed: pip install 'searchengine[cpu]' (or 'searchengine[gpu]')"
    ) from error

faiss: Any = _faiss  # its type stubs describe the C++ side, not the Python methods laid over it

Mask = npt.NDArray[np.bool_]
Search = Callable[[Floats, int], tuple[Floats, RowNumbers]]


def read_index(path: Path, *, mapped: bool) -> Any:
    """A faiss index from a file, loaded or mapped. SegmentError if faiss cannot read it.

    faiss trusts what it reads: a file made to harm can end the process. See docs/segment-format.md.
    """
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except (RuntimeError, MemoryError) as error:  # a length in the file may be any number
        said = shortened(str(error) or "it asks for more memory than there is")
        raise SegmentError(f"faiss cannot read {path}: {said}") from error


def write_index(index: Any, path: Path) -> None:
    """A faiss index to a file. OSError if the disk does not take it."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # how faiss reports every failed write
        raise OSError(f"could not write {path}: {error}") from error


@contextmanager
def native_threads(most: int) -> Iterator[None]:
    """A share of the process's threads for one faiss call; `most` is no more than its queries.

    faiss shares out queries and not rows. A thread without work still has to arrive at the barrier:
    on a busy machine one query waits whole time slices for it (16 ms instead of 0.2 ms was seen).
    The setting is the calling thread's own, so searches in other threads do not feel it.
    """
    with threads.take(most) as taken:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(taken)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)


def selector_of(rows: RowNumbers, total: int) -> Any:
    """A faiss selector of some of `total` rows."""
    mask = np.zeros(total, np.bool_)
    mask[rows] = True
    return bitmap(mask)


def bitmap(mask: Mask) -> Any:
    """A faiss selector of the rows that are True: one bit a row, tested in constant time."""
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def ordered(
    search: Search, queries: Floats, size: int, available: int
) -> tuple[Floats, RowNumbers]:
    """Scores and rows (q, size) by (-score, row), from a search that breaks ties at will.

    One row more than wanted tells whether the cut goes through a tie; if it does, the search is
    asked for more until the tie is whole.
    """
    ask = min(size + 1, available)
    scores, rows = search(queries, ask)
    if (scores[:, 1:] < scores[:, :-1]).all():
        return scores[:, :size], rows[:, :size]  # no tie: faiss has sorted them
    found = np.empty((queries.shape[0], size), np.int64)
    best = np.empty(found.shape, np.float32)
    pending = np.arange(queries.shape[0])
    while True:
        order = np.lexsort((rows, -scores))[:, :size]
        found[pending] = np.take_along_axis(rows, order, axis=1)
        best[pending] = np.take_along_axis(scores, order, axis=1)
        if ask == available:
            return best, found
        pending = pending[scores[:, size - 1] == scores[:, -1]]
        if pending.size == 0:
            return best, found
        ask = min(2 * ask, available)
        scores, rows = search(queries[pending], ask)
