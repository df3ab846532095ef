"""Axes for recall and for milliseconds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = 1e-3  # of neighbours missed: what lies between it and none is drawn together
TICKS = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1)
ROOM = 0.08  # beyond the outermost values


def recall_scale(axes: "Axes", which: str, values: Sequence[float]) -> None:
    """A scale on which 0.9 to 0.99 is about as long as 0.99 to 1: logarithmic in what is missed.

    which: "x" or "y". values: all that are drawn, at least one, between 0 and 1; they set the
    limits.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ends = _place(np.array([max(0.0, min(values)), max(values)])) + np.array([-ROOM, ROOM])
    axis = axes.xaxis if which == "x" else axes.yaxis
    if which == "x":
        axes.set_xscale("function", functions=(_place, _recall))
        axes.set_xlim(*_recall(ends))
    else:
        axes.set_yscale("function", functions=(_place, _recall))
        axes.set_ylim(*_recall(ends))
    low, high = _recall(ends)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def _place(recall: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log10 of the share that is missed, and a little: 1 has a place."""
    return -np.log10(np.maximum(1 + FLOOR - np.asarray(recall), 1e-9))


def _recall(place: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `_place`."""
    return np.asarray(1 + FLOOR - 10.0 ** -np.asarray(place))


def log_scale(axes: "Axes", which: str) -> None:
    """A logarithmic axis, "x", "y" or both ("xy"), with 1, 2, 5 and 10 written as they are said."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    def said(value: float, _: object) -> str:
        return f"{value:,g}"

    for each in which:
        (axes.set_xscale if each == "x" else axes.set_yscale)("log")
        axis = axes.xaxis if each == "x" else axes.yaxis
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(said))
        axis.set_minor_locator(NullLocator())
