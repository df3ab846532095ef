"""The full-width rows: one file, mapped by numpy and by faiss.

The file is what faiss writes for a float16 scalar quantizer (or a flat float32 index) over the
inner product: a short header, then the rows and nothing else. The header is written here rather
than by faiss, so that rows can be streamed to disk and read back with numpy alone; a test compares
it with that of faiss, byte for byte.

passages.npy tells the passage that each row is the vector of. Three numbers a row: the document, as
whoever built the segment numbers documents, and where the passage begins and ends in its text. So a
search needs no table to tell to which documents its rows belong. The rows of a document follow each
other.
"""

import hashlib
import mmap
import os
import struct
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import BLOCK_ROWS, Floats, RowNumbers, evenly
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.storage.files import FileEntry, altered

DTYPES: dict[Storage, str] = {Storage.FLOAT16: "<f2", Storage.FLOAT32: "<f4"}

_INNER_PRODUCT = 0
_QT_FP16 = 4
_UNUSED = 1 << 20  # two fields that faiss writes for old readers


def header(rows: int, dim: int, storage: Storage) -> bytes:
    """The bytes before the first row: 81 for float16, 45 for float32 (faiss, little-endian)."""
    kind = b"IxSQ" if storage is Storage.FLOAT16 else b"IxFI"
    index = struct.pack("<4siqqqBi", kind, dim, rows, _UNUSED, _UNUSED, 1, _INNER_PRODUCT)
    if storage is Storage.FLOAT32:
        return index + struct.pack("<Q", rows * dim)
    quantizer = struct.pack("<iifQQQ", _QT_FP16, 0, 0.0, dim, 2 * dim, 0)
    return index + quantizer + struct.pack("<Q", rows * dim * 2)


def widen(half: npt.NDArray[np.uint16]) -> Floats:
    """float16 bit patterns to float32, exactly, for finite values.

    numpy converts element by element (0.09 ms for 100 rows of 768); moving the bits takes a third.
    Sign and mantissa shift into place, which leaves the exponent 112 too small; one product by
    2^112 repairs it, subnormals included.
    """
    bits = half.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(-0x70002000)  # keep the sign and the 15 shifted bits, drop its copies
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)
    return values


def as_floats(raw: npt.NDArray[np.uint8], storage: Storage) -> Floats:
    """Stored rows (..., bytes a row), C-contiguous, as float32 (..., D)."""
    if storage is Storage.FLOAT16:
        return widen(raw.view("<u2"))
    return raw.view(DTYPES[storage])


def write_vectors(
    path: Path, dim: int, storage: Storage, blocks: Iterable[npt.NDArray[Any]]
) -> "VectorFile":
    """Write a new file of rows, which is not synced, and map it.

    Args:
        blocks: the rows in the number format of the storage, (n_i, dim), or the bytes of these.
    """
    rows = 0
    with path.open("xb") as file:
        file.write(header(rows, dim, storage))
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)
            rows += len(block)
        file.seek(0)
        file.write(header(rows, dim, storage))
    return VectorFile(path, rows, dim, storage)


class VectorFile:
    """Sealed rows, mapped read-only; nothing is loaded before it is used.

    Attributes:
        rows, dim, storage: shape and number format of the rows.
        offset: bytes before the first row.

    Raises:
        SegmentError: at construction, if the file is missing, or its size or header does not fit
            these rows, this width and this storage.
    """

    def __init__(self, path: Path, rows: int, dim: int, storage: Storage) -> None:
        expected = header(rows, dim, storage)
        width = dim * np.dtype(DTYPES[storage]).itemsize
        size = len(expected) + rows * width
        FileEntry(size, "").check(path, contents=False)
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        if os.read(self._descriptor, len(expected)) != expected:
            raise SegmentError(
                f"{path} does not start with the header of {rows} x {dim} {storage} rows; "
                "restore it or index again"
            )
        self.path = path
        self.rows = rows
        self.dim = dim
        self.storage = storage
        self.offset = len(expected)
        self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        # Rows of a shortlist are far apart: read-ahead would read the whole file (the first
        # search took 54 ms instead of 8: 100 rows of 83,000, 384 dimensions).
        self._map.madvise(mmap.MADV_RANDOM)
        # As bytes, because the odd length of the header leaves every value unaligned.
        mapped = np.frombuffer(self._map, np.uint8, rows * width, self.offset)
        self._bytes = mapped.reshape(rows, width)

    @property
    def address(self) -> int:
        """Where the first row is mapped, at any byte; valid as long as this object exists."""
        return self._bytes.ctypes.data

    def take(self, rows: RowNumbers | slice, width: int | None = None) -> Floats:
        """The first `width` dimensions (all by default) of these rows, as float32.

        Args:
            rows: row numbers of any shape (...), each in [0, rows); or a slice.
            width: leading dimensions of each row; not re-normalised.

        Returns:
            (..., width) float32, C-contiguous, a copy.
        """
        dtype = np.dtype(DTYPES[self.storage])
        end = (self.dim if width is None else width) * dtype.itemsize
        if isinstance(rows, slice):
            self.read_ahead(rows)
            raw = self._bytes[rows, :end].copy()
        elif width is not None:
            raw = self._bytes[:, :end][rows]
        else:
            raw = self._bytes.take(rows, axis=0)  # faster than [rows]; needs a contiguous source
        return as_floats(raw, self.storage)

    def verified(
        self, checksum: str, only: RowNumbers | None = None
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Rows in order, as they are stored (for `as_floats`), from one read of the whole file.

        They are verified only when the iterator has ended without an error.

        Args:
            checksum: hexadecimal SHA-256 of the whole file.
            only: rising row numbers; None for all.

        Yields:
            at most BLOCK_ROWS rows, (n, bytes per row), in a buffer that the next block overwrites.

        Raises:
            SegmentError: the file was truncated; at the end, the checksum does not match.
        """
        hashed = hashlib.sha256(self._read(0, bytearray(self.offset)))
        width = self._bytes.shape[1]
        buffer = np.empty((min(BLOCK_ROWS, self.rows), width), np.uint8)
        for first in range(0, self.rows, BLOCK_ROWS):
            stored = buffer[: self.rows - first]
            hashed.update(self._read(self.offset + first * width, stored.data))
            if only is not None:
                numbers = only[slice(*np.searchsorted(only, [first, first + len(stored)]))]
                stored = stored[numbers - first]
            if stored.size:
                yield stored
        if hashed.hexdigest() != checksum:
            raise altered(self.path)

    def _read(self, start: int, into: bytearray | memoryview) -> bytearray | memoryview:
        """Fill a buffer from the file, because read errors of its map would kill the process."""
        if os.preadv(self._descriptor, [into], start) != memoryview(into).nbytes:
            raise SegmentError(f"{self.path} was truncated: restore it or index again")
        return into

    def blocks(self, rows: RowNumbers | None = None, width: int | None = None) -> Iterator[Floats]:
        """All rows in order, or these, BLOCK_ROWS at a time; `width` as for `take`."""
        for start in range(0, self.rows if rows is None else rows.size, BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            yield self.take(part if rows is None else rows[part], width)
            self.release()  # the system maps sixteen pages for one that is read

    def sample(self, count: int) -> Iterator[Floats]:
        """At most `count` rows, evenly spread, BLOCK_ROWS at a time."""
        return self.blocks(evenly(self.rows, count))

    def read_ahead(self, rows: slice) -> None:
        """Ask the system to read these rows at once."""
        first, last, _ = rows.indices(self.rows)
        if first < last:
            width = self._bytes.shape[1]
            start = self.offset + first * width
            start -= start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, start, self.offset + last * width - start)

    def release(self) -> None:
        """Release the pages read so far, so that they do not count as this process's memory.

        They stay in the system's cache. This bounds the memory of a pass over the whole file.
        """
        self._map.madvise(mmap.MADV_DONTNEED)


PASSAGES = "passages.npy"


def open_passages(path: Path, rows: int) -> RowNumbers:
    """Map the file of a segment of `rows` rows: document, start and end, (3, rows) int64.

    Raises SegmentError: it is not such a file.
    """
    return open_npy(path, "<i8", (3, rows))


def rows_beside(documents: RowNumbers, rows: RowNumbers) -> RowNumbers:
    """All rows of the documents that have these rows (d,), one of each, document by document.

    `documents`: of each row of the segment.
    """
    owners, found = documents.data, list[int]()
    for row in rows.tolist():
        owner, first, end = owners[row], row, row + 1
        while first and owners[first - 1] == owner:
            first -= 1
        while end < len(owners) and owners[end] == owner:
            end += 1
        found += range(first, end)
    return np.array(found, np.int64)


def write_passages(path: Path, columns: RowNumbers, rows: int) -> None:
    """Write the file of a segment of `rows` rows, which is not synced; `columns`: (3, rows).

    Raises:
        VectorError: there are more passages than rows, or fewer.
    """
    if columns.shape != (3, rows):
        raise VectorError(f"passages must have shape (3, {rows}), got {columns.shape}")
    with path.open("xb") as file:
        np.save(file, np.ascontiguousarray(columns, "<i8"))


def open_npy(path: Path, dtype: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Map a .npy file, whose header must name this type and shape.

    Raises:
        SegmentError: it does not, or is damaged. OSError: a limit of the system.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
        if (array.dtype.str, array.shape, array.flags.c_contiguous) == (dtype, shape, True):
            return array
    except OSError:
        raise
    except Exception:  # numpy's parser raises many
        pass
    expected = f"a matrix {shape} of {np.dtype(dtype).name}"
    raise SegmentError(f"{path} must hold {expected}; restore it or index again")
