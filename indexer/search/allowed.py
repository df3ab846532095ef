"""Which rows a search may find, made ready once."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers, row_numbers
from indexer.errors import VectorError
from indexer.faiss_calls import Mask, bitmap

MOSTLY = 0.75
"""From this share of allowed rows all are scanned and the others left out of what was found: to
ask of every row whether it is allowed takes faiss three times as long as the scan itself."""

Scan = Callable[[Floats, int, Any], tuple[Floats, RowNumbers]]
"""Queries, a size and a selector (None for all rows) to scores and rows."""


class Allowed:
    """Some rows of a segment. It never changes, and several threads may search with it at once.

    What a search needs of it is made when it is first needed, and kept: a collection with deleted
    rows restricts every search, always to the same ones. Made by `of` or `without`.

    Attributes:
        total: how many rows the segment has.
        size: how many of them are allowed.
    """

    __slots__ = ("__weakref__", "_mask", "_rows", "_selector", "size", "total")

    def __init__(self, total: int, size: int, rows: RowNumbers | None, mask: Mask | None) -> None:
        for array in (rows, mask):
            if array is not None:
                array.flags.writeable = False
        self._rows, self._mask, self._selector = rows, mask, None
        self.total, self.size = total, size

    @classmethod
    def of(cls, rows: npt.ArrayLike, total: int) -> Self:
        """These rows of a segment of `total`: strictly rising numbers, none is fine.

        Raises:
            VectorError: they are not rising, or lie outside the segment.
        """
        numbers = row_numbers(rows, total).copy()
        return cls(total, numbers.size, numbers, None)

    @classmethod
    def without(cls, rows: npt.ArrayLike, total: int) -> Self:
        """All rows of a segment of `total` but these: strictly rising numbers.

        Raises:
            VectorError: as `of`.
        """
        numbers = row_numbers(rows, total)
        mask = np.ones(total, np.bool_)
        mask[numbers] = False
        return cls(total, total - numbers.size, None, mask)

    @property
    def rows(self) -> RowNumbers:
        """Their numbers, rising: (size,) int64, read-only."""
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
    def share(self) -> float:
        """The allowed part of all rows, 0 to 1."""
        return self.size / self.total

    @property
    def selector(self) -> Any:
        """The same for faiss, which only reads it; None where every row is allowed."""
        if self._selector is None and self.size < self.total:
            self._selector = bitmap(self.mask)
        return self._selector

    def __repr__(self) -> str:
        return f"Allowed({self.size} of {self.total} rows)"


def restriction(allowed: "Allowed | npt.ArrayLike | None", total: int) -> Allowed | None:
    """What a caller hands in for a segment of `total` rows: row numbers are checked, once.

    Raises:
        VectorError: rows of a segment of another size, or as Allowed.of.
    """
    if allowed is None:
        return None
    if not isinstance(allowed, Allowed):
        return Allowed.of(allowed, total)
    if allowed.total != total:
        raise VectorError(
            f"the allowed rows are of a segment of {allowed.total} rows, this one has {total}: "
            "make them for this segment"
        )
    return allowed


def scan_allowed(
    scan: Scan,
    selector: Callable[[Allowed], Any],
    queries: Floats,
    ask: int,
    allowed: Allowed,
) -> tuple[Floats, RowNumbers]:
    """Scores and rows (q, ask) of a scan, where some rows are allowed, at least `ask` of them.

    Args:
        scan: scans all rows, or those of a selector.
        selector: the selector of allowed rows that `scan` takes.
    """
    if allowed.share < MOSTLY:
        return scan(queries, ask, selector(allowed))
    # Twice as many as there would be if those left out were spread evenly.
    more = ask + min(allowed.total - allowed.size, round(2 * ask / allowed.share) - ask + 10)
    scores, rows = scan(queries, more, None)
    kept = allowed.mask[rows]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :ask]
    scores = np.take_along_axis(scores, order, axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    short = np.flatnonzero(np.count_nonzero(kept, axis=1) < ask)
    if short.size:
        scores[short], rows[short] = scan(queries[short], ask, selector(allowed))
    return scores, rows
