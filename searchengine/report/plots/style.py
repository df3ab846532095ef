"""How every picture looks, and how it is written: one palette, one width, the same bytes again."""

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

from trainer.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), told apart by colour-blind readers,
# without its yellow, which white paper swallows; brown and two greys make it ten. The markers tell
# the same things apart in print.
COLOURS = (
    "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #8C510A #7F7F7F #B8B8B8"
).split()
MARKERS = "o s D v ^ P X < > h".split()
INK, FAINT = "#333333", "#8A8A8A"
WIDTH = 7.0  # inches; 700 pixels at 100 a inch
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "searchengine",  # the same figures give the same file
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
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


def check_installed() -> None:
    """ConfigError without matplotlib, an extra: searching and training do without."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "pictures need matplotlib: install the extra `plots` "
            "(pip install 'searchengine[plots]')"
        ) from None


@contextmanager
def style() -> Iterator[None]:
    """The look of a picture, while it is drawn or written; ConfigError without matplotlib."""
    check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """`draw`, run in the common style."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return draw(*args, **kwargs)

    return in_style


def new_figure(height: float, panels: Sequence[float] = (1.0,)) -> "tuple[Figure, list[Axes]]":
    """An empty figure, 7 inches wide and `height` high, of panels above one another on one x axis.

    panels: their heights, relative to each other. Made without pyplot: nothing is global.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(
        len(panels), sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(panels)}
    )
    return figure, list(grid[:, 0])


@styled
def save(figure: "Figure", path: str | Path) -> Path:
    """Write the figure; the suffix says how: .svg, or .png of 1400 pixels' width.

    The same figure gives the same bytes: no date, no random ids. Missing folders are made. Raises
    ConfigError for another suffix.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"{path}: expected a picture's name to end in .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    unsaid = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=200, metadata=unsaid)
    return path


def check_finite(what: str, values: Iterable[float]) -> None:
    """DataError where `values` holds NaN or an infinity, which a picture would silently leave out.

    what: whose values they are, for the message.
    """
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise DataError(f"{what}: number {place + 1} is {value}, expected finite numbers only")


@styled
def label_ends(
    axes: "Axes", labels: Sequence[tuple[str, float, float, str]], heading: str = ""
) -> None:
    """Names beside the right ends of lines, in the lines' colours, moved apart where they meet.

    labels: (name, x, y, colour) of each line's last point; heading: what the names are. This fixes
    the axes' limits: call it when all is drawn.
    """
    axes.set_ylim(axes.get_ylim())
    axes.set_xlim(axes.get_xlim())
    into = axes.transData + axes.transAxes.inverted()
    ends = [tuple(into.transform((x, y))) for _, x, y, _ in labels]
    figure = axes.get_figure(root=True)
    assert figure is not None
    points = 72 * figure.get_figheight() * axes.get_position().height
    heights = spread([y for _, y in ends], LABEL_GAP / points)
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
    """The places nearest to `wanted`, in its order, that lie at least `gap` apart.

    Neighbours that would meet form a block around the mean of their wanted places (isotonic
    regression by pooling adjacent violators, after subtracting the gaps).
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (sum of places less their gaps, how many)
    for rank, i in enumerate(order):
        total, count = wanted[i] - rank * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    places = [total / count for total, count in blocks for _ in range(count)]
    found = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        found[i] = places[rank] + rank * gap
    return found


FLOOR = 1e-3  # of neighbours missed: what lies between it and none is drawn together
TICKS = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1)
ROOM = 0.08  # beyond the outermost values


def recall_scale(axes: "Axes", which: str, values: Sequence[float]) -> None:
    """A scale on which 0.9 to 0.99 is about as long as 0.99 to 1: logarithmic in what is missed.

    which: "x" or "y". values: all that are drawn, at least one, between 0 and 1; they set the
    limits.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ends = _missed(np.array([max(0.0, min(values)), max(values)])) + np.array([-ROOM, ROOM])
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
    """-log10 of the share that is missed, and a little: 1 has a place."""
    return -np.log10(np.maximum(1 + FLOOR - np.asarray(recall), 1e-9))


def _recall(place: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `_missed`."""
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
