"""The rows of a segment: vectors, for numpy and faiss; their passages; and their rotated prefixes.

The file is what faiss writes for a float16 scalar quantizer (or a flat float32 index) over the
inner product: a short header, then the rows and nothing else. The header is that of files.py rather
than of faiss, so that rows can be streamed to disk and read back with numpy alone; a test compares
the two byte for byte.

passages.npy has three numbers a row: the document, as whoever built the segment numbers documents,
and where the passage begins and ends in its text. So a search needs no table to tell to which
documents its rows belong. The rows of a document follow each other.

The p-dimensional prefix that keeps the most energy of unit rows is their part along the leading
eigenvectors of X^T X (Eckart and Young 1936; uncentred principal components, because cosine does
not subtract the mean). Rows and queries themselves are not rotated: an orthogonal matrix would not
change their full-width cosines.
"""

import hashlib
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import (
    BLOCK_ROWS,
    Doubles,
    Floats,
    RowNumbers,
    evenly,
    prefix,
    read_ahead,
)
from searchengine.indexer.config import RotationKind, Storage
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.storage.files import (
    DTYPES,
    ROTATION,
    FileEntry,
    Manifest,
    altered,
    header,
)


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
        read_ahead: asks the system to read a slice of rows now, at least one.

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
                f"{path} does not start with the header of {rows} x {dim} {storage} rows"
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
        self.read_ahead = partial(read_ahead, self._map, self.offset, width)

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
            first, last, _ = rows.indices(self.rows)
            if first < last:
                self.read_ahead(slice(first, last))
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
            raise SegmentError(f"{self.path} was truncated")
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

    def release(self) -> None:
        """Release the pages read so far, so that they do not count as this process's memory.

        They stay in the system's cache. This bounds the memory of a pass over the whole file.
        """
        self._map.madvise(mmap.MADV_DONTNEED)


def open_passages(path: Path, rows: int) -> RowNumbers:
    """Map the file of a segment of `rows` rows: document, start and end, (3, rows) int64.

    Raises SegmentError: it is not such a file.
    """
    return open_npy(path, "<i8", (3, rows))


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
    raise SegmentError(f"{path} must hold {expected}")


ROTATION_SAMPLE = 30_000
"""Maximum rows that a rotation is fitted on, forty for each of 768 dimensions; more are sampled
evenly."""

_SINGLE_THREAD_ROWS = 8  # that one thread rotates alone
_COMPARED = 256  # rows of each; `sample` would release pages of a file that is searched
_KEPT = 0.95  # of 5,000 texts and more, others like them keep 0.96 to 0.99, code 0.75 to 0.88


def pca(blocks: Iterable[Floats], width: int) -> Floats:
    """The `width` directions of most energy, in descending order: (width, D) float32, orthonormal.

    Fewer rows than `width` is fine: arbitrary directions complete them. Equal input gives an equal
    matrix: the largest entry of each row is positive.

    Args:
        blocks: arrays (n_i, D) of finite rows.

    Raises:
        VectorError: no rows.
    """
    energy = _energy(blocks)
    rows, dim = energy.shape
    if rows < dim:  # X itself: its rows span all that there is
        vectors, inner = np.linalg.qr(energy.T.astype(np.float64))
        vectors = vectors @ np.linalg.eigh(inner @ inner.T)[1][:, ::-1]
        if rows < width:
            vectors, _ = np.linalg.qr(np.hstack([vectors, np.eye(dim, width)]))
    else:
        vectors = np.linalg.eigh(energy)[1][:, ::-1]  # eigh gives ascending energy
    leading = vectors[:, :width]
    largest = leading[np.abs(leading).argmax(axis=0), np.arange(width)]
    return np.ascontiguousarray((leading * np.sign(largest)).T, np.float32)


def _energy(blocks: Iterable[Floats]) -> npt.NDArray[np.floating]:
    """All rows X (n, D) where n <= D / 2, as they are, else X^T X (D, D) in float64.

    Within a block of float32 rows the products are summed in float32, in a third of the time: the
    energy of each prefix stays the same to five digits (100,000 real rows).
    """
    gram: Doubles | None = None
    pending: list[Floats] = []
    rows = 0
    for block in blocks:
        pending.append(block)
        rows += len(block)
        if 2 * rows <= block.shape[1]:
            continue
        for held in pending:
            product = (held.T @ held).astype(np.float64)
            gram = product if gram is None else gram + product
        pending.clear()
    if rows == 0:
        raise VectorError("a rotation needs at least one row to be fitted on, got none")
    return np.concatenate(pending) if gram is None else gram


def shared(like: "Prefixes", rows: VectorFile, width: int) -> Floats | None:
    """The rotation of other rows for a prefix of `width`, if it suits these; None if not.

    It does if it keeps nearly as large a part of them (_KEPT) as of the other ones, of samples.
    """
    if like.matrix is None or like.dim < width or like.file.dim != rows.dim:
        return None
    matrix = like.matrix[:width]
    samples = (file.take(evenly(file.rows, _COMPARED)) for file in (rows, like.file))
    here, there = (float((rotated(sample, matrix) ** 2).mean()) for sample in samples)
    return matrix if here >= _KEPT * there else None


def rotated(rows: Floats, matrix: Floats) -> Floats:
    """Rows (n, D) along the directions of a matrix (p, D): (n, p) float32, not re-normalised.

    In float64, so that a product is rounded once: BLAS sums a row in an order that depends on its
    place in the block, and in float32 equal rows would get different codes.
    """
    wide = rows.astype(np.float64)
    # BLAS wakes a thread per core, and a few rows then wait for the slowest: 14 ms instead of 0.1.
    if len(rows) <= _SINGLE_THREAD_ROWS:
        return np.asarray(np.einsum("nd,pd->np", wide, matrix), np.float32)
    return (wide @ matrix.astype(np.float64).T).astype(np.float32)


def prefixes(rows: Floats, width: int, matrix: Floats | None) -> Floats:
    """What the coarse stage compares: the first `width` dimensions of rotated rows, re-normalised.

    Args:
        rows: (n, D) finite.
        matrix: (width, D), from `pca`; None: rows are not rotated.

    Returns:
        (n, width) float32 unit rows, C-contiguous.
    """
    return prefix(rows if matrix is None else rotated(rows, matrix), width)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prefixes of the rows of a file, from which a coarse stage is built."""

    file: VectorFile
    dim: int
    matrix: Floats | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.file.rows

    def of(self, queries: Floats) -> Floats:
        """The prefixes of queries: (q, D) to (q, dim), by products in float32."""
        if self.matrix is None:
            return prefix(queries, self.dim)
        few = len(queries) <= _SINGLE_THREAD_ROWS
        products = np.vecdot(queries[:, None], self.matrix) if few else queries @ self.matrix.T
        return prefix(products, self.dim)

    def take(self, rows: RowNumbers) -> Floats:
        """The prefixes of rows of the file: row numbers of any shape (...) to (..., dim)."""
        read = self.dim if self.matrix is None else None
        flat = prefixes(self.file.take(rows.ravel(), read), self.dim, self.matrix)
        return flat.reshape(*rows.shape, self.dim)

    def blocks(self, order: RowNumbers | None = None) -> Iterator[Floats]:
        """All prefixes, BLOCK_ROWS at a time, by row number or in another order."""
        read = self.dim if self.matrix is None else None
        for rows in self.file.blocks(order, read):
            yield prefixes(rows, self.dim, self.matrix)

    def sample(self, count: int) -> Floats:
        """At most `count` prefixes, evenly spread."""
        return np.concatenate([*self.blocks(evenly(self.rows, count))])


def load_rotation(folder: Path, manifest: Manifest) -> Floats | None:
    """The rotation (prefix, dim) of a segment, or None for the identity.

    Raises:
        SegmentError: the file is not a .npy file of such a float32 matrix alone.
    """
    if manifest.config.rotation is RotationKind.IDENTITY:
        return None
    path, shape = folder / ROTATION, (manifest.config.prefix, manifest.dim)
    matrix: Floats = np.array(open_npy(path, "<f4", shape))
    if not np.isfinite(matrix).all():
        raise SegmentError(f"{path} holds NaN or infinity")
    return matrix
