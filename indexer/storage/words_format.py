"""words.safetensors: which documents of a segment have which terms, for ranking by BM25.

A document is a row of the segment, the first of its passages. The postings of a term are cut by
windows of documents; an entry is the part in one window. The file has the layout of safetensors
(https://huggingface.co/docs/safetensors): the length of a header, the header in JSON, then arrays.
Every number that leads into an array is checked when the file is opened, or cannot lead outside:
arrays that codes and documents lead into are as long as the largest number that can be stored.
"""

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, RowNumbers
from searchengine.indexer.errors import SegmentError, shown

WORDS = "words.safetensors"
WINDOW = 1 << 13
"""Documents of a window; the kernel knows it too (source/words.h)."""

ARRAYS = {
    "term_starts": ("I64", "<i8"),
    "term_entries": ("I64", "<i8"),
    "entry_starts": ("I64", "<i8"),
    "rows": ("I64", "<i8"),
    "frequencies": ("F64", "<f8"),
    "entry_windows": ("U32", "<u4"),
    "entry_bounds": ("F32", "<f4"),
    "lengths": ("U32", "<u4"),
    "lows": ("U16", "<u2"),
    "codes": ("U16", "<u2"),  # or U8
    "term_bytes": ("U8", "|u1"),
}
"""Array → its type in the header, and in numpy, in the order of the file. Wider types come first,
so that all are aligned."""
_NARROW = ("U8", "|u1")
_MAX_HEADER = 1 << 14  # bytes
_CACHED = 1 << 14  # terms whose number is remembered


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
    _numbers: dict[bytes, int] = field(default_factory=dict, init=False)

    @classmethod
    def open(cls, path: Path, rows: int) -> Self:
        """Map the file of a segment of `rows` rows; its checksum was verified.

        Raises:
            SegmentError: it is not such a file.
        """
        arrays, metadata = _read(path)
        try:
            notes = json.loads(metadata["notes"])
            average = float(metadata["average"])
            postings = cls(path, notes, average, **arrays)
            postings._check(rows)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, shown(error)) from error
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
        number = self._numbers.get(term)
        if number is None:
            number = self.first_from(term)
            if number == self.terms or self.term(number) != term:
                number = -1
            if len(self._numbers) >= _CACHED:
                self._numbers.clear()
            self._numbers[term] = number
        return number

    def first_from(self, term: bytes) -> int:
        """The number of the first term that does not come before this one."""
        text, starts = self.term_bytes.data, self.term_starts.data  # faster than the arrays
        low, high = 0, self.terms
        while low < high:
            middle = (low + high) // 2
            if text[starts[middle] : starts[middle + 1]].tobytes() < term:
                low = middle + 1
            else:
                high = middle
        return low

    def beginning_with(self, text: bytes) -> tuple[int, int]:
        """The terms that begin with a text: the number of the first, and that behind the last."""
        return self.first_from(text), self.first_from(text + b"\xff")  # no byte of UTF-8

    def count(self, number: int) -> int:
        """How many documents have a term."""
        first, last = self.term_entries[number : number + 2]
        return int(self.entry_starts[last] - self.entry_starts[first])

    def counts(self, numbers: RowNumbers) -> RowNumbers:
        """How many documents have each term, (n,) int64."""
        first, last = self.term_entries[numbers], self.term_entries[numbers + 1]
        counts: RowNumbers = self.entry_starts[last] - self.entry_starts[first]
        return counts

    def first_bytes(self, numbers: RowNumbers) -> npt.NDArray[np.uint8]:
        """The first byte of each term, (n,); no term is empty."""
        return self.term_bytes[self.term_starts[numbers]]

    @cached_property
    def texts(self) -> npt.NDArray[np.object_]:
        """(terms,) all terms as text, decoded once."""
        return np.array([term.decode(errors="replace") for term in self.vocabulary()], object)

    @cached_property
    def heads(self) -> npt.NDArray[np.uint32]:
        """(3, terms) the code points of the first letters of all terms; 0 behind the last one."""
        return self.texts.astype("U3").view(np.uint32).reshape(-1, 3).T.copy()

    def vocabulary(self) -> list[bytes]:
        """All terms, in order."""
        text, starts = self.term_bytes.tobytes(), self.term_starts.tolist()
        return [text[a:b] for a, b in pairwise(starts)]

    def posting_starts(self) -> RowNumbers:
        """(terms + 1,) the first posting of each term."""
        return self.entry_starts[self.term_entries]

    def documents_of(self, start: int, end: int) -> RowNumbers:
        """The documents of the postings from `start` to `end`, int64."""
        first = int(np.searchsorted(self.entry_starts, start, "right")) - 1
        last = int(np.searchsorted(self.entry_starts, end, "left"))
        sizes = np.diff(self.entry_starts[first : last + 1].clip(start, end))
        windows = np.repeat(self.entry_windows[first:last].astype(np.int64), sizes)
        documents: RowNumbers = windows * WINDOW + self.lows[start:end]
        return documents

    def frequencies_of(self, start: int, end: int) -> Doubles:
        """The weighted counts of the postings from `start` to `end`."""
        frequencies: Doubles = self.frequencies[self.codes[start:end]]
        return frequencies

    def _check(self, rows: int) -> None:
        """Raise ValueError if a number leads outside."""
        windows = -(-self.documents // WINDOW)
        codes = 1 << 8 * self.codes.itemsize
        if self.lengths.size != windows * WINDOW or self.frequencies.size != codes:
            raise ValueError("an array has another length")
        if not (0 < self.average < np.inf and (self.frequencies >= 0).all()):
            raise ValueError("a frequency is not a positive number")
        for starts, count, end in (
            (self.term_starts, self.terms, self.term_bytes.size),
            (self.term_entries, self.terms, self.entry_windows.size),
            (self.entry_starts, self.entry_windows.size, self.lows.size),
        ):
            if starts.size != count + 1 or starts[0] != 0 or starts[-1] != end:
                raise ValueError("an array does not begin and end with another")
            if (np.diff(starts) < 0).any():
                raise ValueError("numbers do not rise")
        if self.codes.size != self.lows.size or self.entry_bounds.size != self.entry_windows.size:
            raise ValueError("arrays differ in length")
        if self.entry_windows.size and self.entry_windows.max() >= windows:
            raise ValueError("a document is missing")
        rises = np.append(True, np.diff(self.entry_windows.astype(np.int64)) > 0)
        rises[self.term_entries[self.term_entries < rises.size]] = True  # a term begins there
        if not rises.all():
            raise ValueError("windows do not rise")
        inside = self.rows.size == 0 or (self.rows[0] >= 0 and self.rows[-1] < rows)
        if not inside or (np.diff(self.rows) <= 0).any():
            raise ValueError("a row is missing")


def header(shapes: Mapping[str, int], narrow: bool, metadata: Mapping[str, str]) -> bytes:
    """The header of a file: the lengths of its arrays by name, in the order of writing."""
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in ARRAYS:
        kind, dtype = type_of(name, narrow)
        size = shapes[name] * np.dtype(dtype).itemsize
        described[name] = {"dtype": kind, "shape": [shapes[name]], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def type_of(name: str, narrow: bool) -> tuple[str, str]:
    """The type of an array, in the header and in numpy; `narrow`: codes take one byte."""
    return _NARROW if name == "codes" and narrow else ARRAYS[name]


def _read(path: Path) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, str]]:
    """The arrays of a file, mapped, and its metadata."""
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    length = int.from_bytes(mapped[:8], "little")
    if not 0 < length <= min(_MAX_HEADER, len(mapped) - 8):
        raise _damaged(path, "its header is too long")
    body = mapped[8 + length :]
    arrays = {}
    try:
        described = json.loads(bytes(mapped[8 : 8 + length]))
        metadata = described.pop("__metadata__")
        if set(described) != set(ARRAYS) or not isinstance(metadata, dict):
            raise ValueError("it has other arrays")
        for name, stated in described.items():
            choices = {ARRAYS[name], type_of(name, True)}
            dtype = {kind: numpy for kind, numpy in choices}[stated["dtype"]]
            start, end = stated["data_offsets"]
            if not 0 <= start <= end <= len(body):
                raise ValueError("an array ends outside")
            arrays[name] = np.frombuffer(body[start:end], dtype)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, shown(error)) from error
    return arrays, metadata


def entry_heads(documents: RowNumbers, term_of: RowNumbers | None = None) -> RowNumbers:
    """Where the entries of postings begin: at another window, or another term.

    The postings are sorted by (term, document); without `term_of` they are of one term.
    """
    other = np.diff(documents // WINDOW) != 0
    if term_of is not None:
        other |= np.diff(term_of) != 0
    return np.flatnonzero(np.append(True, other)) if documents.size else documents


def bounds_of(
    counts: Doubles, lengths: npt.NDArray[np.uint32], average: float, heads: RowNumbers
) -> npt.NDArray[np.float32]:
    """`entry_bounds` of entries that begin at `heads`, from the counts and lengths of postings."""
    share = counts / (counts + norms(average, lengths))
    bounds = np.maximum.reduceat(share, heads).astype(np.float32)
    return np.nextafter(bounds, np.float32(2))  # rounded up: a bound


def _damaged(path: Path, how: str) -> SegmentError:
    return SegmentError(f"{path} is damaged ({how}); restore it or index again")


def norms(average: float, lengths: npt.ArrayLike) -> Doubles:
    """What BM25 adds to the frequencies of terms in documents of these lengths."""
    # In the order of FTS5, which rounds the same way.
    result: Doubles = K1 * (1 - B + B * np.asarray(lengths, np.float64) / average)
    return result


K1, B = 1.2, 0.75
"""How soon a repeated term counts no more, and how much the length of a document counts."""
_MIN_WEIGHT = 1e-6  # of FTS5, for a term in half of the documents or more


def weight(documents: int, having: int) -> float:
    """The inverse document frequency of a term that `having` of the documents have."""
    value = math.log((documents - having + 0.5) / (having + 0.5))
    return value if value > 0 else _MIN_WEIGHT


def max_gain(documents: int, having: int) -> float:
    """Maximum that a term adds to the score of a document, however often it occurs there."""
    return weight(documents, having) * (K1 + 1)


@dataclass(frozen=True, slots=True, eq=False)
class United:
    """Several terms treated as one, such as all with the same prefix: their documents, in memory.

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

    @classmethod
    def from_counts(cls, postings: Postings, documents: RowNumbers, counts: Doubles) -> Self:
        """The summed counts of documents of a segment, which rise; at least one."""
        heads = entry_heads(documents)
        return cls(
            documents,
            counts,
            (documents % WINDOW).astype(np.uint16),
            np.append(heads, documents.size),
            (documents[heads] // WINDOW).astype(np.uint32),
            bounds_of(counts, postings.lengths[documents], postings.average, heads),
        )
