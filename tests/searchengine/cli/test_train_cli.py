"""`searchengine train` as a user runs it: presets, settings, logs, an interruption."""

import json
import sys
from pathlib import Path

import command_line
import pytest

from searchengine.trainer.encoder import Encoder
from tests.tiny_model import WORDS, write_sentence_transformer

NOUNS, VERBS = WORDS[2:8], WORDS[8:13]
STS = "score\tsentence1\tsentence2\n" + "".join(
    f"{i % 6}\tthe {n} {v}\t{v} the {n} near a house\n"
    for i, (n, v) in enumerate((n, v) for n in NOUNS for v in VERBS)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sentence_transformer(tmp_path / "base")
    pairs = [(f"the {n} {v} {w}", f"{w} {v} the {n}") for n in NOUNS for v in VERBS for w in WORDS]
    lines = ["anchor\tpositive", *map("\t".join, pairs)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "sentences.tsv").write_text("\n".join(["sentence", *[p[0] for p in pairs]]) + "\n")
    (tmp_path / "dev.tsv").write_text(STS)
    rows = [f"yes\tthe {n} {v}\nno\tthe {n} {v} not\n" for n in NOUNS for v in VERBS]
    (tmp_path / "labelled.tsv").write_text("label\ttext\n" + "".join(rows))
    return tmp_path


def run(folder: Path, *arguments: str) -> command_line.Done:
    return command_line.run(*arguments, cwd=folder)


def test_preset_settings_pictures_and_logs(folder: Path) -> None:
    done = run(
        folder,
        *("train", "sentences.tsv", "--preset", "simcse-unsup", "--base", "base", "--out", "m"),
        *("--set", "max_steps=6", "--set", "eval_every=2", "--set", "batch_size=8"),
        *("--dev", "dev.tsv", "--log", "tensorboard"),
    )
    assert done.returncode == 0, done.stderr
    config = Encoder.load(folder / "m").recipe["config"]
    assert (config["pooling"], config["batch_size"]) == ("cls-before-pooler", 8)
    assert config["learning_rate"] == 3e-5
    assert list((folder / "m" / "runs").glob("events.out.tfevents.*"))
    assert "base as shipped" in done.stderr
    both = "evaluate sts dev.tsv --encoder base --encoder m --prefixes 32,8 --json"
    rows = json.loads(run(folder, *both.split()).stdout)
    names = [(name, 2, dim) for name in ("base", "m") for dim in (32, 8)]
    assert [(row["encoder"], row["layers"], row["dim"]) for row in rows] == names


def test_labels(folder: Path) -> None:
    done = run(
        folder,
        *("train", "labelled.tsv", "--base", "base", "--out", "m", "--config", "c.json"),
    )
    assert done.returncode == 2 and "'c.json' does not exist" in done.stderr
    settings = {"objective": "classification", "batch_size": 8, "max_steps": 30, "prefixes": [32]}
    (folder / "c.json").write_text(json.dumps({**settings, "learning_rate": 0.002}))
    done = run(
        folder,
        *("train", "labelled.tsv", "--base", "base", "--out", "m", "--config", "c.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "No --dev file, and 60 labels are too few to hold some out" in done.stderr
    assert "The model is in m. Not compared with the base" in done.stderr
    others = (folder / "labelled.tsv").read_text().replace("the ", "a ")
    (folder / "others.tsv").write_text(others)
    judged = run(
        folder,
        *("train", "labelled.tsv", "--base", "base", "--out", "judged", "--config", "c.json"),
        *("--dev", "others.tsv"),
    )
    assert "The model is in judged. Better: accuracy on dev 1.0000 against 0.9" in judged.stderr
    (row,) = json.loads(
        run(folder, *"evaluate labels labelled.tsv --encoder m --json".split()).stdout
    )
    assert row["n"] == 60 and row["accuracy"] > 0.9
    (folder / "odd.tsv").write_text("text\tlabel\nthe cat\todd\n")
    odd = run(folder, *"evaluate labels odd.tsv --encoder m".split())
    assert "0.793" in odd.stdout
    without = run(folder, *"evaluate labels labelled.tsv --encoder base".split())
    assert without.returncode == 2 and "knows no labels" in without.stderr


@pytest.mark.parametrize(
    "options, message",
    [
        (["pairs.tsv", "--set", "temprature=1"], "temprature; did you mean temperature?"),
        (["pairs.tsv", "--set", "temperature"], "expected NAME=VALUE, got 'temperature'"),
        (["missing.tsv"], "missing.tsv: no such file"),
        (["pairs.tsv", "--dev", "missing.tsv"], "missing.tsv: no such file"),
        (["pairs.tsv", "--resume"], "no checkpoint in"),
    ],
)
def test_bad_settings_are_one_sentence(folder: Path, options: list[str], message: str) -> None:
    done = run(folder, "train", *options, "--out", "m", *(["--base", "base"]))
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (folder / "m").exists()


# --------------------------------------------------------------------------- logs and interruption


def logged(folder: Path, service: str) -> command_line.Done:
    few = "--set max_steps=2 --set precision=fp32 --set batch_size=2".split()
    return run(folder, *"train pairs.tsv --base base --out m --log".split(), service, *few)


@pytest.mark.parametrize(
    ("service", "package"),
    [
        ("wandb", "wandb"),
        ("mlflow", "mlflow"),
        ("tensorboard", "'searchengine[tensorboard]'"),
    ],
)
def test_a_missing_package_is_named_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, service: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, service, None)
    done = logged(folder, service)
    assert done.returncode == 2 and f"pip install {package}" in done.stderr
    assert not (folder / "m").exists()


def test_services_have_settings_and_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(folder))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"file:{folder / 'runs'}")
    assert logged(folder, "mlflow").returncode == 0
    (sent,) = mlflow.search_runs(output_format="list")
    assert sent.data.params["batch_size"] == "2" and sent.info.status == "FINISHED"
    assert sent.data.metrics["loss"] > 0 and "learning_rate" in sent.data.metrics
    pytest.importorskip("wandb", reason="wandb is not installed")
    assert logged(folder, "wandb").returncode == 0
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert all(name in file.read_bytes() for name in (b"batch_size", b"learning_rate", b"loss"))
