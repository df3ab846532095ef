"""Event files, read back by TensorBoard's own reader."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from searchengine.cli.train_display import TensorBoard
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.loop import Report


def report_of(step: int, loss: float | None, **more: Any) -> Report:
    fields = {"scores": None, "alignment": None, "uniformity": None} | more
    rate = 0.5 / (1 + step)
    return Report(
        step=step,
        steps=4,
        loss=loss,
        learning_rate=rate,
        best_step=0,
        examples=8,
        excluded=0,
        **fields,
    )


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


FIRST = [
    report_of(0, None, scores={8: 0.5, 4: 0.25}, alignment=0.75, uniformity=-1.0),
    report_of(0, None, scores={8: 0.5, 4: 0.375}, alignment=0.75, uniformity=-1.0),
    report_of(1, 2.0),
    report_of(2, 1.5, scores={8: 0.625, 4: 0.5}, alignment=0.5, uniformity=-2.0),
]


def write(folder: Path, reports: list[Report]) -> None:
    with TensorBoard(folder) as report:
        for one in reports:
            report(one)


def test_scalars_are_read_back(tmp_path: Path) -> None:
    write(tmp_path / "run", FIRST)
    assert read(tmp_path / "run") == {  # all exact in float32
        "loss": [(1, 2.0), (2, 1.5)],
        "learning_rate": [
            (0, 0.5),
            (0, 0.5),
            (1, 0.25),
            (2, pytest.approx(0.5 / 3)),
        ],
        "score/8": [(0, 0.5), (0, 0.5), (2, 0.625)],
        "score/4": [(0, 0.25), (0, 0.375), (2, 0.5)],
        "alignment": [(0, 0.75), (0, 0.75), (2, 0.5)],
        "uniformity": [(0, -1.0), (0, -1.0), (2, -2.0)],
    }


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """Interrupted after step 2, resumed from the checkpoint of step 1."""
    write(tmp_path, FIRST)
    again = [report_of(2, 1.25, scores={8: 0.75, 4: 0.5}), report_of(3, 1.0), report_of(4, 0.5)]
    write(tmp_path, again)
    found = read(tmp_path)
    assert found["loss"] == [(1, 2.0), (2, 1.25), (3, 1.0), (4, 0.5)]
    assert found["score/8"] == [(0, 0.5), (0, 0.5), (2, 0.75)]
    assert found["alignment"] == [(0, 0.75), (0, 0.75)]


def test_a_new_run_takes_the_place_of_the_old(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, [report_of(0, None, scores={8: 0.125}), report_of(1, 4.0)])
    assert read(tmp_path)["loss"] == [(1, 4.0)]
    assert read(tmp_path)["score/8"] == [(0, 0.125)]


def test_events_are_written_where_the_run_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TensorBoard(tmp_path) as report:
        report(report_of(1, 2.0))
        raise RuntimeError
    assert read(tmp_path)["loss"] == [(1, 2.0)]


def test_nothing_reported_nothing_written(tmp_path: Path) -> None:
    write(tmp_path / "run", [])
    assert not (tmp_path / "run").exists()


def test_scalars_leave_out_what_is_missing() -> None:
    assert report_of(1, 2.0).values() == {"loss": 2.0, "learning_rate": 0.25}
    assert report_of(0, None, alignment=0.0).values() == {"learning_rate": 0.5, "alignment": 0.0}


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with (
        pytest.raises(ConfigError, match=r"pip install 'searchengine\[tensorboard\]'"),
        TensorBoard(tmp_path),
    ):
        pass
