"""The command that changes the encoder of a collection, as a user runs it."""

import json
from pathlib import Path

import pytest
from command_line import run, run_json
from tiny_model import WIDTH, write_sentence_transformer

DOCUMENTS = [{"_id": f"d{i}", "text": f"the {word} sleeps"} for i, word in enumerate("abcdef")]


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    first = write_sentence_transformer(tmp_path / "first")
    cls = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    second = write_sentence_transformer(tmp_path / "second", pooling=cls)
    return first, second


@pytest.fixture
def collection(tmp_path: Path, models: tuple[Path, Path]) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    done = run("index", corpus, tmp_path / "c.index", "--encoder", models[0])
    assert done.returncode == 0, done.stderr
    return tmp_path / "c.index"


def test_compare_then_reindex(collection: Path, models: tuple[Path, Path], tmp_path: Path) -> None:
    before = run_json("info", collection)
    (tmp_path / "questions.txt").write_text("who sleeps\n")
    asked = ("--compare", tmp_path / "questions.txt", "-q", "the whale", "-k", "3")
    compared = run_json("reindex", collection, "--encoder", models[1], *asked)
    assert [each["question"] for each in compared["questions"]] == ["who sleeps", "the whale"]
    for each in compared["questions"]:
        assert len(each["before"]) == len(each["after"]) == 3
        assert each["overlap"] == len(set(each["before"]) & set(each["after"]))
    overlaps = [each["overlap"] for each in compared["questions"]]
    assert compared["overlap"] == sum(overlaps) / 2
    info = run_json("info", collection)
    assert info["fingerprint"] == before["fingerprint"]
    assert [line.split(":")[0] for line in info["pending"]] == [f"reindex by {models[1]}"]
    assert "pending" in run("info", collection).stdout
    table = run("reindex", collection, "-q", "the whale", "-k", "3")
    assert f"the whale: {overlaps[1]} of 3 in both" in table.stdout
    assert "nothing was changed" in table.stderr
    done = run("reindex", collection)
    assert done.returncode == 0, done.stderr
    assert f"6 documents as 6 passages encoded by {models[1]}" in done.stderr
    after = run_json("info", collection)
    assert after["fingerprint"] != before["fingerprint"] and after["pending"] == []
    assert len(run_json("search", collection, "who sleeps")["hits"]) == 6


def test_a_reindex_as_json(collection: Path, models: tuple[Path, Path]) -> None:
    result = run_json("reindex", collection, "--encoder", models[1], "--no-passages")
    assert [result[when]["encoder"] for when in ("before", "after")] == [*map(str, models)]


def test_discard(collection: Path, models: tuple[Path, Path]) -> None:
    assert run_json("reindex", collection, "--discard")["discarded"] is False
    assert run("reindex", collection, "--encoder", models[1], "-q", "x").returncode == 0
    done = run("reindex", collection, "--discard")
    assert "the pending reindex was discarded" in done.stderr
    again = run("reindex", collection)
    assert again.returncode == 2
    assert "no reindex of" in again.stderr
    assert "name the encoder to change to: --encoder PATH" in again.stderr
    for option in (("-q", "x"), ("-k", "10"), ("--no-passages",), ("--runtime", "auto")):
        both = run("reindex", collection, "--discard", *option)
        assert both.returncode == 2 and "give it without other options" in both.stderr


def test_a_pending_reindex_whose_model_has_moved(
    collection: Path, models: tuple[Path, Path], tmp_path: Path
) -> None:
    shown = run("reindex", collection, "--encoder", models[1], "-q", "the whale")
    assert "6 of 6 in both" in shown.stdout and "6.0 of 6.0 hits in both" in shown.stderr
    moved = models[1].rename(tmp_path / "moved")
    lost = run("reindex", collection)
    assert lost.returncode == 2
    assert f"is by the encoder {models[1]}, which cannot be loaded" in lost.stderr
    assert "name it: --encoder" in lost.stderr and "--discard" in lost.stderr
    done = run("reindex", collection, "--encoder", moved)
    assert done.returncode == 0, done.stderr
    assert run_json("info", collection)["encoder"] == str(moved)
    assert run("search", collection, "the whale").returncode == 0
