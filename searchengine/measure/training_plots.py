"""The history of a training run, and its plots: scores, loss, alignment and uniformity."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from searchengine.measure.plotting import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    Label,
    check_finite,
    label_ends,
    new_figure,
    put_labels,
    save,
    styled,
)
from searchengine.trainer.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING = "training.json"


@dataclass(frozen=True, slots=True)
class Judged:
    """An evaluation during training. scores: by prefix length, as fractions.

    alignment, uniformity: of the full-width vectors of the dev pairs; None without dev files.
    """

    step: int
    scores: Mapping[int, float]
    alignment: float | None = None
    uniformity: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A training run. losses: of update 1, 2, …; judged: evaluations, step 0 before training.

    A second evaluation of step 0 follows the rotation at the start of training.
    """

    losses: tuple[float, ...]
    judged: tuple[Judged, ...]
    best_step: int


def read_history(path: str | Path) -> History:
    """Read the history from a `training.json` or its model folder.

    Raises DataError if the file is missing or invalid, or a number is not finite.
    """
    path = Path(path)
    path = path / TRAINING if path.is_dir() else path
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; only a model trained with this package has a history"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    return as_history(value, str(path))


def as_history(value: Any, where: str = "the history") -> History:
    """A history from its JSON value, as in `training.json` and `Model.history`.

    where: its name for messages. Raises DataError if it is invalid, or a number is not finite.
    """
    try:
        losses = tuple(_number(loss) for loss in value["losses"])
        judged = tuple(_judged(entry) for entry in value["judged"])
        return History(losses, judged, int(value["best_step"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: expected finite `losses`, `judged` with step and scores, and `best_step` "
            f"({type(error).__name__}: {error})"
        ) from error


def _judged(entry: Mapping[str, Any]) -> Judged:
    scores = {int(dim): _number(score) for dim, score in entry["scores"].items()}
    alignment, uniformity = entry.get("alignment"), entry.get("uniformity")
    return Judged(
        int(entry["step"]),
        scores,
        None if alignment is None else _number(alignment),
        None if uniformity is None else _number(uniformity),
    )


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number


Point = tuple[float, float, int]  # uniformity, alignment, step


def draw_training(
    history: Mapping[str, Any], folder: str | Path, measure: str = "score", suffix: str = ".svg"
) -> list[Path]:
    """Write the plots of a run to `folder`; return their paths.

    The plots are training-curve and, for a run with dev pairs, alignment-uniformity. history: the
    value of `training.json`; measure: name of the scores; suffix: .svg or .png. Raises as the
    functions of the plots.
    """
    run, folder = as_history(history), Path(folder)
    paths = [save(training_curve(run, measure), folder / f"training-curve{suffix}")]
    if any(entry.alignment is not None for entry in run.judged):
        figure = alignment_uniformity({"this run": run})
        paths.append(save(figure, folder / f"alignment-uniformity{suffix}"))
    return paths


@styled
def training_curve(history: History, measure: str = "score") -> "Figure":
    """Score of every prefix length by step above, the loss of every update below.

    measure: name of the scores. The best step is marked; an open circle at step 0 is the model
    before the rotation. The loss is faint, with a smoothed line if there are enough updates. A run
    without evaluations, or without updates, has one panel; DataError without both.
    """
    from matplotlib.ticker import MaxNLocator

    check_finite("losses", history.losses)
    judged = [entry for entry in history.judged if entry.scores]
    for entry in judged:
        check_finite(f"scores of step {entry.step}", entry.scores.values())
    if not judged and not history.losses:
        raise DataError("the history must have an evaluation or an update, got neither")
    shares = ((1.6,) if judged else ()) + ((1.0,) if history.losses else ())
    figure, panels = new_figure(1.2 + 1.7 * sum(shares), shares)
    if history.losses:
        _draw_losses(panels[-1], history.losses)
    if judged:
        _draw_scores(panels[0], judged, measure)
        for axes in panels:
            axes.axvline(history.best_step, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        panels[0].set_title(_summary(judged, history.best_step))
    else:
        panels[0].set_title(f"Loss over {len(history.losses)} updates")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("step (updates of the weights)")
    return figure


def _summary(judged: Sequence[Judged], best_step: int) -> str:
    best = [entry for entry in judged if entry.step == best_step]
    if not best:
        raise DataError(f"best_step must be an evaluated step, got {best_step}")
    widest, shortest = max(best[-1].scores), min(best[-1].scores)
    summary = f"Best at step {best_step}: {best[-1].scores[widest]:.3f} at {widest} dimensions"
    if shortest == widest:
        return summary
    return f"{summary}, {best[-1].scores[shortest]:.3f} at {shortest}"


def _draw_scores(axes: "Axes", judged: Sequence[Judged], measure: str) -> None:
    from matplotlib import colormaps

    dims = sorted({dim for entry in judged for dim in entry.scores}, reverse=True)
    # Colours in the order of the lengths: dark is wide.
    colours = dict(zip(dims, colormaps["viridis"](np.linspace(0.05, 0.75, len(dims))), strict=True))
    ends, unrotated = [], []
    for dim, colour in colours.items():
        points = [(entry.step, entry.scores[dim]) for entry in judged if dim in entry.scores]
        if len(points) > 1 and points[0][0] == points[1][0]:  # before and after the rotation
            before, after = points[0], points[1]
            axes.plot(*zip(before, after, strict=True), ":", color=colour, linewidth=1.2)
            axes.plot(*before, "o", color=colour, markerfacecolor="white", clip_on=False, zorder=3)
            points = points[1:]
            unrotated.append(before)
        marker = "o" if len(points) <= 40 else ""
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=str(dim))
        ends.append((str(dim), *points[-1], colour))
    if unrotated:
        lowest = min(unrotated, key=lambda point: point[1])
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        look: dict[str, Any] = {"color": FAINT, "fontsize": 8, "va": "center", "bbox": behind}
        axes.annotate("before the rotation", lowest, (8, 0), textcoords="offset points", **look)
    axes.set_ylabel(measure)
    label_ends(axes, ends, "prefix")


def _draw_losses(axes: "Axes", losses: Sequence[float]) -> None:
    steps = np.arange(1, len(losses) + 1)
    smooth = smoothed(losses)
    marker = "o" if len(losses) == 1 else ""
    (raw,) = axes.plot(steps, losses, marker=marker, color=COLOURS[0], label="loss")
    if len(smooth):
        raw.set(alpha=0.3, linewidth=0.9)
        axes.plot(steps, smooth, color=COLOURS[0], label="smoothed")
    axes.set_ylabel("training loss")


def smoothed(values: Sequence[float]) -> NDArray[np.float64]:
    """The moving average over a window of 1/20 of the values (odd, at least 3).

    At the ends the window shrinks on both sides, so that a straight line does not change. Empty for
    fewer than 20 values.
    """
    count = len(values)
    if count < 20:
        return np.empty(0)
    half = max(1, count // 40)
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    at = np.arange(count)
    reach = np.minimum(half, np.minimum(at, count - 1 - at))
    means: NDArray[np.float64] = (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)
    return means


@styled
def alignment_uniformity(runs: Mapping[str, History]) -> "Figure":
    """Alignment against uniformity of runs, one point per evaluation.

    runs: histories by name. An open mark is the start, a star the best step, arrows show the
    direction. Wang and Isola, arXiv 2005.10242; in the style of figures 2 and 3 of SimCSE, arXiv
    2104.08821. Raises DataError for a run without dev pairs, no run, or more than ten.
    """
    if not 1 <= len(runs) <= len(COLOURS):
        raise DataError(f"a plot must have 1 to {len(COLOURS)} runs, got {len(runs)}")
    figure, (axes,) = new_figure(4.6)
    paths = {name: _path(name, history) for name, history in runs.items()}
    for (name, points), colour, marker in zip(paths.items(), COLOURS, MARKERS, strict=False):
        x, y, _ = zip(*points, strict=True)
        axes.plot(x, y, marker=marker, color=colour, linewidth=1.2, alpha=0.75, label=name)
        axes.plot(x[0], y[0], marker, color=colour, markerfacecolor="white", zorder=4)
        best = [p for p in points if p[2] == runs[name].best_step]
        for u, a, _ in best:
            axes.plot(u, a, "*", color=colour, markersize=13, markeredgecolor="white", zorder=5)
    axes.margins(0.1)
    axes.set_xlim(axes.get_xlim())
    axes.set_ylim(axes.get_ylim())
    labels: list[Label] = []
    for (name, points), colour in zip(paths.items(), COLOURS, strict=False):
        _draw_arrows(axes, points, colour)
        labels += _step_labels(points, runs[name].best_step, colour)
    axes.set_xlabel("uniformity (lower: vectors fill the sphere more evenly)")
    axes.set_ylabel("alignment (lower: pairs are closer)")
    axes.set_title("Alignment and uniformity during training; numbers are steps, ★ the best")
    if len(runs) > 1:
        axes.legend(loc="best")
    lines = [[point[:2] for point in points] for points in paths.values()]
    marks = [[point[:2]] for points in paths.values() for point in points]
    put_labels(axes, sorted(labels, key=lambda label: not label.needed), [*lines, *marks])
    return figure


def _path(name: str, history: History) -> list[Point]:
    """The evaluated points; of step 0 the last one, at which training starts."""
    points = {
        entry.step: (entry.uniformity, entry.alignment, entry.step)
        for entry in history.judged
        if entry.uniformity is not None and entry.alignment is not None
    }
    if not points:
        raise DataError(f"{name} has no alignment and uniformity: train with dev files")
    check_finite(f"alignment and uniformity of {name}", (v for p in points.values() for v in p))
    return list(points.values())


def _draw_arrows(axes: "Axes", points: Sequence[Point], colour: str) -> None:
    """Draw an arrow head in the middle of every long segment."""
    into = axes.transData + axes.transAxes.inverted()
    for start, end in itertools.pairwise(points):
        (x0, y0), (x1, y1) = into.transform([start[:2], end[:2]])
        if np.hypot(x1 - x0, y1 - y0) > 0.06:
            middle = (0.45 * start[0] + 0.55 * end[0], 0.45 * start[1] + 0.55 * end[1])
            axes.annotate(
                "",
                middle,
                start[:2],
                arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 0, "mutation_scale": 14},
            )


def _step_labels(points: Sequence[Point], best_step: int, colour: str) -> list[Label]:
    """The step numbers of a path; the ends and the best are needed."""
    needed = {points[0][2], best_step, points[-1][2]}
    return [Label(str(step), x, y, colour, needed=step in needed) for x, y, step in points]
