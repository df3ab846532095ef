"""`train --log`, `--tensorboard` excepted, and what is said where a run is interrupted."""

from pathlib import Path

import command_line
import pytest
from rich.console import Console

from searchengine.cli.train_display import _resumable
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import write_sentence_transformer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sentence_transformer(tmp_path / "base")
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\na dog\tthe dog\nthe sea\ta sea\n")
    return tmp_path


def train(folder: Path, service: str) -> command_line.Done:
    steps = ["--set", "max_steps=2", "--set", "precision=fp32", "--batch-size", "2"]
    return command_line.run(
        "train", "pairs.tsv", "--base", "base", "--out", "m", *steps, "--log", service, cwd=folder
    )


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, service, None)
    done = train(folder, service)
    assert done.returncode == 2
    assert f"--log {service} needs the package {service}: pip install {service}" in done.stderr
    assert not (folder / "m").exists()


def test_mlflow_has_settings_and_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"file:{folder / 'runs'}")
    assert train(folder, "mlflow").returncode == 0
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.params["batch_size"] == "2"
    assert run.data.metrics["loss"] > 0 and "learning_rate" in run.data.metrics
    assert run.info.status == "FINISHED"


def test_wandb_has_settings_and_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(folder))
    pytest.importorskip("wandb", reason="wandb is not installed")
    assert train(folder, "wandb").returncode == 0
    (run,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    sent = run.read_bytes()
    assert all(name in sent for name in (b"batch_size", b"learning_rate", b"loss"))


def test_an_interrupted_run_says_how_it_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(train=(folder / "pairs.tsv",), out=folder / "m")
    said = []
    for name in (None, "step-0000300"):
        if name:
            (folder / "m" / "checkpoint" / name).mkdir(parents=True)
        with pytest.raises(KeyboardInterrupt), _resumable(config, Console(stderr=True, width=200)):
            raise KeyboardInterrupt
        said.append(capsys.readouterr().err.strip())
    assert said[0].endswith("no checkpoint was written yet: begin again")
    assert said[1].endswith("the same command with --resume goes on from step-0000300")
