"""Runtimes and precisions from the command line."""

import json
from pathlib import Path

import pytest
from command_line import run, run_json
from tiny_model import write_bert

from searchengine.trainer.native.library import levels

pytestmark = [
    pytest.mark.skipif(not levels(), reason="the kernel is not compiled"),
    pytest.mark.usefixtures("without_gpu"),
]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("notes") / "notes.jsonl"
    texts = ["the dog sleeps", "a whale sings", "two cars near the house", "red music"]
    lines = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def collection(notes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexed by the native kernel."""
    path = tmp_path_factory.mktemp("c") / "c"
    model = write_bert(path.with_name("tiny"))
    done = run("index", notes, path, "--encoder", model, "--runtime", "native")
    assert "Rounding the encoder to 8 bits, once" in done.stderr
    return path


def test_any_runtime_asks_what_another_indexed(collection: Path) -> None:
    question = ("search", collection, "a whale sings", "-k", "4")
    by_kernel, by_torch = (
        run_json(*question, *more)["hits"] for more in ((), ("--runtime", "torch"))
    )
    assert [hit["key"] for hit in by_kernel] == [hit["key"] for hit in by_torch]
    assert by_kernel[0]["key"] == "1" and by_kernel[0]["scores"]["vector"] > 0.99
    for one, other in zip(by_kernel, by_torch, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=0.02)


def test_info_where_the_model_is_gone(notes: Path, tmp_path: Path) -> None:
    model = write_bert(tmp_path / "model")
    run("index", notes, tmp_path / "c", "--encoder", model, "--runtime", "torch")
    model.rename(tmp_path / "moved")
    info = run_json("info", tmp_path / "c")
    assert info["documents"] == 4 and "cannot be loaded" in info["runtime"]
    moved = ("search", tmp_path / "c", "a whale sings", "--encoder", tmp_path / "moved")
    assert run_json(*moved)["hits"][0]["key"] == "1"


def test_what_cannot_be_is_one_sentence(collection: Path) -> None:
    question = ("search", collection, "a whale sings")
    for options, message in (
        (("--runtime", "native,bf16"), "computes in int8 on the processor"),
        (("--runtime", "native,cuda"), "computes in int8 on the processor"),
        (("--runtime", "abacus"), "cpu, cuda, cuda:1 or mps"),
        (("--runtime", "fp32,bf16"), "each kind once"),
    ):
        done = run(*question, *options)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
