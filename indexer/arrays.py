"""Array types, checks of arguments, prefixes of rows, their order by similarity, reading ahead."""

import mmap
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.indexer.errors import VectorError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
RowNumbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BLOCK_ROWS = 4096
"""Rows per block wherever a whole file is read: 12 MiB of float32 at 768 dimensions."""

_LOCALITY_BITS = 16

UNIT_SLACK = 2.0**-20
"""A row whose squared length differs from 1 by at most this is a unit row, and is left as it is:
what float32 gives an encoder that scales to length one. So stored rows are read back as given."""

MAX_PADDED = 1 << 20
"""Maximum k or shortlist where there are fewer rows: the rest of the result is padding."""


def unit_rows(
    rows: npt.ArrayLike,
    *,
    dim: int | None = None,
    first: int = 0,
    numbers: RowNumbers | None = None,
) -> Floats:
    """Check vectors and return them as float32 rows of length one.

    Args:
        rows: (n, D) numbers, n >= 1.
        dim: the required width D; None takes any.
        first: the number of the first row, for error messages.
        numbers: (n,) the numbers of all rows, for error messages, if they are not consecutive.

    Returns:
        (n, D) float32, C-contiguous, always a copy. Norms are computed in float64, so rows close
        to the limits of float32 are correct too. Unit rows (UNIT_SLACK) stay as they are.

    Raises:
        VectorError: not 2-D, empty, not numeric, of another width, or a row is zero or not finite.
    """
    single = float_rows(rows, dim=dim)
    squares = np.einsum("nd,nd->n", single, single, dtype=np.float64)
    norms = np.sqrt(np.where(np.abs(squares - 1) <= UNIT_SLACK, 1, squares))
    if not (np.isfinite(norms) & (norms > 0)).all():
        if numbers is None:
            numbers = first + np.arange(len(norms))
        raise VectorError(_first_unusable(norms, numbers))
    # Divided in float64 and rounded once: a float64 copy would take as long as a search.
    unit = np.empty_like(single)
    np.divide(single, norms[:, None], out=unit, casting="same_kind")
    return unit


def float_rows(rows: npt.ArrayLike, *, dim: int | None = None) -> Floats:
    """Check vectors but for their lengths, and return them as float32.

    Args:
        rows: (n, D) numbers, n >= 1.
        dim: the required width D; None takes any.

    Returns:
        (n, D) float32, C-contiguous: the array itself where it is that.

    Raises:
        VectorError: not 2-D, empty, not numeric or of another width.
    """
    if isinstance(rows, np.ndarray) and rows.dtype == np.float32 and rows.flags.c_contiguous:
        single: Floats = rows
    else:
        try:
            array = np.asarray(rows)
            if array.dtype.kind not in "biuf":  # numpy would parse texts, and drop imaginary parts
                raise TypeError(f"got {array.dtype}; convert them to floats first")
            with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, named below
                single = array.astype(np.float32, order="C")
        except (TypeError, ValueError) as error:
            raise VectorError(f"vectors must be an (n, D) array of numbers: {error}") from error
    if single.ndim != 2:
        raise VectorError(
            f"vectors must be 2-D (n, D), got shape {single.shape}; one vector is vector[None, :]"
        )
    if single.size == 0:
        raise VectorError(f"vectors must not be empty, got shape {single.shape}")
    if dim is not None and single.shape[1] != dim:
        raise VectorError(
            f"vectors must be {dim} wide, got {single.shape[1]}: "
            "encode with the encoder that the rows were encoded with"
        )
    return single


def _first_unusable(norms: Doubles, numbers: RowNumbers) -> str:
    """An error message for the first row without a positive norm."""
    bad = np.flatnonzero(~np.isfinite(norms))
    if bad.size:
        return (
            f"row {numbers[bad[0]]} holds NaN or infinity ({bad.size} such rows in its block); "
            "check the encoder's output"
        )
    empty = np.flatnonzero(norms == 0)
    return (
        f"row {numbers[empty[0]]} is all zeros ({empty.size} such rows in its block) and a zero "
        "vector has no direction; leave the row out"
    )


def unusable(vectors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Rows with NaN or infinity, or with zeros only: bool (n,)."""
    usable: npt.NDArray[np.bool_] = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    return ~usable


def address(array: npt.NDArray[Any]) -> int:
    """Where the first element of an array is stored. The caller keeps the array alive."""
    where: int = array.__array_interface__["data"][0]
    return where


def read_ahead(mapped: mmap.mmap, offset: int, stride: int, rows: slice) -> None:
    """Ask the system to read some rows of a file now, at least one. A row takes `stride` bytes."""
    start = offset + rows.start * stride
    start -= start % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_WILLNEED, start, offset + rows.stop * stride - start)


def evenly(rows: int, limit: int) -> RowNumbers:
    """At most `limit` of the row numbers 0 … rows - 1, evenly spread, rising."""
    return np.linspace(0, rows - 1, min(rows, limit)).astype(np.int64)


def row_numbers(allowed: npt.ArrayLike, rows: int) -> RowNumbers:
    """Check a set of row numbers: 1-D, strictly rising, within [0, rows).

    Raises:
        VectorError: anything else; repeated or unsorted numbers are not repaired.
    """
    array = np.asarray(allowed)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise VectorError(
            f"allowed rows must be a 1-D integer array, got {array.dtype} of shape {array.shape}"
        )
    numbers = np.ascontiguousarray(array, dtype=np.int64)
    if numbers.size and (numbers[0] < 0 or numbers[-1] >= rows or (np.diff(numbers) <= 0).any()):
        raise VectorError(
            f"allowed rows must rise strictly within [0, {rows}), got {numbers.size} rows between "
            f"{numbers.min()} and {numbers.max()}; numpy.unique sorts and removes repeats"
        )
    return numbers


def result_size(name: str, value: int, rows: int) -> int:
    """Return `value` as an int. Raise VectorError unless 1 <= value <= max(rows, MAX_PADDED).

    Beyond the number of rows there is only padding, which must not exhaust the memory.
    """
    maximum = max(rows, MAX_PADDED)
    number = at_least_one(name, value)
    if number > maximum:
        raise VectorError(
            f"{name} must be at most {maximum} for a segment of {rows} rows, got {value}; "
            f"ask for {rows}, which is all of them"
        )
    return number


def at_least_one(name: str, value: int) -> int:
    """Return `value` as an int. Raise VectorError unless it is a whole number of at least 1."""
    number = integer(value)
    if number is None or number < 1:
        raise VectorError(f"{name} must be a whole number of at least 1, got {value!r}")
    return number


def integer(value: Any) -> int | None:
    """An integer of any type, such as numpy's, as an int; None for any other value and for bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def prefix(x: Floats, p: int) -> Floats:
    """The first `p` dimensions of every row, scaled to length one.

    The coarse view of a vector (Matryoshka, Kusupati et al. 2022).

    prefix(prefix(x, 128), 64) == prefix(x, 64) up to rounding. A row whose first `p` dimensions
    are all zero stays zero: its coarse score is 0 and never NaN.

    Args:
        x: (n, D) finite.
        p: dimensions to keep, 1 <= p <= D.

    Returns:
        (n, p) float32, C-contiguous.
    """
    head = x[:, :p].astype(np.float64)  # float64: tiny prefixes do not underflow when squared
    norms = np.sqrt(np.einsum("nd,nd->n", head, head))
    norms[norms == 0] = 1.0
    head /= norms[:, None]
    return head.astype(np.float32)


def locality(blocks: Iterable[Floats], sample: Floats) -> RowNumbers:
    """An order in which similar rows follow each other.

    Rows are sorted by the signs of their leading dimensions, each relative to its median in the
    sample, without the first: a hash by hyperplanes (Charikar 2002). It needs no training and did
    as well here as k-means with 1,024 centroids.

    Args:
        blocks: rows (n_i, p), p >= 2 for the order to mean anything.
        sample: (m, p) of these rows, m >= 1.

    Returns:
        (n,) the row numbers in that order; equal hashes keep the order of the rows.
    """
    medians = np.median(sample[:, 1 : 1 + _LOCALITY_BITS], axis=0)
    powers = (1 << np.arange(medians.size, dtype=np.uint32))[::-1]
    hashes = [(block[:, 1 : 1 + _LOCALITY_BITS] > medians) @ powers for block in blocks]
    return np.argsort(np.concatenate(hashes), kind="stable")
