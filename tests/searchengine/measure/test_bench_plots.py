"""The pictures of a bench: what is drawn, and where the names go."""

import numpy as np
import pytest
from bench_results import exact, plausible, results, row

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from matplotlib.figure import Figure

from searchengine.measure.bench_plots import (
    latency,
    pareto,
    recall_by_shortlist,
    speedups,
)
from searchengine.measure.bench_tables import frontier
from searchengine.measure.plotting import Label, new_figure, put_labels, recall_scale
from searchengine.measure.recommend import recommend
from searchengine.measure.report import svg
from searchengine.measure.results import Results, Row
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


def test_recall_by_shortlist(sample_results: Results) -> None:
    figure = recall_by_shortlist(sample_results)
    assert figure is not None
    assert [axes.get_title("left") for axes in figure.axes] == ["flat", "hnsw"]
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    assert set(lines) == {"64", "128", "192", "64, not rotated"}
    assert list(lines["128"].get_xdata()) == [20, 50, 200]
    assert lines["128"].get_ydata()[2] == 0.9604
    assert lines["64, not rotated"].get_linestyle() == "--"
    assert recall_by_shortlist(results(exact())) is None


def test_efforts_have_lines_of_their_own() -> None:
    def cascade(shortlist: int, effort: int, recall: float) -> Row:
        fields = {"structure": "ivf", "prefix": 128, "shortlist": shortlist, "effort": effort}
        return row(f"{shortlist} {effort}", recall=recall, **fields)

    points = [(20, 0, 0.7), (50, 0, 0.8), (20, 72, 0.9), (50, 72, 0.95)]
    figure = recall_by_shortlist(results(exact(), *(cascade(*point) for point in points)))
    assert figure is not None
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert set(lines) == {"128", "128, lists 72"} <= set(texts(figure))
    assert list(lines["128"].get_ydata()) == [0.7, 0.8]
    assert list(lines["128, lists 72"].get_ydata()) == [0.9, 0.95]
    assert lines["128"].get_linestyle() == "-" != lines["128, lists 72"].get_linestyle()


def test_latency_lanes(sample_results: Results) -> None:
    chosen = sample_results.rows[3]
    figure = latency(sample_results, ["exact", chosen.name])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["exact", chosen.name]
    marks = [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert marks[3:] == [chosen.percentiles_ms[share] for share in (50, 95, 99)]
    for names, message in ((["nobody"], "'nobody' is not a row"), ([], "got none")):
        with pytest.raises(DataError, match=message):
            latency(sample_results, names)


def test_speedups(sample_results: Results) -> None:
    figure = speedups(sample_results)
    assert figure is not None
    chosen = next(one for one in sample_results.rows if one.name == "hnsw int8 64 → 20")
    points = [tuple(line.get_xydata()[0]) for line in figure.axes[0].get_lines()]
    assert (chosen.theoretical, chosen.measured.median) in points
    assert "64 → 20" in texts(figure)
    assert speedups(results(exact())) is None


def test_pictures_are_the_same_each_time(sample_results: Results) -> None:
    assert svg(pareto(sample_results)) == svg(
        pareto(sample_results)
    )  # the others: test_the_folder draws them again


def test_recall_has_room_where_it_matters() -> None:
    figure, (axes,) = new_figure(3.0)
    recall_scale(axes, "x", [0.5, 1.0])
    places = axes.transData.transform([(r, 0) for r in (0.5, 0.9, 0.99, 1.0)])[:, 0]
    assert np.isfinite(places).all() and (np.diff(places) > 0).all()
    half, ninety, ninety_nine, whole = places
    assert ninety_nine - ninety == pytest.approx(whole - ninety_nine, rel=0.1)
    assert ninety - half < ninety_nine - ninety
    low, high = axes.get_xlim()
    assert low < 0.5 and high > 1
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "1"
    assert figure is axes.figure


def test_names_cover_neither_marks_nor_each_other() -> None:
    figure, (axes,) = new_figure(3.0)
    rng = np.random.default_rng(0)
    marks = [(float(x), float(y)) for x, y in rng.random((40, 2))]
    axes.plot(*zip(*marks, strict=True), "o")
    labels = [Label(f"name {i}", *mark, "#000000") for i, mark in enumerate(marks)]
    written = put_labels(axes, labels, [[mark] for mark in marks])
    assert 5 <= len(written) < 40
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(written)
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert not any(box.contains(*axes.transData.transform(mark)) for mark in marks)
    needed = [Label("must", *marks[0], "#000000", needed=True) for _ in range(30)]
    assert len(put_labels(axes, needed, [[mark] for mark in marks])) == 30
