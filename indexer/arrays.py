"""The arrays that pass the door: their types, and the checks made once, on entry."""

import numpy as np
import numpy.typing as npt

from indexer.errors import VectorError

Floats = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int64]

BLOCK_ROWS = 4096
"""Rows handled at a time wherever a whole file is walked: 12 MiB of float32 at 768 wide."""


def unit_rows(rows: npt.ArrayLike, *, dim: int | None = None, first: int = 0) -> Floats:
    """Check vectors and return them as float32 rows of length one.

    Args:
        rows: (n, D) numbers, n >= 1.
        dim: the width D that is required, if one is.
        first: the number of the first row, so that an error names the row of the whole input.

    Returns:
        (n, D) float32, C-contiguous. Always a copy. The norm is taken in float64, so that rows
        close to the limits of float32 come out right too.

    Raises:
        VectorError: not 2-D, empty, not numeric, of another width, or a row is zero or not finite.
    """
    try:
        array = np.asarray(rows)
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, named below
            wide = array.astype(np.float32).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise VectorError(f"vectors must be an (n, D) array of numbers: {error}") from error
    if wide.ndim != 2:
        raise VectorError(
            f"vectors must be 2-D (n, D), got shape {array.shape}; one vector is vector[None, :]"
        )
    if wide.size == 0:
        raise VectorError(f"vectors must not be empty, got shape {array.shape}")
    if dim is not None and wide.shape[1] != dim:
        raise VectorError(
            f"vectors must be {dim} wide, got {wide.shape[1]}: "
            "encode with the encoder that the rows were encoded with"
        )
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    bad = np.flatnonzero(~np.isfinite(norms))
    if bad.size:
        raise VectorError(
            f"row {first + bad[0]} holds NaN or infinity ({bad.size} such rows in its block); "
            "check the encoder's output"
        )
    empty = np.flatnonzero(norms == 0)
    if empty.size:
        raise VectorError(
            f"row {first + empty[0]} is all zeros ({empty.size} such rows in its block) and a zero "
            "vector has no direction; leave the row out"
        )
    wide /= norms[:, None]
    return wide.astype(np.float32)


def evenly(rows: int, most: int) -> RowNumbers:
    """At most `most` of the row numbers 0 … rows - 1, evenly spread, rising."""
    return np.linspace(0, rows - 1, min(rows, most)).astype(np.int64)


def row_numbers(allowed: npt.ArrayLike, rows: int) -> RowNumbers:
    """Check a set of row numbers: 1-D, strictly rising, within [0, rows).

    Raises:
        VectorError: anything else; a repeated or unsorted number is not repaired.
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


def at_least_one(name: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1; VectorError names it otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise VectorError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
