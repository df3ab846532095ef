"""The model card: its numbers, its code, and what it must not give away."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tiny_model import WIDTH, write_sentence_transformer

from searchengine.cli import cli
from searchengine.trainer.card import (
    DOCUMENTS,
    QUESTION,
    card,
    hub_name,
    read_base_card,
)
from searchengine.trainer.classifier import Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.sources.source import starter_folder
from searchengine.trainer.training.outcome import summary
from searchengine.trainer.training.train_config import TrainConfig

CONFIG = TrainConfig(
    train=("/secret/place/nli.tsv", "own data/captions.jsonl.gz"),
    out="/secret/models/tiny-search",
    base="/secret/models/base",
    exclude=("/secret/sts_test.tsv",),
    dev=("/secret/stsb_dev.tsv",),
    prefixes=(WIDTH, 16, 8),
    mlm_weight=0.1,
    temperature=0.05,
    max_steps=100,
    seed=7,
)
RECIPE = {
    "config": CONFIG.to_dict(),
    "summary": summary(CONFIG, CONFIG.prefixes),
    "examples": 41522,
    "excluded": 1818,
    "judged_by": "spearman on dev",
    "untrained": {str(WIDTH): 0.8, "16": 0.5, "8": 0.41239},
    "best_step": 25,
    "best": {str(WIDTH): 0.9, "16": 0.75, "8": 0.6},
    "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Encoder.load(write_sentence_transformer(tmp_path_factory.mktemp("m") / "tiny")).model


@pytest.fixture(scope="module")
def trained(plain: Model) -> Model:
    return replace(plain, matryoshka_dims=(WIDTH, 16, 8), recipe=RECIPE)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```", text, re.DOTALL)


def test_front_matter(trained: Model, plain: Model) -> None:
    _, front, _ = card(trained).split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [
            "sentence-transformers",
            "sentence-similarity",
            "feature-extraction",
            "matryoshka",
        ],
    }
    assert "matryoshka" not in card(plain)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("starter-768", "sentence-transformers/all-MiniLM-L6-v2"),
        ("leaf", "MongoDB/mdbr-leaf-ir"),
        ("someone/encoder", "someone/encoder"),
        ("someone/encoder@c0ffee", "someone/encoder"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("/models/encoder", None),
        ("models/my/encoder", None),
        ("./encoder", None),
        ("there", None),
    ],
)
def test_base_model(
    trained: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, name: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert hub_name(base) == name
    recipe = RECIPE | {"config": replace(CONFIG, base=base).to_dict()}
    front = yaml.safe_load(card(replace(trained, recipe=recipe)).split("---\n", 2)[1])
    assert front.get("base_model") == name


def test_what_the_base_and_the_data_are(trained: Model, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "---\nlicense: apache-2.0\nlanguage:\n- en\n- de\nbase_model: some/base\n"
        "widget: 3\n---\n# A\n"
    )
    stated = read_base_card(tmp_path)
    assert stated == {"license": "apache-2.0", "language": ["en", "de"], "base_model": "some/base"}
    changed = replace(CONFIG, train=("hf:some/data:train:part", "hf:some/data", "own.tsv"))
    recipe = RECIPE | {"config": changed.to_dict(), "base_card": stated}
    front = yaml.safe_load(card(replace(trained, recipe=recipe)).split("---\n", 2)[1])
    assert {name: front[name] for name in stated} == stated
    assert front["datasets"] == ["some/data"]
    named = recipe | {"config": replace(changed, base="someone/encoder").to_dict()}
    front = yaml.safe_load(card(replace(trained, recipe=named)).split("---\n", 2)[1])
    assert front["base_model"] == "someone/encoder"
    for text in (
        "",
        "# no front matter",
        "---\n: [\n---\n",
        "---\n- a\n---\n",
        "---\nlicense: 3\n---\n",
    ):
        (tmp_path / "README.md").write_text(text)
        assert read_base_card(tmp_path) == {}
    assert read_base_card(tmp_path / "nowhere") == {}
    assert read_base_card(starter_folder())["license"] == "apache-2.0"


def test_no_folder_is_given_away(trained: Model) -> None:
    text = card(trained)
    assert "secret" not in text and "own data" not in text
    assert "secret" not in card(replace(trained, recipe={"from": ["/secret/place/a.tsv"]}))


def test_how_it_was_trained(trained: Model) -> None:
    text = card(trained)
    assert f"| {WIDTH} | 80.00 | 90.00 |\n| 16 | 50.00 | 75.00 |\n| 8 | 41.24 | 60.00 |" in text
    assert "- Base model: `base`.\n- Data: `nli.tsv`, `captions.jsonl.gz`; 41522 examples" in text
    assert "- Mlm weight: 0.1.\n" in text and "- Training: 100 upd" in text
    assert "those of step 25; judged by spearman on dev.\n- Versions: torch 2.13.0, " in text


def test_datasets_are_named(trained: Model) -> None:
    """A dataset of the hub keeps its name; a file loses its folder."""
    config = TrainConfig(train=["private/b.tsv", "hf:some/data:dev"], out="m", base="starter")  # type: ignore[list-item, arg-type]
    text = card(replace(trained, recipe=RECIPE | {"config": config.to_dict()}))
    assert "- Data: `b.tsv`, `hf:some/data:dev`; 41522 examples" in text and "private" not in text


@pytest.mark.parametrize("recipe", [{}, {"made": "by hand"}, {"config": 3}, {"config": {"x": 1}}])
def test_a_foreign_model_has_a_short_card(plain: Model, recipe: dict[str, Any]) -> None:
    text = card(replace(plain, recipe=recipe))
    assert f"# Sentence encoder, {WIDTH} wide" in text
    assert "## How it was trained" not in text and "## Scores" not in text and "by hand" not in text


@pytest.fixture(scope="module")
def folder(trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    prompts = {"query": "a ", "document": "the "}
    labels = Classifier((WIDTH,), ("good", "bad"))
    Encoder(replace(trained, prompts=prompts, classifier=labels), "").save(path)
    return path


def test_saved_with_the_model(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text == card(Encoder.load(folder).model)
    assert '- query: "a "\n- document: "the "' in text


@pytest.mark.long
def test_python_of_the_card(folder: Path) -> None:
    """Both libraries load the folder as shown, and find the cosines: theirs of the cut vectors.

    sentence-transformers to four places; ours may run in bfloat16, which costs two of them.
    """
    programs = blocks((folder / "README.md").read_text(encoding="utf-8"), "python")
    assert len(programs) == 2
    assert 'SentenceTransformer(".", truncate_dim=8)' in programs[0]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    numbers = [float(n) for n in re.findall(r"-?\d\.\d+", done.stdout)]
    encoder = Encoder.load(folder, precision="fp32", device="cpu")
    question = encoder.encode([QUESTION], role="query")[:, :8].astype(np.float64)
    documents = encoder.encode(DOCUMENTS, role="document")[:, :8].astype(np.float64)
    lengths = np.linalg.norm(question) * np.linalg.norm(documents, axis=1)
    (cosines,) = question @ documents.T / lengths
    assert numbers[:2] == pytest.approx(cosines, abs=1e-4)
    whole = encoder.encode([QUESTION], role="query") @ encoder.encode(DOCUMENTS, role="document").T
    assert numbers[2:] == pytest.approx(whole[0], abs=0.02)
    assert re.search(r"\['(good|bad)', '(good|bad)'\]", done.stdout)


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
