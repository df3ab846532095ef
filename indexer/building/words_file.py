"""Writing words.safetensors: postings of counted terms, or merged postings of other segments.

Memory holds the terms, and some million postings at a time.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, RowNumbers
from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.words_format import (
    ARRAYS,
    WINDOW,
    Postings,
    bounds_of,
    entry_heads,
    header,
    type_of,
)

_BATCH = 1 << 22
"""Postings that are sorted at a time."""
_MOST_FREQUENCIES = 1 << 16
_IN_MEMORY = 1 << 22  # bytes of an array


@dataclass(frozen=True, slots=True)
class WriteWords:
    """Writes the words file of a new segment, see Segment.build.

    Attributes:
        write: called with the path of the file.
        notes: how text became terms; only words files with equal notes are merged.
    """

    write: Callable[[Path], None]
    notes: Mapping[str, str]

    def __call__(self, path: Path) -> None:
        self.write(path)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The terms of some documents, counted.

    Attributes:
        rows: (documents,) the row of each document, rising.
        lengths: (documents,) uint32 tokens of each.
        terms: the distinct terms, ascending.
        starts: (terms + 1,) the first posting of each term.
        documents: (postings,) the documents of each term, rising.
        counts: (postings,) how often each has it; a title's words may count more than once.
    """

    rows: RowNumbers
    lengths: npt.NDArray[np.uint32]
    terms: list[bytes]
    starts: RowNumbers
    documents: RowNumbers
    counts: Doubles

    @property
    def frequencies(self) -> Doubles:
        """The distinct counts."""
        return np.unique(self.counts)

    def vocabulary(self) -> list[bytes]:
        """The terms."""
        return self.terms

    def posting_starts(self) -> RowNumbers:
        """The first posting of each term."""
        return self.starts

    def documents_of(self, start: int, end: int) -> RowNumbers:
        """The documents of some postings."""
        return self.documents[start:end]

    def frequencies_of(self, start: int, end: int) -> Doubles:
        """The counts of some postings."""
        return self.counts[start:end]


Source = Counted | Postings


class Moved(NamedTuple):
    """Postings to merge, and the new row of each of their documents: −1 leaves it out.

    The new rows rise, and those of the next source are larger.
    """

    source: Source
    rows: RowNumbers


def moved(source: Source, kept: RowNumbers | None, base: int) -> Moved:
    """The documents of a segment, to merge; `kept`: rows to take over, rising; None: all.

    They become the rows `base` and on.
    """
    rows = np.asarray(source.rows)
    if kept is None:
        return Moved(source, rows + base)
    at = np.searchsorted(kept, rows)
    is_kept = at < kept.size
    is_kept[is_kept] = kept[at[is_kept]] == rows[is_kept]
    return Moved(source, np.where(is_kept, at + base, -1))


def write_postings(path: Path, parts: Sequence[Moved], notes: Mapping[str, str]) -> None:
    """Merge postings into a new file, which is not synced.

    Args:
        path: the file. Arrays of more than some MB are on the disk of its folder meanwhile.
        parts: the postings, of documents that follow each other.
        notes: kept in the file.

    Raises:
        VectorError: there are more different counts than the format has room for.
        OSError: the file could not be written.
    """
    kept = [part.rows >= 0 for part in parts]
    rows = np.concatenate([part.rows[k] for part, k in zip(parts, kept, strict=True)])
    lengths = np.concatenate(
        [part.source.lengths[: k.size][k] for part, k in zip(parts, kept, strict=True)]
    )
    average = float(lengths.mean()) if lengths.any() else 1.0
    with ExitStack() as stack:
        spool = _Spool(path.parent, stack)
        table = _table([part.source.frequencies for part in parts])
        codes = np.uint8 if table.size == 1 << 8 else np.uint16
        vocabulary = sorted({term for part in parts for term in part.source.vocabulary()})
        terms = _Terms(vocabulary)
        for first, term_of, documents, counts in _batches(parts, kept, vocabulary):
            heads = entry_heads(documents, term_of)
            bounds = bounds_of(counts, lengths[documents], average, heads)
            spool.write("lows", (documents % WINDOW).astype("<u2"))
            spool.write("codes", np.searchsorted(table, counts).astype(codes))
            spool.write("entry_starts", (terms.postings + heads).astype("<i8"))
            spool.write("entry_windows", (documents[heads] // WINDOW).astype("<u4"))
            spool.write("entry_bounds", bounds)
            terms.add(first, term_of[heads], documents.size)
        spool.write("entry_starts", np.array([terms.postings], "<i8"))
        spool.write("rows", rows.astype("<i8"))
        padded = np.zeros(-(-rows.size // WINDOW) * WINDOW, "<u4")
        padded[: rows.size] = lengths
        spool.write("lengths", padded)
        spool.write("frequencies", table.astype("<f8"))
        for name, array in terms.arrays().items():
            spool.write(name, array)
        metadata = {"notes": json.dumps(dict(notes)), "average": repr(average)}
        spool.assemble(path, codes is np.uint8, metadata)


class _Spool:
    """Arrays that grow to lengths known at the end: in memory, or large ones on the disk."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._files = {
            name: stack.enter_context(SpooledTemporaryFile(_IN_MEMORY, dir=str(folder)))
            for name in ARRAYS
        }

    def write(self, name: str, array: npt.NDArray[Any]) -> None:
        self._files[name].write(array.tobytes())

    def assemble(self, path: Path, narrow: bool, metadata: Mapping[str, str]) -> None:
        shapes = {}
        for name, file in self._files.items():
            shapes[name] = file.tell() // np.dtype(type_of(name, narrow)[1]).itemsize
        with path.open("xb") as target:
            target.write(header(shapes, narrow, metadata))
            for file in self._files.values():
                file.seek(0)
                shutil.copyfileobj(file, target, 1 << 20)


class _Terms:
    """The table of terms: those that some document has."""

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self._vocabulary = vocabulary
        self._counts = np.zeros(len(vocabulary), np.int64)  # entries of each term
        self.postings = 0

    def add(self, first: int, terms: RowNumbers, postings: int) -> None:
        """Entries by the number of their term, counted from `first`."""
        counts = np.bincount(terms)
        self._counts[first : first + counts.size] += counts
        self.postings += postings

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        present = np.flatnonzero(self._counts)
        terms = [self._vocabulary[i] for i in present.tolist()]
        lengths = np.fromiter(map(len, terms), np.int64, len(terms))
        return {
            "term_bytes": np.frombuffer(b"".join(terms), np.uint8),
            "term_starts": np.append(0, np.cumsum(lengths)).astype("<i8"),
            "term_entries": np.append(0, np.cumsum(self._counts[present])).astype("<i8"),
        }


def _table(frequencies: Sequence[Doubles]) -> Doubles:
    """All counts, ascending, in a table as long as its codes allow."""
    table = np.unique(np.concatenate(frequencies))
    if table.size > _MOST_FREQUENCIES:
        raise VectorError(
            f"the words of a segment may have {_MOST_FREQUENCIES} different counts, "
            f"got {table.size}; cut the documents into shorter ones"
        )
    size = 1 << 8 if table.size <= 1 << 8 else _MOST_FREQUENCIES
    last = table[-1] if table.size else 1.0
    return np.append(table, np.full(size - table.size, last))


def _batches(
    parts: Sequence[Moved], kept: Sequence[npt.NDArray[np.bool_]], vocabulary: Sequence[bytes]
) -> Iterator[tuple[int, RowNumbers, RowNumbers, Doubles]]:
    """The postings of ranges of terms: the first term, and for each posting, by (term, document),
    its term counted from there, its document in the new segment, and its count."""
    numbers = {term: i for i, term in enumerate(vocabulary)}
    sources, total = [], np.zeros(len(vocabulary), np.int64)
    base = 0
    for part, alive in zip(parts, kept, strict=True):
        terms = part.source.vocabulary()
        mapped = np.fromiter((numbers[term] for term in terms), np.int64, len(terms))
        starts = np.asarray(part.source.posting_starts())
        total[mapped] += np.diff(starts)
        new = np.where(alive, base + np.cumsum(alive) - 1, -1)
        base += int(alive.sum())
        sources.append((part.source, mapped, starts, new))
    ends = np.cumsum(total)
    first = 0
    while first < len(vocabulary):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _BATCH, "right")))
        pieces = []
        for source, mapped, starts, new in sources:
            low, high = np.searchsorted(mapped, [first, last])
            start, end = int(starts[low]), int(starts[high])
            documents = new[source.documents_of(start, end)]
            term_of = np.repeat(mapped[low:high] - first, np.diff(starts[low : high + 1]))
            alive = documents >= 0
            counts = source.frequencies_of(start, end)
            pieces.append((term_of[alive], documents[alive], counts[alive]))
        term_of, documents, counts = (
            np.concatenate(columns) for columns in zip(*pieces, strict=True)
        )
        order = np.argsort(term_of, kind="stable")  # the sources' documents follow each other
        if order.size:
            yield first, term_of[order], documents[order], counts[order]
        first = last
