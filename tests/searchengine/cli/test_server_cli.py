"""Commands on the URL of a collection: what they do there, and what they say instead."""

from pathlib import Path

import numpy as np
import psycopg
import pytest
from command_line import run, run_json
from cut_documents import DOCUMENTS, Words
from postgres_server import new_url

from searchengine import SearchEngine
from searchengine.errors import CollectionError
from searchengine.upkeep.copies import copy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of one or several passages, without one that was deleted."""
    path = tmp_path / "source.index"
    with SearchEngine.create(path, Words(), {"prefix": 4}) as engine:
        engine.add(DOCUMENTS)
        engine.add([{"_id": f"k{i}", "text": "a" * (i % 9 + 1) + " b", "x": i} for i in range(600)])
        engine.delete(["other"])
    return path


@pytest.fixture
def url(folder: Path) -> str:
    url = new_url()
    copy(folder, url)
    return url


def test_an_export_equals_that_of_the_folder(folder: Path, url: str, tmp_path: Path) -> None:
    counts = []
    for place, name in ((folder, "a"), (url, "b")):
        with SearchEngine.open(place, Words()) as engine:
            counts.append(engine.export(tmp_path / name))
    assert (
        counts[0] == counts[1] == len((tmp_path / "b" / "documents.jsonl").read_text().splitlines())
    )
    for name in ("documents.jsonl", "passages.jsonl"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()
    vectors = [np.load(tmp_path / name / "vectors.npy") for name in ("a", "b")]
    assert vectors[0].dtype == vectors[1].dtype == np.float32
    np.testing.assert_allclose(*vectors, atol=2e-3)
    assert run("export", url, tmp_path / "b").returncode == 2  # the folder exists


@pytest.mark.parametrize("column", ["text", "title"])
def test_damage_is_found(url: str, column: str) -> None:
    assert run_json("verify", url)["whole"] is True
    uri, _, schema = url.partition("#")
    with psycopg.connect(uri, autocommit=True, options=f"-c search_path={schema},public") as server:
        server.execute(f"UPDATE documents SET {column} = 'z' WHERE key = 'k7'")
    with SearchEngine.open(url, Words()) as engine:
        with pytest.raises(CollectionError, match="the text of 'k7' differs"):
            engine.verify()
    done = run("verify", url)
    assert done.returncode == 2 and "restore a backup" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def empty() -> str:
    """A collection without documents, of an encoder that the commands can load."""
    url = new_url()
    SearchEngine.create(url).close()
    return url


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["optimize", "URL"], "maintains its tables by itself"),
        (["backup", "URL", "b"], "pg_dump"),
        (["repair", "URL"], "restore the database from a backup"),
        (["index", "CORPUS", "URL", "--prune"], "searchengine copy FOLDER URL --prune"),
        (["index", "CORPUS", "URL", "--watch"], "searchengine copy FOLDER URL --prune"),
        (["bench", "URL", "--queries", "q.txt"], "searchengine copy 'postgresql://"),
    ],
)
def test_what_makes_no_sense_there_says_what_to_do(
    words: list[str], way_out: str, tmp_path: Path, empty: str
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a")
    (tmp_path / "q.txt").write_text("t\n")
    named = {"URL": empty.replace("postgres:@", "postgres:secret@"), "CORPUS": "corpus"}
    done = run(*(named.get(word, word) for word in words), cwd=tmp_path)
    assert done.returncode == 2
    sentence = done.stderr.strip().splitlines()[-1]
    assert "is on a server, and this works on folders only" in sentence and way_out in sentence
    assert "secret" not in done.stderr
