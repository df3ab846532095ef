"""The command that changes the encoder of a collection, as a user runs it."""

import json
from pathlib import Path

import pytest
from command_line import run, run_json
from scenarios import leave_pending
from tiny_model import WIDTH, write_sentence_transformer

from searchengine import SearchEngine

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


def test_a_pending_reindex_is_finished(collection: Path, models: tuple[Path, Path]) -> None:
    before = run_json("info", collection)
    leave(collection, models[1])
    info = run_json("info", collection)
    assert info["fingerprint"] == before["fingerprint"]
    assert [line.split(":")[0] for line in info["pending"]] == [f"reindex by {models[1]}"]
    assert "pending" in run("info", collection).stdout
    done = run("reindex", collection, "--encoder", models[1])
    assert done.returncode == 0, done.stderr
    assert f"6 documents as 6 passages encoded by {models[1]}" in done.stderr
    after = run_json("info", collection)
    assert after["fingerprint"] != before["fingerprint"] and after["pending"] == []
    assert len(run_json("search", collection, "who sleeps")["hits"]) == 6


def leave(collection: Path, encoder: Path) -> None:
    with SearchEngine.open(collection) as engine:
        leave_pending(engine, encoder)


def test_discard(collection: Path, models: tuple[Path, Path]) -> None:
    assert run_json("reindex", collection, "--discard")["discarded"] is False
    leave(collection, models[1])
    done = run("reindex", collection, "--discard")
    assert "the pending reindex was discarded" in done.stderr
    again = run("reindex", collection)
    assert again.returncode == 2
    assert "name the encoder to change to: --encoder PATH" in again.stderr
    for option in (("--passages", "0"), ("--runtime", "auto")):
        both = run("reindex", collection, "--discard", *option)
        assert both.returncode == 2 and "does not go with --discard" in both.stderr
