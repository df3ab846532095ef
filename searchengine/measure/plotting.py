"""The common style of plots, their axes, labels and files: reproducible to the byte."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind readers can
# distinguish, without its yellow, which is invisible on white; brown and two greys make ten. The
# markers distinguish the same series in print.
COLOURS = (
    "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #8C510A #7F7F7F #B8B8B8"
).split()
MARKERS = "o s D v ^ P X < > h".split()
INK, FAINT = "#333333", "#8A8A8A"
WIDTH = 7.0  # inches; 700 pixels at 100 a inch
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "searchengine",  # equal figures give equal files
    "font.family": "DejaVu Sans",  # part of matplotlib: equal on every machine
    "font.size": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}
LABEL_GAP = 12.0  # points from one line's label to the next


@contextmanager
def style() -> Iterator[None]:
    """Apply the style within the block."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to draw in the common style."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return draw(*args, **kwargs)

    return in_style


def new_figure(height: float, panels: Sequence[float] = (1.0,)) -> "tuple[Figure, list[Axes]]":
    """An empty figure, 7 inches wide and `height` high, with panels stacked on one x axis.

    panels: their relative heights. It does not use pyplot, so there is no global state.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(
        len(panels), sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(panels)}
    )
    return figure, list(grid[:, 0])


@styled
def save(figure: "Figure", path: str | Path) -> Path:
    """Write the figure as .svg, or as .png 1400 pixels wide; return the path.

    Equal figures give equal bytes: no date, no random ids. Missing folders are created. Raises
    ConfigError for another suffix.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"{path}: the name of a plot must end in .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=200, metadata=metadata)
    return path


def check_finite(what: str, values: Iterable[float]) -> None:
    """Raise DataError for NaN and infinities, which a plot would silently leave out.

    what: name of the values, for the message.
    """
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise DataError(f"{what} must be finite, got {value} as number {place + 1}")


@styled
def label_ends(
    axes: "Axes", labels: Sequence[tuple[str, float, float, str]], heading: str = ""
) -> None:
    """Label lines at their right ends, in their colours, without overlap.

    labels: (name, x, y, colour) of each line's last point; heading: text above the names. Call it
    last: it fixes the limits of the axes.
    """
    axes.set_ylim(axes.get_ylim())
    axes.set_xlim(axes.get_xlim())
    into = axes.transData + axes.transAxes.inverted()
    ends = [tuple(into.transform((x, y))) for _, x, y, _ in labels]
    figure = axes.get_figure(root=True)
    assert figure is not None
    points = 72 * figure.get_figheight() * axes.get_position().height
    right = max((x for x, _ in ends), default=1.0)
    column = [i for i, (x, _) in enumerate(ends) if right - x < 0.1]  # the others have room
    heights = spread([ends[i][1] for i in column], LABEL_GAP / points)
    moved = max((abs(h - ends[i][1]) for i, h in zip(column, heights, strict=True)), default=0)
    lead = moved > 0.2 * LABEL_GAP / points
    side = right + (0.045 if lead else 0.015)
    top = max(heights, default=1.0) + LABEL_GAP / points
    look: dict[str, Any] = {"color": FAINT, "fontsize": 8, "va": "center"}
    axes.text(side, top, heading, transform=axes.transAxes, **look)
    for i, (name, x, y, colour) in enumerate(labels):
        height = heights[column.index(i)] if i in column else ends[i][1]
        place = side if i in column else ends[i][0] + 0.015
        axes.annotate(
            name,
            (x, y),
            (place, height),
            textcoords=axes.transAxes,
            color=colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6, "shrinkB": 3}
            if lead and i in column
            else None,
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """The positions nearest to `wanted`, in its order, at least `gap` apart.

    Neighbours that would overlap form a block around the mean of their wanted positions (isotonic
    regression by pooling adjacent violators, after subtracting the gaps).
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (sum of positions less their gaps, count)
    for rank, i in enumerate(order):
        total, count = wanted[i] - rank * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    places = [total / count for total, count in blocks for _ in range(count)]
    result = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        result[i] = places[rank] + rank * gap
    return result


FLOOR = 1e-3  # added to 1 − recall, so that a recall of 1 has a position
TICKS = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1)
MARGIN = 0.08  # beyond the outermost values


def recall_scale(axes: "Axes", which: str, values: Sequence[float]) -> None:
    """Scale an axis logarithmically in 1 − recall: 0.9 to 0.99 is about as long as 0.99 to 1.

    which: "x" or "y". values: all recalls of the plot, at least one, between 0 and 1; they set the
    limits.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ends = _missed(np.array([max(0.0, min(values)), max(values)])) + np.array([-MARGIN, MARGIN])
    axis = axes.xaxis if which == "x" else axes.yaxis
    if which == "x":
        axes.set_xscale("function", functions=(_missed, _recall))
        axes.set_xlim(*_recall(ends))
    else:
        axes.set_yscale("function", functions=(_missed, _recall))
        axes.set_ylim(*_recall(ends))
    low, high = _recall(ends)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def _missed(recall: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log10 of (1 − recall + FLOOR)."""
    return -np.log10(np.maximum(1 + FLOOR - np.asarray(recall), 1e-9))


def _recall(place: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `_missed`."""
    return np.asarray(1 + FLOOR - 10.0 ** -np.asarray(place))


def log_scale(axes: "Axes", which: str) -> None:
    """Scale an axis, "x", "y" or both ("xy"), logarithmically, with ticks at 1, 2, 5 and 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    def tick_label(value: float, _: object) -> str:
        return f"{value:,g}"

    for name in which:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(tick_label))
        axis.set_minor_locator(NullLocator())


SIZE = 8.0  # points
DISTANCES = (7.0, 14.0, 24.0, 36.0)  # points from mark to name
SIDES = ((0, -1), (1, -1), (1, 0), (-1, 0), (0, 1), (-1, 1), (1, 1), (-1, -1))
MARK = 4.0  # points: half the side of a mark

Box = tuple[float, float, float, float]  # left, bottom, right, top; pixels
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a point, in data coordinates. needed: write it even if it covers others."""

    text: str
    x: float
    y: float
    colour: str
    needed: bool = False
    bold: bool = False


@styled
def put_labels(axes: "Axes", labels: Sequence[Label], lines: Iterable[Line]) -> list[str]:
    """Write the labels that fit, in order of priority; return their texts.

    A label takes the first free position beside its point, where it covers no line or label and
    stays within the axes; a needed one may be farther away. lines: all lines and marks in data
    coordinates; a mark is a line of one point. Call it last: it needs the final layout.
    """
    from matplotlib.patheffects import withStroke

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    frame = axes.get_window_extent()
    bounds: Box = (frame.x0, frame.y0, frame.x1, frame.y1)
    boxes = [box for line in lines for box in _boxes(axes.transData.transform(list(line)), scale)]
    written = []
    for label in labels:
        place = _place(axes, label, boxes, bounds, scale)
        if place is None:
            continue
        box, (right, up) = place
        boxes.append(box)
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
    axes: "Axes", label: Label, boxes: Sequence[Box], bounds: Box, scale: float
) -> tuple[Box, tuple[float, float]] | None:
    """The position of a label: its box in pixels, and its offset from the point, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans", weight="bold" if label.bold else "normal")
    outline = TextPath((0, 0), label.text, size=SIZE, prop=font).get_extents()
    wide, high = outline.width + 3, SIZE + 3
    x, y = axes.transData.transform((label.x, label.y))
    best: tuple[float, Box, tuple[float, float]] | None = None
    far = len(DISTANCES) if label.needed else 1
    for distance, (right, up) in itertools.product(DISTANCES[:far], SIDES):
        left = x + scale * (distance * right + (right - 1) * wide / 2)
        low = y + scale * (distance * up + (up - 1) * high / 2)
        box = (left, low, left + scale * wide, low + scale * high)
        covered = sum(_shared(box, other) for other in boxes) + 4 * _outside(box, bounds)
        if best is None or covered < best[0]:
            best = covered, box, (distance * right, distance * up)
        if not covered:
            break
    assert best is not None
    return best[1:] if label.needed or not best[0] else None


def _boxes(line: NDArray[np.float64], scale: float) -> list[Box]:
    """Small boxes along a line (n, 2) in pixels; one box for a line of one point."""
    half = scale * (MARK if len(line) == 1 else 1.0)
    spots = [line[:1]]
    for start, end in itertools.pairwise(line):
        count = 1 + math.ceil(float(np.hypot(*(end - start))) / (4 * scale))
        spots.append(np.linspace(start, end, count))
    return [(x - half, y - half, x + half, y + half) for x, y in np.concatenate(spots).tolist()]


def _shared(first: Box, second: Box) -> float:
    """Area that two boxes share, in pixels."""
    wide = min(first[2], second[2]) - max(first[0], second[0])
    high = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, wide) * max(0.0, high)


def _outside(box: Box, bounds: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) - _shared(box, bounds)
