"""searchengine adapt, on a model that a linear map improves."""

import json
from pathlib import Path

import pytest
from adapting import documents, titled, write_axes, write_bag_of_words
from command_line import run, run_json

from searchengine.adapt import adapting, rotation


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(adapting, "STRENGTHS", ((60, 1e-2),))
    corpus, collection = tmp_path / "c.jsonl", tmp_path / "c.index"
    corpus.write_text("\n".join(json.dumps(document) for document in documents(160)))
    done = run("index", corpus, collection, "--encoder", write_bag_of_words(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    return collection


def test_it_reports_writes_and_names_the_next_command(collection: Path) -> None:
    done = run("adapt", collection)
    assert done.returncode == 0, done.stderr
    out = collection.with_suffix(".adapted")
    assert "The adapted encoder is better beyond doubt: nDCG@10 of" in done.stdout
    assert all(kind in done.stdout for kind in ("title", "sentence", "all"))
    assert f"Change to it: searchengine reindex {collection} --encoder {out}" in done.stderr
    assert run_json("info", collection)["encoder"].endswith("model")
    again = run("adapt", collection)
    assert again.returncode == 2
    assert f"{out} exists; name a new folder for the adapted encoder" in again.stderr


def test_applied(collection: Path, tmp_path: Path) -> None:
    log = tmp_path / "clicks.jsonl"
    log.write_text(json.dumps({"question": "dog", "clicked": "1"}))
    done = run_json("adapt", collection, "--apply", "--log", log, "--out", tmp_path / "better")
    assert done["offered"] and done["applied"] and done["out"] == str(tmp_path / "better")
    assert done["rows"][-1]["kind"] == "all" and done["rows"][-1]["comparison"]["p"] < 0.01
    assert run_json("info", collection)["encoder"] == str(tmp_path / "better")


def test_adapting_that_does_not_help_is_reported(
    collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "STRENGTHS", ((1, 1e-9),))
    monkeypatch.setattr(adapting, "RIDGE", 1e6)
    done = run("adapt", collection, "--apply")
    assert done.returncode == 0
    assert "Adapting does not help: " in done.stdout and "searchengine reindex" not in done.stderr
    assert not collection.with_suffix(".adapted").exists()
    assert run_json("info", collection)["encoder"].endswith("model")


def test_only_the_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "STRENGTHS", ((60, 3e-3),))
    corpus, collection = tmp_path / "c.jsonl", tmp_path / "c.index"
    corpus.write_text("\n".join(json.dumps(document) for document in titled(160)))
    options = ("--encoder", write_axes(tmp_path / "model"), "--prefix", "8", "--shortlist", "25")
    assert run("index", corpus, collection, *options).returncode == 0
    done = run("adapt", collection, "--only", "rotation")
    assert done.returncode == 0, done.stderr
    assert "The learnt rotation is better beyond doubt: share of the 10 nearest" in done.stdout
    out = collection.with_suffix(".adapted")
    assert f"Change to it: searchengine reindex {collection} --encoder {out}" in done.stderr
    assert " questions of training" in done.stderr
    assert run("reindex", collection, "--encoder", out).returncode == 0
    assert run_json("info", collection)["encoder"] == str(out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log", "gone.jsonl"], "gone.jsonl: "),
        (["--documents", "40"], "questions for training, adapt needs 50"),
        (["--documents", "0"], "0 is not in the range x>=1"),
        (["--only", "prefix"], "'prefix' is not 'rotation'"),
    ],
)
def test_bad_input_is_one_sentence(collection: Path, options: list[str], message: str) -> None:
    done = run("adapt", collection, *options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not collection.with_suffix(".adapted").exists()
