"""passages.npy: the passage that each row of a segment is the vector of.

Three numbers a row: the document, as whoever built the segment numbers documents, and where the
passage begins and ends in its text. So a search needs no table to tell to which documents its rows
belong. The rows of a document follow each other.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from searchengine.indexer.arrays import RowNumbers
from searchengine.indexer.errors import SegmentError, VectorError

PASSAGES = "passages.npy"
_MAX_HEADER = 1024  # bytes; numpy writes 128


@dataclass(frozen=True, slots=True, eq=False)
class RowPassages:
    """The passages of a segment's rows. Immutable, and safe to use from several threads.

    Attributes:
        columns: (3, rows) int64 document, start and end of each row's passage.
    """

    columns: RowNumbers

    @classmethod
    def open(cls, path: Path, rows: int) -> Self:
        """Map the file of a segment of `rows` rows; its checksum was verified.

        Raises:
            SegmentError: it is not such a file.
        """
        start = npy_start(path, "<i8", (3, rows))
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        columns = np.frombuffer(mapped, "<i8", offset=start).reshape(3, rows)
        return cls(columns)

    def of_documents(self, rows: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """All rows of the documents that have these rows, and the document of each, both (n,).

        `rows`: (d,) of different documents.
        """
        documents, rows_in_all = self.columns[0].data, self.columns.shape[1]
        found, owners = list[int](), list[int]()
        for row in rows.tolist():
            owner, first, end = documents[row], row, row + 1
            while first and documents[first - 1] == owner:
                first -= 1
            while end < rows_in_all and documents[end] == owner:
                end += 1
            found += range(first, end)
            owners += [owner] * (end - first)
        return np.array(found, np.int64), np.array(owners, np.int64)


def write_passages(path: Path, columns: RowNumbers, rows: int) -> None:
    """Write the file of a segment of `rows` rows, which is not synced; `columns`: (3, rows).

    Raises:
        VectorError: there are more passages than rows, or fewer.
    """
    if columns.shape != (3, rows):
        raise VectorError(f"passages must have shape (3, {rows}), got {columns.shape}")
    with path.open("xb") as file:
        np.save(file, np.ascontiguousarray(columns, "<i8"))


def npy_start(path: Path, dtype: str, shape: tuple[int, int]) -> int:
    """Where the values begin in a .npy file of this type and shape.

    The size and the header are compared with the expected ones, not obeyed: a header can request
    any amount of memory, and numpy passes it to Python's parser. Versions of numpy differ only in
    the number of spaces at its end.

    Raises:
        SegmentError: it is no such file.
    """
    start = path.stat().st_size - np.dtype(dtype).itemsize * shape[0] * shape[1]
    with path.open("rb") as file:
        head = file.read(start) if 10 < start <= _MAX_HEADER else b""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = (start - 10).to_bytes(2, "little") if head else b""
    if head[:10] != b"\x93NUMPY\x01\x00" + length or head[10:].rstrip(b" \n") != text:
        raise SegmentError(
            f"{path} must hold a matrix {shape} of {np.dtype(dtype).name}; "
            "restore it or index again"
        )
    return start
