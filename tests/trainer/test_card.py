"""The model card: its figures, its code, and what it must not give away."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_model import WIDTH, write_sentence_transformer

from searchengine.cli import cli
from searchengine.trainer.card import model_card
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.modules import Classifier

CONFIG = {
    "train": ["/secret/place/nli.tsv", "own data\\captions.jsonl.gz"],
    "out": "/secret/models/tiny-search",
    "base": "/secret/models/base",
    "dev": ["/secret/stsb_dev.tsv"],
    "batch_size": 64,
    "max_steps": 100,
    "learning_rate": 3e-5,
    "seed": 7,
}
RECIPE = {
    "config": CONFIG,
    "changed": ["max_steps", "base", "dev", "learning_rate"],
    "examples": 41522,
    "excluded": 1818,
    "verdict": "The same: nDCG@10 on dev .80 against .81; the base is kept as it was",
    "measures": [
        {
            "measure": "nDCG@10 on dev",
            "n": 300,
            "base": {str(WIDTH): 0.8, "16": 0.5, "8": 0.41239},
            "result": {str(WIDTH): 0.9, "16": 0.75, "8": 0.6},
        }
    ],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = Encoder.load(write_sentence_transformer(tmp_path_factory.mktemp("m") / "tiny")).model
    return replace(
        model,
        matryoshka_dims=(WIDTH, 16, 8),
        recipe=RECIPE,
        prompts={"query": "a ", "document": "the "},
        classifier=Classifier((WIDTH,), ("good", "bad")),
    )


@pytest.fixture(scope="module")
def folder(trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    Encoder(trained, "").save(path)
    return path


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```", text, re.DOTALL)


def test_what_a_card_tells(trained: Model, folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text == model_card(trained) == model_card(Encoder.load(folder).model)
    assert f"| {WIDTH} | 80.00 | 90.00 |\n| 16 | 50.00 | 75.00 |\n| 8 | 41.24 | 60.00 |\n" in text
    assert "secret" not in text and "own data" not in text


def test_commands_of_the_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="no faiss")
    commands = blocks((folder / "README.md").read_text(encoding="utf-8"), "sh")[0].splitlines()
    monkeypatch.chdir(folder)
    (folder / "notes").mkdir()
    (folder / "notes" / "whales.txt").write_text("whales sleep near the sea")
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "searchengine"
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
    assert "whales sleep" in done.output
