"""`searchengine copy`: between a folder and a server, in both directions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from conftest import WordLengths
from cut_documents import DOCUMENTS, Words
from postgres_server import new_url

from searchengine import SearchEngine
from searchengine.backends.entries import all_entries
from searchengine.backends.entries import entries as stored_entries
from searchengine.errors import BackendUnavailable, CollectionError, CorpusError, EncoderMismatch
from searchengine.upkeep.copies import copy


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """Documents of one or several passages, one of them updated, one without a text."""
    path = tmp_path / "source.index"
    with SearchEngine.create(path, Words(), {"prefix": 4}) as engine:
        engine.add(DOCUMENTS)
        engine.add(
            [{"_id": f"k{i}", "text": "a" * (i % 9 + 1) + " b", "x": i / 7} for i in range(40)]
        )
        engine.update({"near": {"seen": True}})
        engine.delete(["other"])
        engine.index_fields("x")
    yield path


@pytest.fixture
def url() -> str:
    return new_url()


def contents(where: Any) -> list[bytes]:
    with SearchEngine.open(where) as engine:
        with engine.collection.reading() as snapshot:
            return [entry.state for batch in all_entries(snapshot) for entry in batch]


def test_there_and_back(source: Path, url: str, tmp_path: Path) -> None:
    there = copy(source, url)
    assert (there.documents, there.passages, there.written) == (44, 46, 44)
    copy(url, tmp_path / "back.index")
    assert contents(source) == contents(url) == contents(tmp_path / "back.index")
    answers = []
    for place in (source, url, tmp_path / "back.index"):
        with SearchEngine.open(place, Words()) as engine:
            hits = engine.search_batch(["bb ccc", "a b", "dddd"], 6, mode="vector")
            answers.append([[(hit.key, round(hit.score, 2)) for hit in h] for h in hits])
            # The copy knows what was added before: nothing is encoded again.
            assert engine.add(DOCUMENTS[:4]).unchanged == 4
            assert engine["near"].metadata["seen"] is True
            assert engine.stats().fields == ("x",)
    assert answers[0] == answers[1] == answers[2]


def test_shortlist_synonyms_and_index_config_travel(tmp_path: Path, url: str) -> None:
    rows = np.random.default_rng(0).standard_normal((1200, 32)) * np.arange(1, 33) ** -0.6
    config = {"prefix": 16, "shortlist": 77}
    with SearchEngine.create(tmp_path / "s", None, config, dim=32) as engine:
        engine.add([{"_id": str(i), "text": ""} for i in range(1200)], rows.astype(np.float32))
        engine.set_synonyms([["car", "automobile"]])
    copy(tmp_path / "s", url)
    with SearchEngine.open(url) as engine:
        stats = engine.stats()
        assert stats.index_config["prefix"] == 16 and stats.shortlist == 77
        assert stats.pending == () and engine.collection.settings["synonyms"] == "car, automobile"
        documents = [{"_id": str(i), "text": ""} for i in range(1200)]
        assert engine.add(documents, rows.astype(np.float32)).unchanged == 1200


def test_differences_are_mended_and_others_named(source: Path, url: str) -> None:
    copy(source, url)
    with SearchEngine.open(url) as engine:
        with engine.collection._connections.borrow() as connection:
            connection.execute("UPDATE documents SET title = 'other' WHERE id = 8")
        assert (copy(source, url).written, copy(source, url).written) == (1, 0)
        entry = stored_entries(engine.collection, ["k1"])[0]
        renamed = replace(entry.document, key="renamed")
        engine.collection.upsert([replace(entry, document=renamed)])
    with pytest.raises(CollectionError, match=r"1 documents that .* not have, such as 'renamed'"):
        copy(source, url)


def test_what_the_source_deleted_is_named_and_pruned(source: Path, url: str) -> None:
    copy(source, url)
    with SearchEngine.open(source, Words()) as engine:
        engine.delete(["k3", "k4"])
        engine.add([{"_id": "new", "text": "ccc"}])
    with pytest.raises(CollectionError, match=r"2 documents .*, such as 'k[34]'; delete them with"):
        copy(source, url)
    pruned = copy(source, url, prune=True)
    assert (pruned.written, pruned.removed) == (0, 2)  # the new one was copied before the refusal
    assert sorted(contents(url)) == sorted(contents(source))
    assert copy(source, url).removed == 0


def test_another_encoder_or_other_passages_are_refused(
    source: Path, url: str, tmp_path: Path
) -> None:
    SearchEngine.create(url, WordLengths(16, "another")).close()
    with pytest.raises(EncoderMismatch, match="another encoder or passages"):
        copy(source, url)
    SearchEngine.create(tmp_path / "whole", Words(), passages=False).close()
    with pytest.raises(CollectionError, match="another encoder or passages than"):
        copy(source, tmp_path / "whole")
    with pytest.raises(CollectionError, match="no such collection"):
        copy(tmp_path / "nothing", url)
    with pytest.raises(BackendUnavailable):
        copy(source, "postgresql://127.0.0.1:1/db")
    with SearchEngine.open(source, Words()) as engine:
        engine.add([{"_id": "nul", "text": "a\0b"}])
    with pytest.raises(CorpusError, match="holds the character U"):
        copy(source, f"{url}_nul")
    assert copy(source, tmp_path / "folder").documents == 45


def test_commands_take_urls(tmp_path: Path, url: str) -> None:
    """index, search, info, get, list, update, delete and copy."""
    corpus = tmp_path / "notes.jsonl"
    lines = [{"_id": f"k{i}", "text": f"note {i}", "year": 2000 + i} for i in range(5)]
    corpus.write_text("\n".join(map(json.dumps, lines)))
    np.save(tmp_path / "v.npy", np.eye(5, 8, dtype=np.float32))
    secret = url.replace("postgres:@", "postgres:secret@")
    indexed = run_json("index", corpus, secret, "--vectors", tmp_path / "v.npy")
    assert indexed["added"] == indexed["documents"] == 5 and "secret" not in str(indexed)
    other = run("index", corpus, secret, "--vectors", tmp_path / "v.npy", "--set", "prefix=4")
    assert "has prefix 8, got 4" in other.stderr and "secret" not in other.stderr
    assert run_json("search", url, "note 3", "--mode", "text")["hits"][0]["key"] == "k3"
    stats = run_json("info", url)
    assert stats["documents"] == 5
    assert "documents    5" in run("info", secret).stdout
    assert "secret" not in run("info", secret).stdout
    assert len(run_json("list", url, "--where", "year > 2002")) == 2
    run("update", secret, "k1", "year=1999")
    assert run_json("get", url, "k1")[0]["year"] == 1999
    assert "k4" in run("list", url).stdout
    deleted = run("delete", secret, "k0")
    assert "1 document deleted" in deleted.stderr and "secret" not in deleted.stderr
    copied = run_json("copy", secret, tmp_path / "c")
    assert copied["documents"] == 4 and "secret" not in str(copied)
    assert "0 of 4 documents copied" in run("copy", url, tmp_path / "c").stderr
    for command in ("verify", "list", "duplicates"):
        assert "secret" not in str(run_json(command, secret))
    for words in (["get", secret, "k1"], ["export", secret, tmp_path / "e"], ["tune", secret]):
        done = run(*words)
        assert done.returncode == 2 * (words[0] == "tune")
        assert "secret" not in done.stdout + done.stderr
