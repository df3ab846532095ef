"""searchengine index --vectors: from a .npy file to a tuned collection, and back from an export."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import COMMAND, run, run_json
from conftest import REPOSITORY, WordLengths

from searchengine import SearchEngine

RNG = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "vectors.npy", RNG.standard_normal((900, 8)).astype(np.float32))
    documents = [{"_id": f"k{i}", "text": f"word{i} bee", "n": i} for i in range(900)]
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (tmp_path / "documents.jsonl").write_text(lines)
    return tmp_path


def test_from_vectors_to_a_tuned_collection_in_two_commands(folder: Path) -> None:
    keys = "".join(f'{{"_id": "{i}"}}\n' for i in range(900))
    (folder / "keys.jsonl").write_text(keys)
    index = ("index", folder / "keys.jsonl", folder / "c", "--vectors", folder / "vectors.npy")
    assert run_json(*index)["added"] == 900
    assert run_json("tune", folder / "c")["operating_point"]["recall"] > 0.95
    np.save(folder / "queries.npy", RNG.standard_normal((300, 8)).astype(np.float32))
    tuned = run_json("tune", folder / "c", "--query-vectors", folder / "queries.npy")
    point = tuned["operating_point"]
    assert (point["source"], point["queries"]) == ("given", 300)
    assert run_json("info", folder / "c")["documents"] == 900
    assert run_json("similar", folder / "c", "17", "-k", "1")["hits"][0]["text"] == ""
    assert run_json(*index)["unchanged"] == 900
    info = run("info", folder / "c").stdout
    assert "encoder      none; documents come with their vectors" in info
    assert "(as they come with the vectors)" in info
    assert run("verify", folder / "c").returncode == 0
    done = run("search", folder / "c", "bees", "--mode", "vector")
    assert done.returncode == 2 and "has no encoder: search with a vector of 8" in done.stderr


def test_documents_and_vectors(folder: Path) -> None:
    index = ["index", folder / "documents.jsonl", folder / "c", "--vectors", folder / "vectors.npy"]
    assert run_json(*index)["added"] == 900
    assert run_json("get", folder / "c", "k3")[0]["n"] == 3
    assert run_json("search", folder / "c", "word7", "--mode", "text")["hits"][0]["key"] == "k7"
    done = run("index", folder / "documents.jsonl", folder / "c")
    assert done.returncode == 2
    assert "has no encoder; pass the vectors of the documents: " in done.stderr
    assert run_json("info", folder / "c")["documents"] == 900


@pytest.mark.parametrize("config", [["--set", "rotation=identity"], []])
def test_what_export_writes_is_read_back(tmp_path: Path, config: list[str]) -> None:
    names = ("documents.jsonl", "passages.jsonl", "vectors.npy")
    with SearchEngine.create(tmp_path / "a", WordLengths(64), {"rotation": "identity"}) as engine:
        engine.add([{"_id": str(i), "text": "a bee " * (i + 1), "n": i} for i in range(9)])
        engine.add([{"_id": "2", "text": "a cat", "n": None}])
        engine.delete(["5"])
    for source, target in (("a", "one"), ("b", "two")):
        if source == "b":
            documents, passages, vectors = (tmp_path / "one" / name for name in names)
            files = ["--vectors", vectors, "--passages-from", passages]
            done = run("index", documents, tmp_path / "b", *files, *config)
            assert done.returncode == 0, done.stderr
        assert run("export", tmp_path / source, tmp_path / target).returncode == 0
    for name in names if config else names[:2]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    vectors = [np.load(tmp_path / each / "vectors.npy") for each in ("one", "two")]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-3


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones((2, 2)))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda path: path.write_text("no array"), "cannot be read as a .npy file"),
    "cut": (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "cannot be read as a .npy file"),
    "folder": (Path.mkdir, "cannot be read (Is a directory)"),
    "archive": (archive, "cannot be read as a .npy file (the magic string is not correct"),
    "complex": (lambda path: np.save(path, np.ones((9, 8), complex)), "got complex128 of shape"),
    "short": (lambda path: np.save(path, np.ones((9, 8))), "every document needs one row"),
    "empty": (lambda path: np.save(path, np.ones((0, 8))), "holds no vectors (shape (0, 8))"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_files_that_are_no_vectors(folder: Path, kind: str) -> None:
    write, message = BROKEN[kind]
    write(folder / "v.npy")
    done = run("index", folder / "documents.jsonl", folder / "c", "--vectors", folder / "v.npy")
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) <= 3, done.stderr
    assert not (folder / "c").exists()


def test_options_that_do_not_fit(folder: Path) -> None:
    for words, message in (
        ("documents.jsonl c --passages-from documents.jsonl", "needs --vectors"),
        (
            "documents.jsonl c --vectors vectors.npy --passages-from documents.jsonl",
            "passage 1: ex",
        ),
        ("documents.jsonl c --vectors vectors.npy --set prefix=9", "is wider than the vectors"),
    ):
        done = run("index", *words.split(), cwd=folder)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert not (folder / "c").exists()


@pytest.mark.long
def test_the_recipes_for_many_machines(tmp_path: Path) -> None:
    """The commands for an array of jobs, and the program for Ray if it is here."""
    page = (REPOSITORY / "docs" / "indexing.md").read_text()
    page = page[page.index("## Encode on many machines") :]
    papers = [{"_id": f"p{i}", "text": f"Paper {i} tells of whales. " * (i + 1)} for i in range(60)]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in papers))
    environment = os.environ | {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}

    def shell(command: str) -> None:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    split, encode, index = re.findall(r"^ {4}((?:split|searchengine|for) .*)$", page, re.M)[:3]
    shell(split)
    for task in range(4):
        shell(f"TASK={task}; {encode}")
    shell(index)
    assert run("index", tmp_path / "papers.jsonl", tmp_path / "alone.index").returncode == 0
    together = run_json("info", tmp_path / "papers.index")
    assert together["passages"] == run_json("info", tmp_path / "alone.index")["passages"] > 60
    pytest.importorskip("ray", reason="ray is not installed")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)[:1]
    (tmp_path / "by_ray.py").write_text(program.replace("papers.index", "ray.index"))
    shell(f"{sys.executable} by_ray.py")
    assert run_json("info", tmp_path / "ray.index")["passages"] == 60
