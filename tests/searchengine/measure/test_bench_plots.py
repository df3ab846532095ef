"""The pictures of a bench: what is drawn."""

import numpy as np
import pytest
from bench_results import exact, plausible, results, row

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from matplotlib.figure import Figure

from searchengine.measure.bench_plots import (
    pareto,
)
from searchengine.measure.bench_tables import frontier
from searchengine.measure.recommend import recommend
from searchengine.measure.results import Results
from searchengine.trainer.errors import DataError


@pytest.fixture(scope="module")
def sample_results() -> Results:
    return plausible()


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def test_pareto(sample_results: Results) -> None:
    figure = pareto(sample_results, recommend(sample_results))
    (axes,) = figure.axes
    assert axes.get_title("left").startswith("At recall ≥ 0.95: hnsw int8 192 → 200, 0.29")
    assert {"hnsw int8 192 → 200", "exact"} <= set(texts(figure))
    (edge,) = [line for line in axes.get_lines() if line.get_label() == "frontier"]
    xs, ys = np.asarray(edge.get_xdata()), np.asarray(edge.get_ydata())
    assert (np.diff(xs) > 0).all() and (np.diff(ys) > 0).all()
    assert [0.95, 0.95] in [list(line.get_xdata()) for line in axes.get_lines()]
    assert (
        pareto(sample_results).axes[0].get_title("left")
        == "Recall against latency; lower right is better"
    )
    with pytest.raises(DataError, match="has no rows"):
        pareto(results())


def test_frontier_by_hand() -> None:
    rows = [
        exact((10.0,)),
        row("good", (1.0,), recall=0.9),
        row("as good, slower", (1.1,), recall=0.9),
        row("worse, faster", (0.5,), recall=0.8),
        row("worse, slower", (2.0,), recall=0.7),
    ]
    assert [one.name for one in frontier(rows)] == ["worse, faster", "good", "exact"]
