"""The plot of a training run: scores and loss by step."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from searchengine.measure.plotting import COLOURS, INK, MARKERS, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def training_curve(history: Mapping[str, Any]) -> "Figure":
    """Score of every prefix length by step above, the loss of every update below.

    history: the value of `training.json`, or `Encoder.model.history`. The dashed line is the best
    step; dotted lines are the base as shipped.
    """
    from matplotlib.ticker import MaxNLocator

    figure, (scores, losses) = new_figure(5.6, (1.6, 1.0))
    judged = [entry for entry in history["judged"] if entry["scores"]]
    steps, dims = [entry["step"] for entry in judged], judged[0]["scores"] if judged else {}
    for dim, colour, marker in zip(dims, COLOURS, MARKERS, strict=False):
        values = [entry["scores"][dim] for entry in judged]
        scores.plot(steps, values, marker=marker, color=colour, label=f"{dim} dimensions")
        scores.axhline(history["base"][dim], color=colour, linewidth=1, linestyle=":", zorder=1)
    if judged:
        scores.legend(loc="best")
    updates = range(1, len(history["losses"]) + 1)
    losses.plot(updates, history["losses"], marker="." if len(updates) == 1 else "")
    for axes in (scores, losses):
        axes.axvline(history["best_step"], color=INK, linewidth=1, linestyle="--", zorder=1)
    scores.set_ylabel(history["measure"])
    losses.set_ylabel("training loss")
    losses.set_xlabel("step (updates of the weights)")
    losses.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
