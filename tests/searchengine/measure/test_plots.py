"""The pictures: that what is drawn is what was given."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import write_sentence_transformer

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from matplotlib.figure import Figure

from searchengine.measure.plotting import COLOURS, MARKERS, new_figure, save, spread
from searchengine.measure.training_plots import (
    History,
    Judged,
    alignment_uniformity,
    draw_training,
    read_history,
    smoothed,
    training_curve,
)
from searchengine.trainer.errors import ConfigError, DataError

TRAINING = {
    "losses": [2.0, 1.5, 1.0, 0.5],
    "judged": [
        {"step": 0, "scores": {"8": 0.6, "4": 0.3}, "alignment": 0.5, "uniformity": -1.0},
        {"step": 0, "scores": {"8": 0.6, "4": 0.5}, "alignment": 0.5, "uniformity": -1.0},
        {"step": 2, "scores": {"8": 0.7, "4": 0.65}, "alignment": 0.4, "uniformity": -2.0},
        {"step": 4, "scores": {"8": 0.68, "4": 0.6}, "alignment": 0.3, "uniformity": -2.5},
    ],
    "best_step": 2,
}


@pytest.fixture
def history(tmp_path: Path) -> History:
    (tmp_path / "training.json").write_text(json.dumps(TRAINING))
    return read_history(tmp_path)


def lines(figure: Figure, panel: int = 0) -> dict[str, list[tuple[float, float]]]:
    """The points of every line that has a name."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
        for line in figure.axes[panel].get_lines()
        if not str(line.get_label()).startswith("_")
    }


def texts(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts if text.get_text()]


def test_history_from_folder_and_file(tmp_path: Path, history: History) -> None:
    assert history == read_history(tmp_path / "training.json")
    assert history.losses == (2.0, 1.5, 1.0, 0.5)
    assert history.judged[2] == Judged(2, {8: 0.7, 4: 0.65}, 0.4, -2.0)
    assert history.best_step == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected finite `losses`"),
        ('{"losses": [NaN], "judged": [], "best_step": 0}', "nan is not finite"),
        ('{"losses": [], "judged": [{"step": 0}], "best_step": 0}', "KeyError: 'scores'"),
        ('{"losses": [], "judged": []}', "best_step"),
    ],
)
def test_bad_history(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_history(tmp_path)


def test_no_history(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"training\.json: no such file; only a model trained with"):
        read_history(tmp_path)


def test_training_curve_draws_what_was_judged(history: History) -> None:
    figure = training_curve(history, "accuracy")
    scores, losses = figure.axes
    assert lines(figure) == {
        "8": [(0, 0.6), (2, 0.7), (4, 0.68)],
        "4": [(0, 0.5), (2, 0.65), (4, 0.6)],
    }
    assert lines(figure, 1) == {"loss": [(1, 2.0), (2, 1.5), (3, 1.0), (4, 0.5)]}
    assert texts(figure) == ["before the rotation", "prefix", "8", "4"]
    assert scores.get_title("left") == "Best at step 2: 0.700 at 8 dimensions, 0.650 at 4"
    assert scores.get_ylabel() == "accuracy" and losses.get_ylabel() == "training loss"
    assert losses.get_xlabel() == "step (updates of the weights)"
    for axes in (scores, losses):  # the best step, in both
        assert [2, 2] in [list(line.get_xdata()) for line in axes.get_lines()]
    hollow = [
        [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
        for line in scores.get_lines()
        if str(line.get_markerfacecolor()) == "white"
    ]
    assert hollow == [[(0, 0.6)], [(0, 0.3)]]


def test_long_loss_is_smoothed() -> None:
    losses = tuple(1 / step for step in range(1, 101))
    figure = training_curve(History(losses, (), 100))
    assert len(figure.axes) == 1 and figure.axes[0].get_title("left") == "Loss over 100 updates"
    curves = lines(figure)
    assert [y for _, y in curves["loss"]] == list(losses)
    assert [y for _, y in curves["smoothed"]] == smoothed(losses).tolist()


def test_smoothing_by_hand() -> None:
    values = [0.0] * 10 + [3.0] + [0.0] * 14  # 25: a window of three
    expected = [0.0] * 9 + [1.0, 1.0, 1.0] + [0.0] * 13
    assert smoothed(values) == pytest.approx(expected)
    line = np.linspace(5, -3, 200)
    assert smoothed(line.tolist()) == pytest.approx(line)
    assert len(smoothed(values[:19])) == 0


@pytest.mark.parametrize("run", [History((), (Judged(0, {8: 0.5}),), 0), History((1.0,), (), 1)])
def test_one_point_is_seen(run: History, tmp_path: Path) -> None:
    figure = training_curve(run)
    (line,) = [line for line in figure.axes[0].get_lines() if len(line.get_xydata()) == 1]
    assert line.get_marker() == "o"
    save(figure, tmp_path / "one.svg")


def test_histories_that_cannot_be_drawn() -> None:
    with pytest.raises(DataError, match="the history must have an evaluation"):
        training_curve(History((), (Judged(0, {}),), 0))
    with pytest.raises(DataError, match="losses must be finite, got nan as number 2"):
        training_curve(History((1.0, math.nan), (), 2))
    with pytest.raises(DataError, match="scores of step 3 must be finite, got inf"):
        training_curve(History((), (Judged(3, {8: math.inf}),), 3))
    with pytest.raises(DataError, match="best_step must be an evaluated step, got 9"):
        training_curve(History((), (Judged(3, {8: 0.5}),), 9))


def test_alignment_uniformity_path(history: History) -> None:
    other = History((), (Judged(0, {8: 0.1}, 0.2, -3.0),), 0)
    figure = alignment_uniformity({"ours": history, "theirs": other})
    (axes,) = figure.axes
    assert lines(figure) == {
        "ours": [(-1.0, 0.5), (-2.0, 0.4), (-2.5, 0.3)],  # step 0 once
        "theirs": [(-3.0, 0.2)],
    }
    assert texts(figure) == ["0", "2", "4", "0"]  # start, the best, end; then the other run
    assert axes.get_xlabel().startswith("uniformity") and axes.get_ylabel().startswith("alignment")
    stars = [line for line in axes.get_lines() if line.get_marker() == "*"]
    assert [tuple(np.asarray(star.get_xydata())[0]) for star in stars] == [(-2.0, 0.4), (-3.0, 0.2)]
    arrows = [text for text in axes.texts if not text.get_text()]
    assert [arrow.xyann for arrow in arrows] == [(-1.0, 0.5), (-2.0, 0.4)]  # where each begins
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "theirs"]


def test_paths_that_cannot_be_drawn(history: History) -> None:
    with pytest.raises(DataError, match="plain has no alignment and uniformity: train with dev"):
        alignment_uniformity({"ours": history, "plain": History((), (Judged(0, {8: 0.1}),), 0)})
    with pytest.raises(DataError, match="1 to 10 runs, got 0"):
        alignment_uniformity({})
    with pytest.raises(DataError, match="uniformity of x must be finite, got nan"):
        alignment_uniformity({"x": History((), (Judged(0, {}, 0.1, math.nan),), 0)})


def pictures(history: History) -> dict[str, Figure]:
    return {
        "curve": training_curve(history),
        "path": alignment_uniformity({"run": history}),
    }


def test_same_figures_give_the_same_file(history: History, tmp_path: Path) -> None:
    for suffix, magic in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        again = pictures(history)
        for name, figure in pictures(history).items():
            first = save(figure, tmp_path / "new" / f"{name}{suffix}").read_bytes()
            second = save(again[name], tmp_path / f"{name}{suffix}").read_bytes()
            assert first == second and first.startswith(magic)
            assert len(first) < 200_000


def test_width_of_a_picture(history: History, tmp_path: Path) -> None:
    png = save(training_curve(history), tmp_path / "a.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == 1400  # the header's width: twice 700
    svg = save(training_curve(history), tmp_path / "a.svg").read_text()
    assert 'width="504pt"' in svg  # 7 inches
    assert "<dc:date>" not in svg


def test_unknown_suffix(history: History, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.gif: the name of a plot must end in"):
        save(training_curve(history), tmp_path / "a.gif")


def test_nothing_global_is_left(history: History) -> None:
    import matplotlib

    before: dict[Any, Any] = dict(matplotlib.rcParams)
    pictures(history)
    assert dict(matplotlib.rcParams) == before
    assert len(COLOURS) == len(set(COLOURS)) == len(MARKERS) == 10
    assert len(new_figure(3, (1, 1))[1]) == 2


@given(st.lists(st.floats(0, 1), max_size=10), st.floats(0, 0.2))
def test_spread_labels(wanted: list[float], gap: float) -> None:
    found = spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for low, high in itertools.pairwise(order):
        assert found[high] - found[low] >= gap - 1e-9
    assert sum(found) == pytest.approx(sum(wanted))  # moved as little up as down
    gaps = [wanted[high] - wanted[low] for low, high in itertools.pairwise(order)]
    if all(distance >= gap for distance in gaps):
        assert found == pytest.approx(wanted)


def test_spread_by_hand() -> None:
    assert spread([0.5, 0.5, 0.9], 0.1) == pytest.approx([0.45, 0.55, 0.9])
    assert spread([0.9, 0.1], 0.1) == [0.9, 0.1]


def test_pictures_of_a_run(tmp_path: Path) -> None:
    assert draw_training(TRAINING, tmp_path / "a") == [
        tmp_path / "a" / "training-curve.svg",
        tmp_path / "a" / "alignment-uniformity.svg",
    ]
    unaligned = {"losses": [1.0, 2.0], "judged": [], "best_step": 2}
    (only,) = draw_training(unaligned, tmp_path / "b", suffix=".png")
    assert only.name == "training-curve.png" and only.is_file()


def test_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    pages = [
        (REPOSITORY / "docs" / f"{name}.md").read_text() for name in ("evaluation", "training")
    ]
    programs = re.findall(r"```python\n(.*?)```", "".join(pages), re.DOTALL)
    programs = [
        program for program in programs if "pictures/" in program or "TensorBoard" in program
    ]
    assert len(programs) == 2
    monkeypatch.chdir(tmp_path)
    for name in ("my-model", "other-model"):
        write_sentence_transformer(tmp_path / name)
        (tmp_path / name / "training.json").write_text(json.dumps(TRAINING))
    rows = (f"the {a} {b}\ta {a} {b}" for a in ("dog", "cat", "man") for b in ("eats", "runs"))
    (tmp_path / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *rows]))
    for program in programs:
        exec(program, {})
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert pictures == {"training-curve.svg", "two-runs.svg"}
    assert [path.name[:6] for path in (tmp_path / "runs" / "new-model").iterdir()] == ["events"]
    card = (tmp_path / "new-model" / "README.md").read_text(encoding="utf-8")
    assert "- Data: `pairs.tsv`; 6 examples" in card and str(tmp_path) not in card
