"""The postings of a segment: which documents have which terms, and the documents' rank by BM25.

    score = Σ over the terms of weight × frequency (k1 + 1) / (frequency + norm of the length)

A document is a row of the segment, the first of its passages. The postings of a term are cut by
windows of documents; an entry is the part in one window. All are stored in words.safetensors, with
the layout of safetensors (https://huggingface.co/docs/safetensors): the length of a header, the
header in JSON, then arrays. Opening checks each number that leads into an array, except codes and
documents: the arrays they lead into are long enough for any value.

A file is written from counted terms, from the postings of other segments, or both. Memory holds the
terms, and some million postings at a time.

The compiled kernel searches the postings with MaxScore. Without one, every posting is scored by
numpy; the scores are the same.
"""

import ctypes
import json
import math
import mmap
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, RowNumbers, address
from searchengine.indexer.errors import SegmentError, VectorError, shown
from searchengine.indexer.native.library import chosen_level, load
from searchengine.indexer.search.scoring import Allowed

WINDOW = 1 << 13
"""Documents of a window; the kernel knows it too (native/source/words.h)."""
MOST_TERMS = 128
"""Maximum terms of a question: kTerms in native/source/words.h."""
K1, B = 1.2, 0.75
"""How soon a repeated term counts no more, and how much the length of a document counts."""

ARRAYS = {
    "term_starts": "<i8",
    "term_entries": "<i8",
    "entry_starts": "<i8",
    "rows": "<i8",
    "frequencies": "<f8",
    "entry_windows": "<u4",
    "entry_bounds": "<f4",
    "lengths": "<u4",
    "lows": "<u2",
    "codes": "<u2",  # or one byte
    "term_bytes": "|u1",
}
"""Array → its type, in the order of the file. Wider types come first, so that all are aligned."""
_NARROW = ARRAYS | {"codes": "|u1"}

_MAX_HEADER = 1 << 14  # bytes
_BATCH = 1 << 22  # postings that are sorted at a time
_MAX_FREQUENCIES = 1 << 16
_IN_MEMORY = 1 << 22  # bytes of an array
_KEPT, _TERMS = 1 << 22, 1 << 16  # postings of united terms, and terms, that are kept
_MIN_WEIGHT = 1e-6  # for a term in half of the documents or more


class WriteWords(NamedTuple):
    """Writes the words file of a new segment, see Segment.build.

    Attributes:
        write: called with the path of the file.
        notes: how text became terms; only words files with equal notes are merged.
    """

    write: Callable[[Path], None]
    notes: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The terms of some documents, counted.

    Attributes:
        rows: (documents,) the row of each document, rising.
        lengths: (documents,) uint32 tokens of each.
        vocabulary: the distinct terms, ascending.
        starts: (terms + 1,) the first posting of each term.
        documents: (postings,) the documents of each term, rising.
        frequencies: (postings,) how often each has it; a title's words may count more than once.
    """

    rows: RowNumbers
    lengths: npt.NDArray[np.uint32]
    vocabulary: list[bytes]
    starts: RowNumbers
    documents: RowNumbers
    frequencies: Doubles

    def take(self, first: int, last: int) -> tuple[RowNumbers, RowNumbers, Doubles]:
        """As Postings.take."""
        starts = self.starts[first : last + 1]
        term_of = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        postings = slice(starts[0], starts[-1])
        return term_of, self.documents[postings], self.frequencies[postings]


@dataclass(frozen=True, eq=False)
class Postings:
    """The terms of a segment's documents. Immutable, and safe to use from several threads.

    Attributes:
        path: the file.
        notes: what the writer noted, e.g. how text became terms.
        average: mean length of the documents, in tokens, which `entry_bounds` refer to.

    The others are the arrays of docs/format.md. `lengths` is 0 behind the last document;
    `frequencies` has an entry for every code that can be stored, 256 or 65536.
    """

    path: Path
    notes: Mapping[str, str]
    average: float
    rows: RowNumbers
    lengths: npt.NDArray[np.uint32]
    frequencies: Doubles
    term_bytes: npt.NDArray[np.uint8]
    term_starts: RowNumbers
    term_entries: RowNumbers
    entry_starts: RowNumbers
    entry_windows: npt.NDArray[np.uint32]
    entry_bounds: npt.NDArray[np.float32]
    lows: npt.NDArray[np.uint16]
    codes: npt.NDArray[np.integer[Any]]

    @classmethod
    def open(cls, path: Path, rows: int) -> Self:
        """Map the file of a segment of `rows` rows; its checksum was verified.

        Raises:
            SegmentError: it is not such a file.
        """
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        try:
            length = min(int.from_bytes(data[:8], "little"), _MAX_HEADER)
            described = json.loads(bytes(data[8 : 8 + length]))
            metadata = described["__metadata__"]
            types = _NARROW if described["codes"]["dtype"] == "U8" else ARRAYS
            sizes = {name: described[name]["shape"][0] for name in types}
            header = _header(sizes, types, metadata)
            if data[: len(header)] != header:
                raise ValueError("its header does not describe its arrays")
            arrays, end = dict[str, npt.NDArray[Any]](), len(header)
            for name, dtype in types.items():
                arrays[name] = np.frombuffer(data, dtype, sizes[name], end)
                end += arrays[name].nbytes
            postings = cls(
                path, json.loads(metadata["notes"]), float(metadata["average"]), **arrays
            )
            postings._check(rows, len(data) - end)
        except (LookupError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise SegmentError(f"{path} is damaged ({shown(error)})") from error
        return postings

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.rows.size

    @property
    def terms(self) -> int:
        """Number of distinct terms."""
        return self.term_entries.size - 1

    def term(self, number: int) -> bytes:
        """A term, in UTF-8."""
        start, end = self.term_starts[number : number + 2]
        return self.term_bytes[start:end].tobytes()

    def find(self, term: bytes) -> int:
        """The number of a term; -1 if no document has it."""
        number = self._first_from(term)
        return number if number < self.terms and self.term(number) == term else -1

    def beginning_with(self, text: bytes) -> tuple[int, int]:
        """The terms that begin with a text: the number of the first, and that behind the last."""
        return self._first_from(text), self._first_from(text + b"\xff")  # no byte of UTF-8

    def _first_from(self, term: bytes) -> int:
        """The number of the first term that does not come before this one."""
        text, starts = self.term_bytes.data, self.term_starts.data  # faster than the arrays
        return bisect_left(
            range(self.terms), term, key=lambda n: text[starts[n] : starts[n + 1]].tobytes()
        )

    def counts(self, numbers: RowNumbers | int) -> RowNumbers:
        """How many documents have each term, (n,) int64."""
        first, last = self.term_entries[numbers], self.term_entries[numbers + 1]
        counts: RowNumbers = self.entry_starts[last] - self.entry_starts[first]
        return counts

    @property
    def starts(self) -> RowNumbers:
        """(terms + 1,) the first posting of each term."""
        return self.entry_starts[self.term_entries]

    @property
    def vocabulary(self) -> list[bytes]:
        """All terms, in order."""
        text, starts = self.term_bytes.tobytes(), self.term_starts.tolist()
        return [text[a:b] for a, b in pairwise(starts)]

    @cached_property
    def known(self) -> frozenset[bytes]:
        """All terms, to look up many at once."""
        return frozenset(self.vocabulary)

    def take(self, first: int, last: int) -> tuple[RowNumbers, RowNumbers, Doubles]:
        """The postings of the terms from `first` up to `last`, one term after the other, (n,) each.

        The terms counted from `first`; their documents, rising for a term; and the counts.
        """
        entries = self.term_entries[first : last + 1]
        starts = self.entry_starts[entries[0] : entries[-1] + 1]
        postings = slice(starts[0], starts[-1])
        windows = self.entry_windows[entries[0] : entries[-1]].astype(np.int64) * WINDOW
        documents = np.repeat(windows, np.diff(starts)) + self.lows[postings]
        term_of = np.repeat(np.arange(last - first), np.diff(self.entry_starts[entries]))
        # Opening has not checked the documents: those outside are left out.
        outside = documents.max(initial=-1) >= self.documents
        inside: Any = documents < self.documents if outside else slice(None)
        return term_of[inside], documents[inside], self.frequencies[self.codes[postings]][inside]

    def _check(self, rows: int, left: int) -> None:
        """Raise ValueError if a number leads outside; `left`: bytes behind the arrays."""
        windows, entries = -(-self.documents // WINDOW), self.entry_windows.size
        sizes = (self.lengths.size, self.frequencies.size, self.codes.size, self.entry_bounds.size)
        if left or sizes != (windows * WINDOW, 256**self.codes.itemsize, self.lows.size, entries):
            raise ValueError("an array has a wrong length")
        if not (0 < self.average < np.inf and (self.frequencies >= 0).all()):
            raise ValueError("a frequency is not a positive number")
        for starts, count, end in (
            (self.term_starts, self.terms, self.term_bytes.size),
            (self.term_entries, self.terms, entries),
            (self.entry_starts, entries, self.lows.size),
        ):
            spans = starts.size == count + 1 and starts[0] == 0 and starts[-1] == end
            if not spans or (starts[1:] < starts[:-1]).any():
                raise ValueError("numbers do not rise up to the length of another array")
        rises = np.append(True, self.entry_windows[1:] > self.entry_windows[:-1])
        rises[self.term_entries[self.term_entries < rises.size]] = True  # a term begins there
        if not rises.all() or (self.entry_windows >= windows).any():
            raise ValueError("windows do not rise, or a document is missing")
        around = np.concatenate([[-1], self.rows, [rows]])
        if (around[1:] <= around[:-1]).any():
            raise ValueError("a row is missing")


Moved = tuple[Counted | Postings, RowNumbers]
"""Postings to merge, and the new row of each of their documents: −1 leaves it out.

The new rows rise, and those of the next source are larger."""


def moved(source: Counted | Postings, kept: RowNumbers | None, base: int) -> Moved:
    """The documents of a segment, to merge; `kept`: rows to take over, rising; None: all.

    They become the rows `base` and on.
    """
    if kept is None:
        return source, source.rows + base
    new = np.searchsorted(kept, source.rows) + base
    return source, np.where(np.isin(source.rows, kept), new, -1)


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
    rows = np.concatenate([rows[rows >= 0] for _, rows in parts])
    lengths = np.concatenate([source.lengths[: r.size][r >= 0] for source, r in parts])
    average = float(lengths.mean()) if lengths.any() else 1.0
    table = np.unique(np.concatenate([source.frequencies for source, _ in parts]))
    if table.size > _MAX_FREQUENCIES:
        raise VectorError(
            f"the words of a segment may have {_MAX_FREQUENCIES} different counts, "
            f"got {table.size}; cut the documents into shorter ones"
        )
    types, codes = (_NARROW, 1 << 8) if table.size <= 1 << 8 else (ARRAYS, _MAX_FREQUENCIES)
    table = np.append(table, np.full(codes - table.size, table.max(initial=1.0)))
    vocabulary = sorted({term for source, _ in parts for term in source.vocabulary})
    entries = np.zeros(len(vocabulary), np.int64)  # of each term
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(SpooledTemporaryFile(_IN_MEMORY, dir=str(path.parent)))
            for name in types
        }

        def write(name: str, array: npt.NDArray[Any]) -> None:
            files[name].write(array.astype(types[name]).tobytes())

        postings = 0
        for term_of, documents, counts in _merged(parts, vocabulary):
            added = norms(average, lengths[documents])
            heads, windows, bounds = _entries_of(documents, term_of, counts, added)
            write("lows", documents % WINDOW)
            write("codes", np.searchsorted(table, counts))
            write("entry_starts", postings + heads)
            write("entry_windows", windows)
            write("entry_bounds", bounds)
            entries += np.bincount(term_of[heads], minlength=entries.size)
            postings += documents.size
        present = np.flatnonzero(entries)
        terms = [vocabulary[i] for i in present.tolist()]
        write("entry_starts", np.array([postings]))
        write("rows", rows)
        write("lengths", np.append(lengths, np.zeros(-rows.size % WINDOW)))
        write("frequencies", table)
        write("term_bytes", np.frombuffer(b"".join(terms), np.uint8))
        write("term_starts", np.cumsum([0, *map(len, terms)]))
        write("term_entries", np.append(0, np.cumsum(entries[present])))
        sizes = {name: f.tell() // np.dtype(types[name]).itemsize for name, f in files.items()}
        metadata = {"notes": json.dumps(dict(notes)), "average": repr(average)}
        with path.open("xb") as target:
            target.write(_header(sizes, types, metadata))
            for file in files.values():
                file.seek(0)
                shutil.copyfileobj(file, target, 1 << 20)


def _merged(
    parts: Sequence[Moved], vocabulary: Sequence[bytes]
) -> Iterator[tuple[RowNumbers, RowNumbers, Doubles]]:
    """The postings of ranges of terms, by (term, document): of each posting the number of its term,
    its document in the new segment, and its count."""
    numbers = {term: i for i, term in enumerate(vocabulary)}
    sources, sizes, base = [], np.zeros(len(vocabulary), np.int64), 0
    for source, rows in parts:
        mapped = np.array([numbers[term] for term in source.vocabulary], np.int64)
        sizes[mapped] += np.diff(source.starts)
        alive = rows >= 0
        sources.append((source, mapped, np.where(alive, base + np.cumsum(alive) - 1, -1)))
        base += int(alive.sum())
    starts, first = np.append(0, np.cumsum(sizes)), 0
    while first < len(vocabulary):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + _BATCH, "right")) - 1)
        pieces = []
        for source, mapped, new in sources:
            low, high = np.searchsorted(mapped, [first, last]).tolist()
            term_of, documents, counts = source.take(low, high)
            documents = new[documents]
            alive = documents >= 0
            pieces.append((mapped[low:high][term_of[alive]], documents[alive], counts[alive]))
        term_of, documents, counts = (np.concatenate(c) for c in zip(*pieces, strict=True))
        order = np.argsort(term_of, kind="stable")  # the sources' documents follow each other
        if order.size:
            yield term_of[order], documents[order], counts[order]
        first = last


def _header(sizes: Mapping[str, int], types: Mapping[str, str], metadata: Any) -> bytes:
    """What a file begins with: the lengths and types of its arrays by name, in their order."""
    described: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, size in sizes.items():
        dtype = np.dtype(types[name])
        offsets = [end, end := end + size * dtype.itemsize]
        kind = f"{dtype.kind.upper()}{8 * dtype.itemsize}"
        described[name] = {"dtype": kind, "shape": [size], "data_offsets": offsets}
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _entries_of(
    documents: RowNumbers, term_of: RowNumbers, counts: Doubles, added: Doubles
) -> tuple[RowNumbers, npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """The entries of postings by (term, document): the first of each, its window and its bound.

    `added`: the norm of each posting's document.
    """
    other = (np.diff(documents // WINDOW) != 0) | (np.diff(term_of) != 0)
    heads = np.flatnonzero(np.append(True, other))
    windows = (documents[heads] // WINDOW).astype(np.uint32)
    bounds = np.maximum.reduceat(counts / (counts + added), heads).astype(np.float32)
    return heads, windows, np.nextafter(bounds, np.float32(2))  # rounded up


def norms(average: float, lengths: npt.ArrayLike) -> Doubles:
    """What BM25 adds to frequencies in documents of these lengths, computed in FTS5's order."""
    result: Doubles = K1 * (1 - B + B * np.asarray(lengths, np.float64) / average)
    return result


def _structure(integers: str, pointers: str) -> type[ctypes.Structure]:
    """A structure of native/source/words.h: its fields by type, in order."""
    fields: list[tuple[str, Any]] = [(name, ctypes.c_int64) for name in integers.split()]
    fields += [(name, ctypes.c_void_p) for name in pointers.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


_ENTRIES = "entry_starts entry_windows entry_bounds lows"
_POSTINGS = _structure("documents wide", f"{_ENTRIES} term_entries codes frequencies lengths rows")
_UNITED = _structure("entries", f"{_ENTRIES} counts")


def weight(documents: int, having: int) -> float:
    """The inverse document frequency, as Lucene has it, of a term that `having` documents have."""
    rare = 2 * having < documents
    return math.log((documents + 1) / (having + 0.5)) if rare else _MIN_WEIGHT


@dataclass(frozen=True, slots=True, eq=False)
class United:
    """Several terms treated as one, such as the forms of a word: their documents, in memory.

    Attributes:
        documents: (postings,) the documents that have at least one of the terms, rising.
        counts: (postings,) float64 number of times that each document has any of them.
        lows, entry_starts, entry_windows, entry_bounds: as in Postings, for this one term.
    """

    documents: RowNumbers
    counts: Doubles
    lows: npt.NDArray[np.uint16]
    entry_starts: RowNumbers
    entry_windows: npt.NDArray[np.uint32]
    entry_bounds: npt.NDArray[np.float32]


FoundTerm = int | United
"""The number of a term in its segment, −1 for one that it does not have; or several as one."""


class Words:
    """The postings of a segment without its deleted documents, ranked by BM25; for any thread.

    Attributes:
        postings: the terms, and the documents that have them.
        live: the rows that are not deleted; None for all.
        documents: number of documents that are not deleted.
        tokens: the sum of their lengths.
    """

    def __init__(self, postings: Postings, live: Allowed | None) -> None:
        self.postings, self.live = postings, live
        alive = slice(None) if live is None else live.mask[postings.rows]
        lengths = postings.lengths[: postings.documents][alive]
        self.documents = lengths.size
        self.tokens = int(lengths.sum(dtype=np.int64))
        self._longest = int(postings.lengths.max(initial=0))
        self._in_place: ctypes.Structure | None = None
        if chosen_level() is not None:
            wide, count = postings.codes.itemsize == 2, postings.documents
            self._in_place = _pointing_to(_POSTINGS, postings, documents=count, wide=wide)
        self._counts: dict[int, int] = {}
        self._found: dict[tuple[tuple[bytes, ...], bool], FoundTerm] = {}
        self._united = 0  # postings of the united terms kept
        self._norms: tuple[float, Doubles] | None = None

    def find_all(self, terms: Iterable[tuple[tuple[bytes, ...], bool]]) -> list[FoundTerm]:
        """As `find`, of several terms."""
        found = self._found
        return [found[term] if term in found else self.find(*term) for term in terms]

    def find(self, forms: tuple[bytes, ...], unfinished: bool = False) -> FoundTerm:
        """A term of the segment that has several forms; `unfinished`: all that begin with them."""
        if unfinished:
            term = self._unite([self.postings.beginning_with(form) for form in forms])
        else:
            numbers = [number for form in forms if (number := self.postings.find(form)) >= 0]
            term = numbers[0] if numbers else -1
            if len(numbers) > 1:
                term = self._unite([(number, number + 1) for number in numbers])
        self._united += term.lows.size if isinstance(term, United) else 0
        if len(self._found) >= _TERMS or self._united > _KEPT:
            self._found, self._united = {}, 0  # another thread may read the former one
        self._found[forms, unfinished] = term
        return term

    def _unite(self, ranges: Sequence[tuple[int, int]]) -> FoundTerm:
        """The terms in these ranges of numbers as one; −1 if no document has any."""
        taken = [self.postings.take(first, last)[1:] for first, last in ranges]
        repeated, frequencies = (np.concatenate(columns) for columns in zip(*taken, strict=True))
        counts: Doubles = np.bincount(repeated, frequencies).astype(np.float64)
        documents = np.flatnonzero(counts)
        if documents.size == 0:
            return -1
        counts = counts[documents]
        added = norms(self.postings.average, self.postings.lengths[documents])
        heads, windows, bounds = _entries_of(documents, 0 * documents, counts, added)
        lows, starts = (documents % WINDOW).astype(np.uint16), np.append(heads, documents.size)
        return United(documents, counts, lows, starts, windows, bounds)

    def count(self, term: FoundTerm) -> int:
        """How many documents that are not deleted have a term."""
        if isinstance(term, United):
            return self.rows_with(term).size
        if term < 0 or self.live is None:
            return 0 if term < 0 else int(self.postings.counts(term))
        count = self._counts.get(term)
        if count is None and self._in_place is not None:
            pointer, mask = ctypes.byref(self._in_place), address(self.live.mask)
            count = int(load().kernel_words_count(pointer, term, mask))
        elif count is None:
            count = self.rows_with(term).size
        self._counts[term] = count
        return count

    def rows_with(self, term: FoundTerm) -> RowNumbers:
        """The rows of documents that have a term and are not deleted, rising."""
        rows = self.postings.rows[self._postings(term)[0]]
        return rows if self.live is None else rows[self.live.mask[rows]]

    def _postings(self, term: FoundTerm) -> tuple[RowNumbers, Doubles]:
        """The documents that have a term, rising, and how often."""
        if isinstance(term, United):
            return term.documents, term.counts
        if term < 0:
            return np.zeros(0, np.int64), np.zeros(0)
        return self.postings.take(term, term + 1)[1:]

    def best(
        self,
        terms: Sequence[FoundTerm],
        weights: Doubles,
        average: float,
        k: int,
        allowed: Allowed | None = None,
        floor: float = -math.inf,
    ) -> tuple[RowNumbers, Doubles]:
        """The best k documents, by (−score, row).

        Args:
            terms: at most MOST_TERMS, which are fastest with the rarest first.
            weights: (n,) float64, more than 0.
            average: mean length of the collection's documents, in tokens.
            k: number of documents, at least 1.
            allowed: the rows that may be found; None for all that are not deleted.
            floor: leave out lower scores.

        Returns:
            rows (m,) int64 and scores (m,) float64, m ≤ k: only documents with one of the terms.

        Raises MemoryError.
        """
        if len(terms) > MOST_TERMS:
            raise ValueError(f"at most {MOST_TERMS} terms can be searched, got {len(terms)}")
        only = self.live if allowed is None else allowed
        mask = None if only is None else only.mask
        cached = self._norms  # a collection keeps its average
        if cached is None or cached[0] != average:
            cached = self._norms = average, norms(average, np.arange(self._longest + 1))
        weights, by_length = np.ascontiguousarray(weights, np.float64), cached[1]
        if self._in_place is None:
            sums = self._sums(terms, weights, by_length)
            possible = (sums > 0) & (sums >= floor)
            if mask is not None:
                possible &= mask[self.postings.rows]
            documents = np.flatnonzero(possible)
            order = np.argsort(-sums[documents], kind="stable")[:k]
            return self.postings.rows[documents[order]], sums[documents[order]]
        k = min(k, self.postings.documents)
        rows, scores = np.empty(k, np.int64), np.empty(k, np.float64)
        numbers = np.array([term if isinstance(term, int) else -1 for term in terms], np.int64)
        united = (_UNITED * len(terms))()
        for i, term in enumerate(terms):
            if isinstance(term, United):
                united[i] = _pointing_to(_UNITED, term, entries=term.entry_windows.size)
        count = load().kernel_best_by_words(
            ctypes.byref(self._in_place), len(terms), address(numbers), united, address(weights),
            address(by_length), None if mask is None else address(mask), k,
            self.postings.average / average, floor, address(rows), address(scores),
        )  # fmt: skip
        if count < 0:
            raise MemoryError(f"no memory for the best {k} documents by words")
        return rows[:count], scores[:count]

    def _sums(self, terms: Sequence[FoundTerm], weights: Doubles, by_length: Doubles) -> Doubles:
        """The score of each document, without a kernel; `by_length`: the norm of each length."""
        sums = np.zeros(self.postings.documents)
        for term, factor in zip(terms, weights.tolist(), strict=True):
            documents, frequencies = self._postings(term)
            norm = by_length[self.postings.lengths[documents]]
            sums[documents] += factor * ((frequencies * (K1 + 1.0)) / (frequencies + norm))
        return sums


def _pointing_to(kind: type[ctypes.Structure], arrays: object, **integers: int) -> ctypes.Structure:
    """A structure with these integers, that points to arrays with the names of its pointers."""
    names = [name for name, *_ in kind._fields_ if name not in integers]
    return kind(**integers, **{name: address(getattr(arrays, name)) for name in names})
