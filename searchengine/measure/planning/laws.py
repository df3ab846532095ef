"""How a measured quantity grows with the number of passages: fitted at two sizes, checked at more.

Its shape is known beforehand: a file takes the same bytes for each row, a scan reads every row, the
steps of a walk through a graph grow slower than any power. So two measurements fit it, and the
others show its error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """How a quantity y grows with the rows n.

    `linear`: y = a + b · n. `power`: y = a · nᵇ, b at most 1. Neither a nor b is below 0, so that
    an extrapolation never promises that more rows cost less.
    """

    LINEAR = "linear"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity that was measured at several sizes.

    Attributes:
        shape: how it grows.
        measured: rows → value, positive, by rising rows; at least three sizes.
        a, b: the parameters, fitted to the first two sizes.
    """

    shape: Shape
    measured: Mapping[int, float]
    a: float
    b: float

    @classmethod
    def fitted(cls, shape: Shape, measured: Mapping[int, float]) -> "Figure":
        """Fit the two smallest sizes.

        A line that would begin below 0 is one through 0 and the second point; what falls from the
        first size to the second is a constant, the larger one.
        """
        sizes = sorted(measured)
        n, m = sizes[:2]
        y, z = measured[n], measured[m]
        if z <= y:
            a, b = max(y, z), 0.0
        elif shape is Shape.LINEAR:
            b = (z - y) / (m - n)
            a = y - b * n
            if a < 0:
                a, b = 0.0, z / m
        else:
            b = min(1.0, math.log(z / y) / math.log(m / n))
            a = z / m**b
        return cls(shape, {size: measured[size] for size in sizes}, a, b)

    def at(self, rows: float) -> float:
        """The value for a number of rows."""
        if self.shape is Shape.POWER:
            return float(self.a * rows**self.b)
        return self.a + self.b * rows

    @property
    def errors(self) -> dict[int, float]:
        """Rows → predicted / measured − 1, of the sizes that were not fitted."""
        return {rows: self.at(rows) / value - 1 for rows, value in [*self.measured.items()][2:]}

    @property
    def error(self) -> float:
        """The largest of the errors, without its sign."""
        return max(map(abs, self.errors.values()))
