"""Where `train` sends loss and scores, and what it says of an interrupted run."""

import json
import sys
from pathlib import Path
from typing import Any

import command_line
import pytest
from safetensors.torch import save_file

from searchengine.cli.train import log_to, resumable
from searchengine.trainer.training.checkpoint import file_of
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import write_sentence_transformer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sentence_transformer(tmp_path / "base")
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\na dog\tthe dog\nthe sea\ta sea\n")
    return tmp_path


def train(folder: Path, *options: str) -> command_line.Done:
    steps = ["--set", "max_steps=2", "--set", "precision=fp32", "--set", "batch_size=2"]
    return command_line.run(
        "train", "pairs.tsv", "--base", "base", "--out", "m", *steps, *options, cwd=folder
    )


@pytest.mark.parametrize(
    ("module", "options", "way"),
    [
        ("wandb", ["--log", "wandb"], "pip install wandb"),
        ("mlflow", ["--log", "mlflow"], "pip install mlflow"),
        ("tensorboard", ["--log", "tensorboard"], "pip install tensorboard"),
    ],
)
def test_a_missing_package_is_named_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, options: list[str], way: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    done = train(folder, *options)
    assert done.returncode == 2 and way in done.stderr
    assert not (folder / "m").exists()


def test_mlflow_has_settings_and_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"file:{folder / 'runs'}")
    assert train(folder, "--log", "mlflow").returncode == 0
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.params["batch_size"] == "2"
    assert run.data.metrics["loss"] > 0 and "learning_rate" in run.data.metrics
    assert run.info.status == "FINISHED"


def test_wandb_has_settings_and_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(folder))
    pytest.importorskip("wandb", reason="wandb is not installed")
    assert train(folder, "--log", "wandb").returncode == 0
    (run,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    sent = run.read_bytes()
    assert all(name in sent for name in (b"batch_size", b"learning_rate", b"loss"))


class Update:
    """An update of a run: its step, and its numbers by name."""

    def __init__(self, step: int, **values: float) -> None:
        self.step, self.values = step, lambda: values


FIRST = [
    Update(0, learning_rate=0.5),
    Update(0, learning_rate=0.25),
    Update(1, loss=2.0),
    Update(2, loss=1.5),
]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], {}),
        ([FIRST], {"loss": [(1, 2.0), (2, 1.5)], "learning_rate": [(0, 0.5), (0, 0.25)]}),
        # Interrupted after step 2, resumed from the checkpoint of step 1; then another run.
        (
            [FIRST, [Update(2, loss=1.25), Update(3, loss=1.0)]],
            {"loss": [(1, 2.0), (2, 1.25), (3, 1.0)], "learning_rate": [(0, 0.5), (0, 0.25)]},
        ),
    ],
    ids=["nothing", "one run", "resumed"],
)
def test_tensorboard_reads_its_files_back(
    tmp_path: Path, runs: list[list[Any]], expected: dict[str, Any]
) -> None:
    reading = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(reading, reason="the extra `tensorboard` is not installed")
    for updates in runs:
        config = TrainConfig(train=(tmp_path / "pairs.tsv",), out=tmp_path)
        with pytest.raises(KeyboardInterrupt), log_to("tensorboard", config) as report:
            for update in updates:
                report(update)
            raise KeyboardInterrupt
    assert (tmp_path / "runs").exists() == bool(runs)
    if runs:
        events = reader.EventAccumulator(str(tmp_path / "runs")).Reload()
        tags = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
        assert {t: [(e.step, e.value) for e in found] for t, found in tags.items()} == expected


def test_an_interrupted_run_says_how_it_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(train=(folder / "pairs.tsv",), out=folder / "m")
    for step, way in (
        (None, "begin again"),
        (300, "--resume goes on from update 300"),
    ):
        if step:
            file_of(config.out).parent.mkdir(parents=True)
            save_file({}, file_of(config.out), {"run": json.dumps({"state": {"step": step}})})
        with pytest.raises(KeyboardInterrupt), resumable(config):
            raise KeyboardInterrupt
        assert way in capsys.readouterr().err
