"""The commands that change, copy and compare documents, as a user runs them."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command_line import COMMAND, run, run_json
from tiny_model import write_model2vec

from tests.searchengine.cli.test_cli import (
    CORPUS,
    feeding,
    indexing,
    interrupted,
    one_sentence,
    wait_until,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of three documents, made once; `collection` is a copy."""
    folder = tmp_path_factory.mktemp("changing")
    (folder / "corpus.jsonl").write_text(CORPUS)
    done = run("index", folder / "corpus.jsonl", folder / "c.index", "--field", "year")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def collection(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template / "c.index", tmp_path / "c.index"))


def keys(collection: Path) -> list[str]:
    with closing(sqlite3.connect(collection / "documents.db")) as db:
        return [row[0] for row in db.execute("SELECT key FROM documents ORDER BY key")]


def test_delete_by_keys(collection: Path) -> None:
    done = run("delete", collection, "whale", "gone", "whale")
    assert f"1 document deleted from {collection}" in done.stderr
    assert "no document 'gone'" in done.stderr
    assert keys(collection) == ["bread", "volcano"]
    report = run_json("delete", collection, "whale", "bread")
    assert report == {"deleted": 1, "missing": ["whale"]}


def test_delete_by_filter(collection: Path) -> None:
    done = run("delete", collection, "--where", "year > 2015")
    assert f"2 documents deleted from {collection}" in done.stderr
    assert keys(collection) == ["bread"]
    misspelt = run("delete", collection, "--where", "yaer > 2015 or not exists(year)")
    assert "0 documents deleted" in misspelt.stderr
    for wrong, got in ((("whale", "--where", "year > 1"), "both"), ((), "neither")):
        assert f"keys or --where, got {got}" in one_sentence(run("delete", collection, *wrong))
    assert "it is empty" in run("delete", collection, "--where", "").stderr


def test_update(collection: Path) -> None:
    done = run("update", collection, "whale", "year=null", "draft=true", 'by={"name": "Ann"}')
    assert (done.returncode, done.stdout) == (0, "")
    assert f"whale updated in {collection}" in done.stderr
    report = run_json("update", collection, "whale", "by.age=3", 'by={"age": 4}', "venue=so = so")
    by = {"name": "Ann", "age": 4}
    assert report["metadata"] == {"draft": True, "by": by, "by.age": 3, "venue": "so = so"}
    assert "expected NAME=VALUE" in one_sentence(run("update", collection, "whale", "year"))
    own = one_sentence(run("update", collection, "whale", "title=Wale"))
    assert "update of 'whale': 'title' is a field of the document, not metadata" in own
    assert run_json("update", collection, "whale", "id=7")["metadata"]["id"] == 7
    gone = one_sentence(run("update", collection, "gone", "year=1"))
    assert "has no document 'gone'; nothing was changed" in gone


def test_optimize(collection: Path) -> None:
    assert run("delete", collection, "bread").returncode == 0
    report = run_json("optimize", collection)
    assert (report["segments"], report["dropped"]) == (1, 1)
    assert run_json("info", collection)["tombstones"] == 0
    done = run("optimize", collection)
    assert "1 segment became 1, 0 deleted rows dropped" in done.stderr


def test_backup_and_export(collection: Path, tmp_path: Path) -> None:
    copy, plain = tmp_path / "new" / "copy.index", tmp_path / "plain"
    assert f"3 documents of {collection} copied to {copy}" in run("backup", collection, copy).stderr
    assert run_json("verify", copy) == {"collection": str(copy), "whole": True}
    assert "exists already" in one_sentence(run("backup", collection, copy))
    assert run_json("backup", collection, tmp_path / "b")["documents"] == 3
    names = {"collection": str(collection), "folder": str(plain)}
    assert run_json("export", collection, plain) == names | {"documents": 3}
    assert "exists already" in one_sentence(run("export", collection, plain))
    assert np.load(plain / "vectors.npy").shape == (3, 384)
    passages = (plain / "passages.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in passages] == ["whale", "bread", "volcano"]
    assert run_json("index", plain / "documents.jsonl", copy)["unchanged"] == 3


def test_explain(collection: Path) -> None:
    asked = "explain", collection, "dough yeast"
    done = run(*asked, "whale", "--mode", "text")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Not found: it has no rank.\n"
    found = run_json(*asked, "bread", "--mode", "hybrid", "-k", "1")
    assert (found["rank"], found["fused"], found["vector"], found["words"]) == (1, 1, 1, 1)
    assert run_json(*asked, "bread", "--where", "year > 2100")["matches"] is False
    assert "no document has the key 'gone'" in run(*asked, "gone").stderr


def test_how_a_collection_is_cut_is_fixed(template: Path, collection: Path) -> None:
    for wish in (("--tokenizer", "unicode"), ("--passages", "0"), ("--passages", "64")):
        refused = one_sentence(run("index", template / "corpus.jsonl", collection, *wish))
        assert "leave the option out" in refused


def test_interrupted_index_goes_on_after_its_last_commit(tmp_path: Path) -> None:
    collection, fifo, whole = tmp_path / "c", tmp_path / "slow.jsonl", tmp_path / "whole.jsonl"
    lines = [f'{{"_id": "{i}", "text": "number {i}"}}\n' for i in range(30)]
    whole.write_text("".join(lines))
    os.mkfifo(fifo)
    encoder = write_model2vec(tmp_path / "static")
    process = indexing(fifo, collection, "--encoder", encoder)
    with feeding(fifo, process) as stream:
        stream.write(lines[0])
        stream.flush()
        wait_until(lambda: (collection / "segments").exists())
        last = interrupted(process, signal.SIGTERM, 143)
    assert last.startswith("Interrupted before the first commit; nothing was changed")
    assert not collection.exists()
    often = "ingestion.SECONDS = 0; pipeline.LARGEST_BLOCK = 20, 1 << 19; pipeline.AHEAD = 1"
    process = indexing(fifo, collection, "--encoder", encoder, before=often)
    with feeding(fifo, process) as stream:
        stream.writelines(lines)
        stream.flush()
        wait_until(lambda: (collection / "documents.db").exists() and len(keys(collection)) == 20)
        last = interrupted(process)
    way = "the same command continues from there"
    assert last == f"Interrupted; {collection} has 20 documents, {way}"
    report = run_json("index", whole, collection)
    assert (report["added"], report["unchanged"], report["documents"]) == (10, 20, 30)
    assert run("verify", collection).returncode == 0


def test_a_second_writer_is_refused_or_waits(
    template: Path, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("searchengine.cli.options.WAIT", 0)
    update = ("update", collection, "whale", "a=1")
    (tmp_path / "new.jsonl").write_text('{"_id": "new", "text": "a new one"}\n')
    with closing(sqlite3.connect(collection / "documents.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        # What is stored already needs no lock.
        assert run("index", template / "corpus.jsonl", collection).returncode == 0
        for command in (("index", tmp_path / "new.jsonl", collection), update):
            started = time.monotonic()
            busy = one_sentence(run(*command))
            assert "is being written to by another process" in busy
        took = time.monotonic() - started  # of update, until it was refused
        command_line = [COMMAND, *map(str, update)]
        waiting = subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True)
        time.sleep(2 * took)
        assert waiting.poll() is None
        other.execute("ROLLBACK")
    _, stderr = waiting.communicate(timeout=60)
    assert (waiting.returncode, stderr) == (0, f"whale updated in {collection}\n")
