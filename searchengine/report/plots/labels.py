"""Names beside points, where there is room for them."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from searchengine.report.plots.style import styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 8.0  # points
DISTANCES = (7.0, 14.0, 24.0, 36.0)  # points from mark to name
SIDES = ((0, -1), (1, -1), (1, 0), (-1, 0), (0, 1), (-1, 1), (1, 1), (-1, -1))
MARK = 4.0  # points: half the side of a mark

Box = tuple[float, float, float, float]  # left, bottom, right, top; pixels
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Label:
    """A name, and the point it belongs to, in data. needed: put it even where it covers others."""

    text: str
    x: float
    y: float
    colour: str
    needed: bool = False
    bold: bool = False


@styled
def put_labels(axes: "Axes", labels: Sequence[Label], lines: Iterable[Line]) -> list[str]:
    """Write the names that fit, the first ones first, and say which.

    A name goes to the first free place beside its point, or farther off if it is needed: where it
    covers no line and no other name and does not leave the axes. lines: all that is drawn, in
    data; a mark is a line of one point. Call it when all else is drawn, for it needs the finished
    layout.
    """
    from matplotlib.patheffects import withStroke

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    frame = axes.get_window_extent()
    bounds: Box = (frame.x0, frame.y0, frame.x1, frame.y1)
    taken = [box for line in lines for box in _boxes(axes.transData.transform(list(line)), scale)]
    written = []
    for label in labels:
        place = _place(axes, label, taken, bounds, scale)
        if place is None:
            continue
        box, (right, up) = place
        taken.append(box)
        written.append(label.text)
        look: dict[str, Any] = {"weight": "bold"} if label.bold else {}
        if max(abs(right), abs(up)) > DISTANCES[0]:
            look["arrowprops"] = {"arrowstyle": "-", "color": label.colour, "lw": 0.6, "shrinkB": 4}
        note = axes.annotate(
            label.text,
            (label.x, label.y),
            (right, up),
            textcoords="offset points",
            color=label.colour,
            fontsize=SIZE,
            ha=("right", "center", "left")[(right > 0) - (right < 0) + 1],
            va=("top", "center", "bottom")[(up > 0) - (up < 0) + 1],
            zorder=6,
            path_effects=[withStroke(linewidth=2, foreground="white")],
            **look,
        )
        note.set_in_layout(False)
    return written


def _place(
    axes: "Axes", label: Label, taken: Sequence[Box], bounds: Box, scale: float
) -> tuple[Box, tuple[float, float]] | None:
    """Where a name goes: its box in pixels, and how far from its point, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans", weight="bold" if label.bold else "normal")
    drawn = TextPath((0, 0), label.text, size=SIZE, prop=font).get_extents()
    wide, high = drawn.width + 3, SIZE + 3
    x, y = axes.transData.transform((label.x, label.y))
    best: tuple[float, Box, tuple[float, float]] | None = None
    far = len(DISTANCES) if label.needed else 1
    for distance, (right, up) in itertools.product(DISTANCES[:far], SIDES):
        left = x + scale * (distance * right + (right - 1) * wide / 2)
        low = y + scale * (distance * up + (up - 1) * high / 2)
        box = (left, low, left + scale * wide, low + scale * high)
        covered = sum(_shared(box, other) for other in taken) + 4 * _outside(box, bounds)
        if best is None or covered < best[0]:
            best = covered, box, (distance * right, distance * up)
        if not covered:
            break
    assert best is not None
    return best[1:] if label.needed or not best[0] else None


def _boxes(line: NDArray[np.float64], scale: float) -> list[Box]:
    """Small boxes along a line (n, 2) in pixels; one around the mark where it has one point."""
    half = scale * (MARK if len(line) == 1 else 1.0)
    spots = [line[:1]]
    for start, end in itertools.pairwise(line):
        count = 1 + math.ceil(float(np.hypot(*(end - start))) / (4 * scale))
        spots.append(np.linspace(start, end, count))
    return [(x - half, y - half, x + half, y + half) for x, y in np.concatenate(spots).tolist()]


def _shared(one: Box, two: Box) -> float:
    """Pixels that two boxes share."""
    wide = min(one[2], two[2]) - max(one[0], two[0])
    high = min(one[3], two[3]) - max(one[1], two[1])
    return max(0.0, wide) * max(0.0, high)


def _outside(box: Box, bounds: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) - _shared(box, bounds)
