"""searchengine encode: files of vectors that index as the corpus itself does."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from command_line import COMMAND, run, run_json
from conftest import REPOSITORY
from tiny_model import write_sentence_transformer

from searchengine.corpus.documents import Document
from searchengine.encoders.loading import load_given
from searchengine.errors import CollectionError, CorpusError
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.supplied import write_vectors

FILES = ("documents.jsonl", "passages.jsonl", "vectors.npy")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_sentence_transformer(tmp_path / "model")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Documents of up to 17 passages, one without text, and a record that occurs twice."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(5):
        (folder / f"{i}.txt").write_text(f"the dog sleeps near the house {i} " * (4 * i + 1))
    (folder / "empty.txt").write_text("")
    (folder / "unknown.xyz").touch()
    lines = [{"text": f"a whale sings {i % 3}"} for i in range(4)]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def files(encoded: Path) -> tuple[str | Path, ...]:
    return "--vectors", encoded / "vectors.npy", "--passages-from", encoded / "passages.jsonl"


def exported(collection: Path) -> list[bytes]:
    target = collection.with_suffix(".export")
    assert run("export", collection, target).returncode == 0
    return [(target / name).read_bytes() for name in FILES]


def test_indexing_the_files_equals_indexing_the_corpus(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    cut = ("--encoder", model, "--passage-tokens", "12")
    done = run("encode", corpus, tmp_path / "out", *cut)
    assert done.returncode == 0, done.stderr
    assert "8 documents in" in done.stderr and "1 entry of other kinds skipped" in done.stderr
    lines = (tmp_path / "out" / "passages.jsonl").read_text().splitlines()
    vectors = np.load(tmp_path / "out" / "vectors.npy")
    assert len(lines) == len(vectors) > 20 and vectors.dtype == np.float32
    summary = run_json("index", corpus, tmp_path / "a", *cut, *files(tmp_path / "out"))
    assert (summary["added"], summary["repeated"]["count"]) == (8, 1)
    assert run_json("index", corpus, tmp_path / "a")["unchanged"] == 8
    assert run_json("index", corpus, tmp_path / "b", *cut)["added"] == 8
    assert exported(tmp_path / "a") == exported(tmp_path / "b")


def test_documents_kept_whole(corpus: Path, model: Path, tmp_path: Path) -> None:
    (corpus / "empty.txt").unlink()
    (corpus / "records.jsonl").unlink()
    whole = ("--encoder", model, "--no-passages")
    assert run("encode", corpus, tmp_path / "out", *whole).returncode == 0
    added = run_json("index", corpus, tmp_path / "a", *whole, *files(tmp_path / "out")[:2])
    assert added["added"] == len(np.load(tmp_path / "out" / "vectors.npy")) == 5


def test_what_is_refused(corpus: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing.jsonl").write_text("")
    for source, output, message in (
        (corpus, corpus / "out", "is inside the corpus"),
        (corpus, model, "exists already; choose another folder"),
        (tmp_path / "nothing.jsonl", tmp_path / "out", "no document to encode"),
        (tmp_path / "absent", tmp_path / "out", "no such file or folder"),
    ):
        done = run("encode", source, output, "--encoder", model)
        assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_malformed_records(corpus: Path, model: Path, tmp_path: Path) -> None:
    with (corpus / "records.jsonl").open("a") as file:
        file.write("nonsense\n" + json.dumps({"text": "after"}) + "\n")
    encoding = ("--encoder", model)
    done = run("encode", corpus, tmp_path / "out", *encoding)
    assert "8 documents in" in done.stderr and "1 unreadable, left out" in done.stderr
    done = run("encode", corpus, tmp_path / "all", *encoding, "--skip-bad")
    assert "9 documents in" in done.stderr and "1 bad, left out" in done.stderr
    done = run("encode", corpus / "records.jsonl", tmp_path / "one", *encoding)
    assert done.returncode == 2 and "records.jsonl:5: not JSON" in done.stderr


def test_all_or_nothing(tmp_path: Path) -> None:
    def nan(texts: list[str]) -> npt.NDArray[np.float32]:
        return np.full((len(texts), 4), np.nan if "bad" in texts else 1, np.float32)

    def interrupted() -> Iterator[Document]:
        yield from (Document(str(i), "bb") for i in range(3000))
        raise CorpusError("away")

    reader = PassageReader(load_given(nan), None)
    for documents, message in (
        (iter([Document("k", "bad")]), "the encoder returned NaN"),
        (interrupted(), "away"),
    ):
        with pytest.raises((CollectionError, CorpusError), match=message):
            write_vectors(documents, tmp_path / "out", reader, lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_recipes_for_many_machines(tmp_path: Path) -> None:
    """The commands of docs/scale.md for an array of jobs, and the program for Ray if it is here."""
    page = (REPOSITORY / "docs" / "scale.md").read_text()
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
