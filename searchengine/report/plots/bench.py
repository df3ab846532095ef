"""Pictures of a bench: what operating points find, what they take, what was counted of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from searchengine.bench.formatting import short
from searchengine.bench.recommend import Recommendation
from searchengine.bench.results import Kind, Results, Row
from searchengine.report.plots.style import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    Label,
    Line,
    label_ends,
    log_scale,
    new_figure,
    put_labels,
    recall_scale,
    styled,
)
from searchengine.report.tables import frontier, peer_of, telling_peers
from trainer.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRUCTURES = ("flat", "hnsw", "ivf", "nsg")
BINS = 48
MARKED = {50: "o", 95: "D", 99: "X"}
DARK = "#5F5F5F"  # names of other engines: the grey of their marks is too faint for letters
DASHED = (0, (4, 3))
DASH_DOT = (0, (5, 2, 1, 2))
EFFORTS = {"hnsw": "ef", "nsg": "ef", "ivf": "lists"}


@dataclass(frozen=True, slots=True)
class _Look:
    """How a series is drawn. filled: hollow marks stand for prefixes that were not rotated."""

    label: str
    colour: str
    marker: str
    filled: bool = True


@styled
def pareto(
    results: Results, recommendation: Recommendation | None = None, target: float = 0.95
) -> "Figure":
    """Recall to the right, latency upwards: the best points lie to the lower right.

    The line is the frontier of this engine: nothing of it is both faster and finds more. Bars are
    quartiles of the median latency over the rounds and 95 % intervals of recall. The scale of
    recall is logarithmic in what is missed. Raises DataError where there is no row.
    """
    if not results.rows:
        raise DataError("the bench holds no row: nothing was measured before it ended")
    figure, (axes,) = new_figure(5.4)
    ends = [end for row in results.rows for end in (row.recall_low, row.recall_high)]
    recall_scale(axes, "x", [*ends, target])
    log_scale(axes, "y")
    lines: list[Line] = []
    for row in results.rows:
        x, y = _at(row)
        across, along = (row.recall_low, row.recall_high), (row.p50_ms.low, row.p50_ms.high)
        lines += [[(x, y)], [(end, y) for end in across], [(x, end) for end in along]]
        _draw_point(axes, (x, y), _look(row), across, along)
    edge = [_at(row) for row in frontier(_own(results))]
    lines.append(edge)
    drawn: dict[str, Any] = {
        "color": INK,
        "linewidth": 1,
        "alpha": 0.6,
        "zorder": 2,
        "label": "frontier",
    }
    axes.plot(*zip(*edge, strict=True), **drawn)
    axes.axvline(target, color=INK, linewidth=1, linestyle=DASHED, zorder=1)
    axes.margins(y=0.1)
    lines.append([(target, end) for end in axes.get_ylim()])
    axes.set_xlabel(f"recall@{results.subject.get('k')} (dashed: the target {target:g})")
    axes.set_ylabel("latency of one query, median, ms")
    axes.set_title("Recall against latency; lower right is better")
    chosen = [row for row in results.rows if recommendation and row.name == recommendation.name]
    for row in chosen:
        ring: dict[str, Any] = {"markersize": 13, "markerfacecolor": "none", "zorder": 5}
        axes.plot(*_at(row), "o", color=INK, **ring)
        said = f"{row.name}, {short(row.p50_ms.median)} ms a query"
        axes.set_title(f"At recall ≥ {target:g}: {said}")
    _legend(figure, axes)
    put_labels(axes, _pareto_labels(results, chosen, target), lines)
    return figure


def _pareto_labels(results: Results, chosen: Sequence[Row], target: float) -> list[Label]:
    """What is recommended, exact search, every other engine; then, where there is room, the rest of
    the frontier."""
    labels = [Label(row.name, *_at(row), INK, needed=True, bold=True) for row in chosen]
    for row in results.rows:
        if row.kind is Kind.EXACT and row not in chosen:
            labels.append(Label(row.name, *_at(row), INK, needed=True))
    for row in telling_peers(results, target):
        labels.append(Label(peer_of(row), *_at(row), DARK, needed=True))
    for row in frontier(_own(results)):
        if row.kind is not Kind.EXACT and row not in chosen:
            labels.append(Label(_brief(row), *_at(row), _look(row).colour))
    return labels


def _own(results: Results) -> list[Row]:
    """The rows of this engine."""
    return [row for row in results.rows if row.kind is not Kind.PEER]


@styled
def recall_by_shortlist(results: Results) -> "Figure | None":
    """Recall by length of the shortlist, a panel for every structure, a line for every prefix.

    There is a line for every effort too, dash-dotted where it does not follow the shortlist.
    Dashed lines are prefixes cut off without a rotation. None where no cascade was measured.
    """
    from matplotlib.ticker import NullLocator

    lines = _shortlist_lines(results)
    if not lines:
        return None
    rows = [row for points in lines.values() for row in points]
    structures = _usual_order(row.structure for row in rows)
    figure, panels = new_figure(1.2 + 2.5 * len(structures), [1.0] * len(structures))
    colours = _shades({row.prefix for row in rows})
    marks = dict(zip(colours, MARKERS * 9, strict=False))
    codes = {row.code for row in rows}
    panels[0].set_xscale("log")
    ends: dict[str, list[tuple[str, float, float, str]]] = {name: [] for name in structures}
    for (kind, structure, code, prefix, effort), points in lines.items():
        turned, colour = kind is Kind.CASCADE, colours[prefix]
        line = DASHED if not turned else DASH_DOT if effort else "-"
        look = {"color": colour, "marker": marks[prefix], "linestyle": line}
        said = [f"{prefix}{f' {code}' if len(codes) > 1 else ''}"]
        said += [f"{EFFORTS.get(structure, 'effort')} {effort}"] if effort else []
        name = ", ".join([*said, *([] if turned else ["not rotated"])])
        x, y = [row.shortlist for row in points], [row.recall for row in points]
        axes = panels[structures.index(structure)]
        axes.plot(x, y, label=name, markerfacecolor=colour if turned else "white", **look)
        ends[structure].append((name, x[-1], y[-1], colour))
    shortlists = sorted({row.shortlist for row in rows})
    for axes, structure in zip(panels, structures, strict=True):
        recall_scale(axes, "y", [row.recall for row in rows])
        axes.set_title(structure)
        axes.set_ylabel(f"recall@{results.subject.get('k')}")
        axes.set_xticks(shortlists, [f"{size:,}" for size in shortlists])
        axes.xaxis.set_minor_locator(NullLocator())
        label_ends(axes, ends[structure], "prefix")
    panels[-1].set_xlabel("shortlist (rows scored at full width)")
    return figure


def _shortlist_lines(results: Results) -> dict[tuple[Kind, str, str, int, int], list[Row]]:
    """Rows by kind, structure, code, prefix and effort, each shortlist once, the shortest first."""
    lines: dict[tuple[Kind, str, str, int, int], dict[int, Row]] = {}
    for row in results.rows:
        if row.kind in (Kind.CASCADE, Kind.TRUNCATED) and row.shortlist:
            line = (row.kind, row.structure, row.code, row.prefix, row.effort)
            lines.setdefault(line, {}).setdefault(row.shortlist, row)
    return {key: [line[size] for size in sorted(line)] for key, line in sorted(lines.items())}


@styled
def latency(results: Results, names: Sequence[str]) -> "Figure":
    """How the latencies of single queries are spread, a lane for every name, from above.

    The filled shape is their histogram on the logarithmic axis, each as high as the others; marks
    are the median, the 95th and the 99th of 100. Raises DataError for a name that is no row's.
    """
    by_name = {row.name: row for row in results.rows}
    for name in names:
        if name not in by_name:
            raise DataError(f"{name!r} is no row of the bench: expected one of {list(by_name)}")
    rows = [by_name[name] for name in names]
    if not rows:
        raise DataError("no names: expected those of the rows to draw")
    figure, (axes,) = new_figure(1.3 + 0.62 * len(rows))
    log_scale(axes, "x")
    for lane, row in zip(range(len(rows))[::-1], rows, strict=True):
        look, values = _look(row), np.maximum(np.asarray(row.percentiles_ms, np.float64), 1e-9)
        edges, heights = _histogram(values)
        axes.stairs(
            lane + 0.62 * heights, edges, baseline=lane, fill=True, color=look.colour, alpha=0.35
        )
        axes.hlines(lane, values[0], values[-1], color=look.colour, linewidth=1)
        for share, marker in MARKED.items():
            value = float(values[share])
            axes.plot(value, lane, marker, color=look.colour, zorder=4)
        said = " · ".join(short(float(values[share])) for share in MARKED)
        axes.annotate(
            said, (values[-1], lane), (6, 0), textcoords="offset points", fontsize=8, va="center"
        )
    axes.set_yticks(range(len(rows))[::-1], [_folded(row.name) for row in rows])
    axes.set_ylim(-0.35, len(rows) - 0.1)
    axes.grid(visible=False, axis="y")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.3)  # room for the numbers at the right
    for share, marker in MARKED.items():
        axes.plot([], [], marker, color=INK, label=f"p{share}")
    axes.set_xlabel("latency of one query, ms (at the right: p50 · p95 · p99)")
    axes.set_title("How latencies are spread")
    _legend(figure, axes)
    return figure


def _histogram(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges and heights (the highest is 1) from percentiles 0 to 100."""
    low, high = math.log(values[0]), math.log(values[-1])
    if high - low < 1e-6:  # all alike: a line
        return np.exp([low - 0.01, low + 0.01]), np.ones(1)
    edges = np.linspace(low, high, BINS + 1)
    shares = np.interp(edges, np.log(values), np.linspace(0, 1, len(values)))
    heights = np.diff(shares)
    return np.exp(edges), heights / heights.max()


@styled
def speedups(results: Results) -> "Figure | None":
    """Times fewer multiply-adds than exact search, against times as fast on the clock.

    On the diagonal both would be equal; what lies under it pays for what is not counted. Drawn as
    the Matryoshka paper reports them, 128 × in theory and 14 × on the clock (Kusupati and others,
    arXiv 2205.13147, section 4.3.1). None where nothing but exact search was counted.
    """
    rows = [row for row in results.rows if row.theoretical and row.kind is not Kind.EXACT]
    if not rows:
        return None
    figure, (axes,) = new_figure(5.0)
    log_scale(axes, "xy")
    lines: list[Line] = []
    places = {row.name: (float(row.theoretical or 1.0), row.measured.median) for row in rows}
    for row in rows:
        along = (row.measured.low, row.measured.high)
        lines += [[places[row.name]], [(places[row.name][0], end) for end in along]]
        _draw_point(axes, places[row.name], _look(row), None, along)
    wide, high = zip(*places.values(), strict=True)
    least, most = min(1.0, *wide, *high) / 1.3, 1.6 * max(*wide, *high)
    diagonal = [(least, least), (most, most)]
    drawn: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": DASHED, "zorder": 1}
    axes.plot(*zip(*diagonal, strict=True), label="as counted", **drawn)
    axes.set_xlim(min(1.0, *wide) / 1.3, 1.6 * max(wide))
    axes.set_ylim(min(1.0, *high) / 1.3, 1.6 * max(high))
    axes.set_xlabel("times fewer multiply-adds than exact search (counted)")
    axes.set_ylabel("times as fast as exact search (measured)")
    axes.set_title("In theory, and on the clock")
    _legend(figure, axes)
    order = sorted(rows, key=lambda row: -row.measured.median)
    labels = [Label(_brief(row), *places[row.name], _look(row).colour) for row in order]
    put_labels(axes, labels, [diagonal, *lines])
    return figure


@styled
def growth(results: Results) -> "Figure | None":
    """Recall above and latency below by number of rows; None where that was not measured."""
    if not results.growth:
        return None
    names = list(dict.fromkeys(one.name for one in results.growth))
    figure, (above, below) = new_figure(5.4, (1.0, 1.2))
    below.set_xscale("log")
    recall_scale(above, "y", [one.recall for one in results.growth])
    log_scale(below, "y")
    ends: list[list[tuple[str, float, float, str]]] = [[], []]
    for name, colour, marker in zip(names, COLOURS * 9, MARKERS * 9, strict=False):
        points = sorted((one for one in results.growth if one.name == name), key=lambda p: p.rows)
        x = [point.rows for point in points]
        medians = [point.p50_ms.median for point in points]
        found = [point.recall for point in points]
        above.plot(x, found, color=colour, marker=marker, label=name)
        lows = [point.p50_ms.median - point.p50_ms.low for point in points]
        highs = [point.p50_ms.high - point.p50_ms.median for point in points]
        below.errorbar(
            x, medians, yerr=[lows, highs], color=colour, marker=marker, label=name, elinewidth=0.8
        )
        ends[0].append((name, x[-1], found[-1], colour))
        ends[1].append((name, x[-1], medians[-1], colour))
    sizes = sorted({one.rows for one in results.growth})
    below.set_xticks(sizes, [f"{size:,}" for size in sizes])
    below.minorticks_off()
    below.set_xlabel("rows")
    below.set_ylabel("latency, median, ms")
    above.set_ylabel(f"recall@{results.subject.get('k')}")
    above.set_title("As the rows grow in number, the operating point left as it is")
    for axes, labels in zip((above, below), ends, strict=True):
        label_ends(axes, [(_folded(name), x, y, colour) for name, x, y, colour in labels])
    return figure


def _look(row: Row) -> _Look:
    if row.kind is Kind.EXACT:
        return _Look("exact search", "#000000", "X")
    if row.kind is Kind.PEER:
        return _Look("other engines", FAINT, "h")
    place = STRUCTURES.index(row.structure) if row.structure in STRUCTURES else 7
    colour, marker = COLOURS[place], MARKERS[place]
    match row.kind:
        case Kind.FUNNEL:
            return _Look(f"funnel, {row.structure}", colour, "P")
        case Kind.FULL:
            return _Look(f"full width, {row.structure}", colour, "^" if place == 1 else "<")
        case Kind.TRUNCATED:
            return _Look(f"not rotated, {row.structure}", colour, marker, filled=False)
    return _Look(f"cascade, {row.structure}", colour, marker)


def _draw_point(
    axes: "Axes",
    place: tuple[float, float],
    look: _Look,
    across: tuple[float, float] | None,
    along: tuple[float, float],
) -> None:
    """A mark with bars; across, along: from where to where they reach."""
    x, y = place
    bars: dict[str, Any] = {"color": look.colour, "linewidth": 0.8, "zorder": 3}
    axes.plot([x, x], along, **bars)
    if across is not None:
        axes.plot(across, [y, y], **bars)
    face = look.colour if look.filled else "white"
    mark: dict[str, Any] = {"color": look.colour, "linestyle": "none", "zorder": 4}
    axes.plot(x, y, marker=look.marker, markerfacecolor=face, label=look.label, **mark)


def _brief(row: Row) -> str:
    """Its name less what its colour and mark say."""
    return row.name.removeprefix(f"{row.structure} {row.code} ")


def _at(row: Row) -> tuple[float, float]:
    return row.recall, row.p50_ms.median


def _usual_order(names: Iterable[str]) -> list[str]:
    """Structures in their usual order, others after them."""
    found = set(names)
    return [name for name in STRUCTURES if name in found] + sorted(found.difference(STRUCTURES))


def _shades(prefixes: Iterable[int]) -> dict[int, Any]:
    """Prefixes have an order, and so have these colours: dark is wide."""
    from matplotlib import colormaps

    widths = sorted(prefixes, reverse=True)
    shades = colormaps["viridis"](np.linspace(0.05, 0.75, len(widths)))
    return dict(zip(widths, shades, strict=True))


def _folded(name: str) -> str:
    """A long name on two lines, parted at a comma or a space."""
    if len(name) <= 22:
        return name
    places = [i for i, letter in enumerate(name) if letter == " "]
    at = min(
        places, key=lambda i: (abs(i - len(name) / 2) - 4 * (name[i - 1] == ","), i), default=0
    )
    return f"{name[:at]}\n{name[at + 1 :]}" if at else name


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Every series once, below."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=4)
