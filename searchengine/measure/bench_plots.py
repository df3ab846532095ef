"""Plots of a bench: recall and latency of operating points."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.measure.bench_tables import frontier
from searchengine.measure.formatting import short
from searchengine.measure.plotting import (
    COLOURS,
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
from searchengine.measure.recommend import Recommendation
from searchengine.measure.results import Kind, Results, Row
from searchengine.trainer.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRUCTURES = ("flat", "hnsw", "ivf")
DASHED = (0, (4, 3))
DASH_DOT = (0, (5, 2, 1, 2))
EFFORTS = {"hnsw": "ef", "ivf": "lists"}


@dataclass(frozen=True, slots=True)
class _Look:
    """The appearance of a series. filled: False for prefixes without rotation."""

    label: str
    colour: str
    marker: str
    filled: bool = True


@styled
def pareto(
    results: Results, recommendation: Recommendation | None = None, target: float | None = None
) -> "Figure":
    """Latency against recall: the best points are at the lower right.

    The line is the Pareto frontier. Bars are quartiles of the median latency over
    the rounds and 95 % intervals of recall. The scale of recall is logarithmic in 1 − recall.
    Raises DataError without rows.
    """
    if not results.rows:
        raise DataError("the bench has no rows: it ended before the first measurement")
    target = results.target if target is None else target
    figure, (axes,) = new_figure(5.4)
    ends = [end for row in results.rows for end in (row.recall_low, row.recall_high)]
    recall_scale(axes, "x", [*ends, target])
    log_scale(axes)
    lines: list[Line] = []
    for row in results.rows:
        x, y = _at(row)
        across, along = (row.recall_low, row.recall_high), (row.p50_ms.low, row.p50_ms.high)
        lines += [[(x, y)], [(end, y) for end in across], [(x, end) for end in along]]
        _draw_point(axes, (x, y), _look(row), across, along)
    edge = [_at(row) for row in frontier(results.rows)]
    lines.append(edge)
    look: dict[str, Any] = {
        "color": INK,
        "linewidth": 1,
        "alpha": 0.6,
        "zorder": 2,
        "label": "frontier",
    }
    axes.plot(*zip(*edge, strict=True), **look)
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
        axes.set_title(
            f"At recall ≥ {target:g}: {row.name}, {short(row.p50_ms.median)} ms per query"
        )
    _legend(figure, axes)
    put_labels(axes, _pareto_labels(results, chosen), lines)
    return figure


def _pareto_labels(results: Results, chosen: Sequence[Row]) -> list[Label]:
    """Labels of the recommendation and exact search; optional ones of the frontier."""
    labels = [Label(row.name, *_at(row), INK, needed=True, bold=True) for row in chosen]
    for row in results.rows:
        if row.kind is Kind.EXACT and row not in chosen:
            labels.append(Label(row.name, *_at(row), INK, needed=True))
    for row in frontier(results.rows):
        if row.kind is not Kind.EXACT and row not in chosen:
            labels.append(Label(_brief(row), *_at(row), _look(row).colour))
    return labels


@styled
def recall_by_shortlist(results: Results) -> "Figure | None":
    """Recall by length of the shortlist, one panel per structure, one line per prefix and effort.

    A line with a fixed effort is dash-dotted, a line of a prefix without rotation dashed. None if
    no cascade was measured.
    """
    from matplotlib.ticker import NullLocator

    lines = _shortlist_lines(results)
    if not lines:
        return None
    rows = [row for points in lines.values() for row in points]
    structures = _usual_order(row.config.structure for row in rows)
    figure, panels = new_figure(1.2 + 2.5 * len(structures), [1.0] * len(structures))
    colours = _shades({row.config.prefix for row in rows})
    marks = dict(zip(colours, MARKERS * 9, strict=False))
    codes = {row.config.code for row in rows}
    panels[0].set_xscale("log")
    ends: dict[str, list[tuple[str, float, float, str]]] = {name: [] for name in structures}
    for (kind, structure, code, prefix, effort), points in lines.items():
        rotated, colour = kind is Kind.CASCADE, colours[prefix]
        line = DASHED if not rotated else DASH_DOT if effort else "-"
        look = {"color": colour, "marker": marks[prefix], "linestyle": line}
        parts = [f"{prefix}{f' {code}' if len(codes) > 1 else ''}"]
        parts += [f"{EFFORTS.get(structure, 'effort')} {effort}"] if effort else []
        name = ", ".join([*parts, *([] if rotated else ["not rotated"])])
        x, y = [row.config.shortlist for row in points], [row.recall for row in points]
        axes = panels[structures.index(structure)]
        axes.plot(x, y, label=name, markerfacecolor=colour if rotated else "white", **look)
        ends[structure].append((name, x[-1], y[-1], colour))
    shortlists = sorted({row.config.shortlist for row in rows})
    for axes, structure in zip(panels, structures, strict=True):
        recall_scale(axes, "y", [row.recall for row in rows])
        axes.set_title(structure)
        axes.set_ylabel(f"recall@{results.subject.get('k')}")
        axes.set_xticks(shortlists, [f"{size:,}" for size in shortlists])
        axes.xaxis.set_minor_locator(NullLocator())
        label_ends(axes, ends[structure], "prefix")
    panels[-1].set_xlabel("shortlist (rows reranked at full width)")
    return figure


def _shortlist_lines(results: Results) -> dict[tuple[Kind, str, str, int, int], list[Row]]:
    """Rows by kind, structure, code, prefix and effort, in the order of their shortlists."""
    lines: dict[tuple[Kind, str, str, int, int], dict[int, Row]] = {}
    for row in results.rows:
        if row.kind in (Kind.CASCADE, Kind.TRUNCATED) and row.config.shortlist:
            line = (
                row.kind,
                row.config.structure,
                row.config.code,
                row.config.prefix,
                row.config.effort,
            )
            lines.setdefault(line, {}).setdefault(row.config.shortlist, row)
    return {key: [line[size] for size in sorted(line)] for key, line in sorted(lines.items())}


def _look(row: Row) -> _Look:
    if row.kind is Kind.EXACT:
        return _Look("exact search", "#000000", "X")
    place = STRUCTURES.index(row.config.structure) if row.config.structure in STRUCTURES else 7
    colour, marker = COLOURS[place], MARKERS[place]
    match row.kind:
        case Kind.FUNNEL:
            return _Look(f"funnel, {row.config.structure}", colour, "P")
        case Kind.FULL:
            return _Look(f"full width, {row.config.structure}", colour, "^" if place == 1 else "<")
        case Kind.TRUNCATED:
            return _Look(f"not rotated, {row.config.structure}", colour, marker, filled=False)
    return _Look(f"cascade, {row.config.structure}", colour, marker)


def _draw_point(
    axes: "Axes",
    place: tuple[float, float],
    look: _Look,
    across: tuple[float, float],
    along: tuple[float, float],
) -> None:
    """Draw a mark with bars; across, along: ends of the horizontal and the vertical bar."""
    x, y = place
    bars: dict[str, Any] = {"color": look.colour, "linewidth": 0.8, "zorder": 3}
    axes.plot([x, x], along, **bars)
    axes.plot(across, [y, y], **bars)
    face = look.colour if look.filled else "white"
    mark: dict[str, Any] = {"color": look.colour, "linestyle": "none", "zorder": 4}
    axes.plot(x, y, marker=look.marker, markerfacecolor=face, label=look.label, **mark)


def _brief(row: Row) -> str:
    """The name without structure and code, which colour and mark show."""
    return row.name.removeprefix(f"{row.config.structure} {row.config.code} ")


def _at(row: Row) -> tuple[float, float]:
    return row.recall, row.p50_ms.median


def _usual_order(names: Iterable[str]) -> list[str]:
    """Structures in their usual order, unknown ones after them."""
    unique = set(names)
    return [name for name in STRUCTURES if name in unique] + sorted(unique.difference(STRUCTURES))


def _shades(prefixes: Iterable[int]) -> dict[int, Any]:
    """Colours of prefixes, in their order: dark is wide."""
    from matplotlib import colormaps

    widths = sorted(prefixes, reverse=True)
    shades = colormaps["viridis"](np.linspace(0.05, 0.75, len(widths)))
    return dict(zip(widths, shades, strict=True))


def _legend(figure: "Figure", axes: "Axes") -> None:
    """A legend below the axes, every series once."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=4)
