"""Documents that come with their vectors: checked as they are read, and never copied.

The vectors are an array (n, D), which may be mapped from a file. Row i belongs to document i, or to
the passage that line i of `passages` describes, as `export` writes them. The segment is built from
the array itself.
"""

import hashlib
from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Backend, Span
from searchengine.corpus.contents import bad, unreadable
from searchengine.corpus.documents import Document, checked_key
from searchengine.encoders.protocol import Vectors
from searchengine.errors import CorpusError, QueryError
from searchengine.indexer.arrays import unusable

_LONGEST = 1 << 40  # characters of a text


Supplied = tuple[Sequence[Span], npt.NDArray[Any], bytes]
"""The passages of a document, the vector of each, and their checksum."""


class SuppliedVectors:
    """The vectors that come with the documents of one call of `add`."""

    def __init__(
        self,
        backend: Backend,
        vectors: npt.ArrayLike,
        passages: Iterable[Mapping[str, Any]] | None = None,
    ) -> None:
        """Check that they suit the collection. Raises QueryError and CorpusError."""
        dim = backend.settings["encoder"]["dim"]
        try:
            self._array = np.asarray(vectors)
        except (TypeError, ValueError) as error:
            raise QueryError(f"vectors must be an array of shape (n, {dim}): {error}") from error
        shape, dtype = self._array.shape, self._array.dtype
        if len(shape) != 2 or shape[1] != dim or dtype.kind not in "fiu":
            raise QueryError(
                f"vectors must be numbers of shape (n, {dim}), one row per document, "
                f"got {dtype} of shape {shape}"
            )
        if passages is not None and backend.settings.get("passages") is None:
            raise QueryError(
                f"{backend.path} keeps documents whole, so that none has several vectors; leave "
                "passages out, or use a collection made with passages=True"
            )
        self._position = 0  # documents read
        self._table = None if passages is None else _Passages(passages, shape[0])

    def next_for(self, documents: Sequence[Document]) -> dict[str, Supplied]:
        """Key → vectors of documents just read."""
        spans = [self._rows_of(document) for document in documents]
        vectors = iter(self._read([row + i for row, cut in spans for i in range(len(cut))]))
        supplied: dict[str, Supplied] = {}
        for document, (row, cut) in zip(documents, spans, strict=True):
            checksum = hashlib.sha256(repr(cut).encode())
            for vector in islice(vectors, len(cut)):
                checksum.update(vector)
            # The first document of a key is stored, the others are left out or refused.
            rows = self._array[max(row, 0) : max(row, 0) + len(cut)]
            supplied.setdefault(document.key, (cut, rows, checksum.digest() if cut else b""))
        return supplied

    def _rows_of(self, document: Document) -> tuple[int, Sequence[Span]]:
        """The first row of the next document, and its passages; none: (−1, [])."""
        self._position += 1
        if self._table is not None:
            return self._table.passages_of(document)
        if self._position > len(self._array):
            raise self._other_number(f"more than {len(self._array)}")
        return self._position - 1, [(0, len(document.text))]

    def check_end(self, seen: Container[str]) -> None:
        """Raise QueryError if rows are left when all documents were read; `seen`: their keys."""
        if self._table is None:
            if self._position != len(self._array):
                raise self._other_number(str(self._position))
        elif unused := [key for key in self._table.keys if key not in seen]:
            raise QueryError(
                f"a passage names the document {min(unused)!r}, which is not among the "
                "documents; nothing was added since the last commit"
            )

    def _other_number(self, documents: str) -> QueryError:
        return QueryError(
            f"every document needs one row of the vectors, got {documents} documents and "
            f"{len(self._array)} rows; nothing was added since the last commit"
        )

    def _read(self, rows: Sequence[int]) -> Vectors:
        """These rows as float32. Raises QueryError for NaN, infinity and zeros."""
        with np.errstate(over="ignore"):  # values beyond float32 become infinity, reported below
            single: Vectors = np.ascontiguousarray(self._array[rows], np.float32)
        wrong = unusable(single)
        if wrong.any():
            raise QueryError(
                f"row {rows[int(wrong.argmax())]} of the vectors (from 0) holds NaN, infinity or "
                "only zeros; correct it, or leave it out with its document"
            )
        return single


class _Passages:
    """Passages by key; four numbers a passage are in memory.

    Attributes:
        keys: key → the first row, and the one after the last.
    """

    def __init__(self, passages: Iterable[Mapping[str, Any]], rows: int) -> None:
        """Read `passages`, one for each row. Raises QueryError and CorpusError."""
        self.keys: dict[str, tuple[int, int]] = {}
        self._offsets = array("q"), array("q")
        row = 0
        for row, line in enumerate(passages, start=1):
            if row > rows:
                break
            key, *offsets = _checked_line(row, line)
            first, end = self.keys.get(key, (row - 1, row - 1))
            if end != row - 1:
                raise CorpusError(
                    f"the passages of the document {key!r} are on lines {end} and {row}, with "
                    "others in between; put them one after the other"
                )
            self.keys[key] = first, row
            for values, offset in zip(self._offsets, offsets, strict=True):
                values.append(offset)
        if row != rows:
            got = f"{row} passages" if row < rows else "more passages"
            raise QueryError(
                f"every row of the vectors needs a passage, got {got} for {rows} rows; "
                "nothing was added"
            )

    def passages_of(self, document: Document) -> tuple[int, list[Span]]:
        """The first row of a document and its passages; none: (−1, [])."""
        first, end = self.keys.get(document.key, (-1, -1))
        spans = [*zip(*(values[first:end] for values in self._offsets), strict=True)]
        for row, (start, stop) in enumerate(spans, start=first + 1):
            if not 0 <= start <= stop <= len(document.text):
                raise CorpusError(
                    f"passage {row}: {start} to {stop} is not within the text of "
                    f"{document.key!r}, which has {len(document.text)} characters"
                )
        return first, spans


def _checked_line(number: int, line: Any) -> tuple[str, int, int]:
    """Key, start and end of passage `number`, from 1. Raises CorpusError."""
    match line:
        case {"key": str(key), "start": int(start), "end": int(end)} if key.strip():
            if type(start) is type(end) is int and 0 <= start <= end < _LONGEST:
                return checked_key(key), start, end
    raise CorpusError(
        f"passage {number}: expected a key and offsets 0 ≤ start ≤ end, got {line!r:.80}"
    )


def read_vectors(path: Path, *, may_be_empty: bool = False) -> Any:
    """The array (n, D) of a file, mapped: its rows are read when they are used.

    Raises CorpusError for a missing, malformed or empty file, and for anything but numbers.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        why = f"cannot be read as a .npy file ({error}); write it by numpy.save"
        raise bad(path, why) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        what = "expected numbers of shape (n, D), one row per document"
        raise bad(path, f"{what}, got {array.dtype} of shape {array.shape}")
    rows, dim = array.shape
    if not dim or not (rows or may_be_empty):
        raise bad(path, f"holds no vectors (shape {array.shape})")
    return array
