"""The plot of a training shows the recorded scores and losses."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY
from tiny_model import write_sentence_transformer

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from matplotlib.figure import Figure

from searchengine.measure.training_plots import training_curve

TRAINING: dict[str, Any] = {
    "losses": [2.0, 1.5, 1.0, 0.5],
    "judged": [
        {"step": 0, "scores": {"8": 0.6, "4": 0.3}, "alignment": 0.5, "uniformity": -1.0},
        {"step": 0, "scores": {"8": 0.6, "4": 0.5}, "alignment": 0.5, "uniformity": -1.0},
        {"step": 2, "scores": {"8": 0.7, "4": 0.65}, "alignment": 0.4, "uniformity": -2.0},
        {"step": 4, "scores": {"8": 0.68, "4": 0.6}, "alignment": 0.3, "uniformity": -2.5},
    ],
    "best_step": 2,
}


def lines(figure: Figure, panel: int) -> list[list[tuple[float, float]]]:
    """The points of every line but the kept step's."""
    drawn = (np.asarray(line.get_xydata()) for line in figure.axes[panel].get_lines()[:-1])
    return [[(float(x), float(y)) for x, y in points] for points in drawn]


def test_the_curve_has_scores_loss_and_the_kept_step() -> None:
    figure = training_curve(TRAINING, "accuracy")
    assert lines(figure, 0) == [
        [(0, 0.6), (0, 0.6), (2, 0.7), (4, 0.68)],
        [(0, 0.3), (0, 0.5), (2, 0.65), (4, 0.6)],
    ]
    assert lines(figure, 1) == [[(1, 2.0), (2, 1.5), (3, 1.0), (4, 0.5)]]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["8 dimensions", "4 dimensions"]
    assert figure.axes[0].get_ylabel() == "accuracy"
    for axes in figure.axes:
        assert list(axes.get_lines()[-1].get_xdata()) == [2, 2]


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
    write_sentence_transformer(tmp_path / "my-model")
    (tmp_path / "my-model" / "training.json").write_text(json.dumps(TRAINING))
    rows = (f"the {a} {b}\ta {a} {b}" for a in ("dog", "cat", "man") for b in ("eats", "runs"))
    (tmp_path / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *rows]))
    for program in programs:
        exec(program, {})
    assert (tmp_path / "pictures" / "training-curve.svg").is_file()
    assert [path.name[:6] for path in (tmp_path / "runs" / "new-model").iterdir()] == ["events"]
    card = (tmp_path / "new-model" / "README.md").read_text(encoding="utf-8")
    assert "- Data: `pairs.tsv`; 6 examples" in card and str(tmp_path) not in card
