"""The common style of plots, their axes, labels and files: reproducible to the byte."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import BboxBase

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
    require("plots", "drawing", "matplotlib")
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


def log_scale(axes: "Axes") -> None:
    """Scale the y axis logarithmically, with ticks at 1, 2, 5 and 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    def tick_label(value: float, _: object) -> str:
        return f"{value:,g}"

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(tick_label))
    axes.yaxis.set_minor_locator(NullLocator())


SIZE = 8.0  # points
PLACES = [(side, up) for up in (-8, 8, -20, 20, 0) for side in (9, -9, 0) if (side, up) != (0, 0)]
"""Offsets of a name from its mark, in points: the first free one is taken."""
NEAR = 6  # the places beside the mark; only a needed name may be farther away

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

    A label takes the first place beside its point where it covers no other label, no mark and no
    line, and stays within the axes. lines: all lines and marks in data coordinates; a mark is a
    line of one point. Call it last: it needs the final layout.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    spots = np.concatenate([_dotted(axes.transData.transform(list(line))) for line in lines])
    frame = axes.get_window_extent()
    taken: list[BboxBase] = []
    written = []
    for label in labels:
        for number, (right, up) in enumerate(PLACES if label.needed else PLACES[:NEAR]):
            note = axes.annotate(
                label.text,
                (label.x, label.y),
                (right, up),
                textcoords="offset points",
                color=label.colour,
                fontsize=SIZE,
                weight="bold" if label.bold else "normal",
                ha={9: "left", -9: "right", 0: "center"}[right],
                va="center" if not up else "bottom" if up > 0 else "top",
                zorder=6,
                path_effects=[withStroke(linewidth=2, foreground="white")],
                arrowprops={"arrowstyle": "-", "color": label.colour, "lw": 0.6, "shrinkB": 4}
                if number >= NEAR
                else None,
            )
            note.set_in_layout(False)
            note.get_window_extent()  # which moves the text to its place
            box = Text.get_window_extent(note)  # without the arrow
            within = frame.containsx(box.x0) and frame.containsx(box.x1)
            free = within and frame.containsy(box.y0) and frame.containsy(box.y1)
            free = free and not any(box.overlaps(other) for other in taken)
            if free and not box.padded(2).count_contains(spots):
                break
            if label.needed and number == len(PLACES) - 1:
                break
            note.remove()
        else:
            continue
        taken.append(box)
        written.append(label.text)
    return written


def _dotted(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points along a line (n, 2) in pixels, at most 5 apart."""
    pieces = [line[:1]]
    for start, end in itertools.pairwise(line):
        pieces.append(np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / 5)))
    return np.concatenate(pieces)
