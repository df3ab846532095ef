"""How every picture looks, and how it is written: one palette, one width, the same bytes again."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

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
