"""Filters: which rows of a segment a search may find."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Mask, RowNumbers, row_numbers
from searchengine.indexer.errors import VectorError
from searchengine.indexer.faiss_calls import bitmap


class Allowed:
    """The rows of a segment that may be found. Immutable, and safe to use from several threads.

    Create it with `from_rows` or `without`. Rows, mask and selector are computed on first use and
    kept, because a collection with deleted rows restricts every search to the same rows.

    Attributes:
        total: number of rows of the segment.
        size: number of allowed rows.
    """

    __slots__ = ("__weakref__", "_mask", "_rows", "_selector", "size", "total")

    def __init__(self, total: int, size: int, rows: RowNumbers | None, mask: Mask | None) -> None:
        for array in (rows, mask):
            if array is not None:
                array.flags.writeable = False
        self._rows, self._mask, self._selector = rows, mask, None
        self.total, self.size = total, size

    @classmethod
    def from_rows(cls, rows: npt.ArrayLike, total: int) -> Self:
        """Allow these rows of a segment of `total`: strictly rising numbers, possibly none.

        Raises:
            VectorError: they do not rise, or are outside the segment.
        """
        numbers = row_numbers(rows, total).copy()
        return cls(total, numbers.size, numbers, None)

    @classmethod
    def without(cls, rows: npt.ArrayLike, total: int) -> Self:
        """Allow all rows of a segment of `total` except these: strictly rising numbers.

        Raises:
            VectorError: as `from_rows`.
        """
        numbers = row_numbers(rows, total)
        mask = np.ones(total, np.bool_)
        mask[numbers] = False
        return cls(total, total - numbers.size, None, mask)

    @property
    def rows(self) -> RowNumbers:
        """The allowed row numbers, rising: (size,) int64, read-only."""
        if self._rows is None:
            self._rows = np.flatnonzero(self.mask)
            self._rows.flags.writeable = False
        return self._rows

    @property
    def mask(self) -> Mask:
        """Whether each row is allowed: (total,) bool, read-only."""
        if self._mask is None:
            mask = np.zeros(self.total, np.bool_)
            mask[self._rows] = True
            mask.flags.writeable = False
            self._mask = mask
        return self._mask

    @property
    def selector(self) -> Any:
        """The allowed rows as a faiss selector; None where every row is allowed."""
        if self._selector is None and self.size < self.total:
            self._selector = bitmap(self.mask)
        return self._selector

    def __repr__(self) -> str:
        return f"Allowed({self.size} of {self.total} rows)"


def restriction(allowed: "Allowed | npt.ArrayLike | None", total: int) -> Allowed | None:
    """The filter of a caller, checked for a segment of `total` rows; None for no filter.

    Raises:
        VectorError: an Allowed for another number of rows, or as Allowed.from_rows.
    """
    if allowed is None:
        return None
    if not isinstance(allowed, Allowed):
        return Allowed.from_rows(allowed, total)
    if allowed.total != total:
        raise VectorError(
            f"allowed rows must be of a segment of {total} rows, got {allowed.total} rows; "
            "create them for this segment"
        )
    return allowed
