"""searchengine get, list; pages, order and facets of search."""

from pathlib import Path

import pytest
from command_line import run, run_json
from conftest import WordLengths

from searchengine import SearchEngine

DOCUMENTS = [
    {"_id": "a", "title": "Cats", "text": "the cat sat " * 20, "year": 2016, "lang": "en"},
    {"_id": "b", "text": "the\x1b[2J cat slept", "year": 2014, "lang": "en"},
    {"_id": "c", "text": "sleep", "lang": "ko"},
]


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add(DOCUMENTS)
    return tmp_path / "c"


def test_get(collection: Path) -> None:
    assert run_json("get", collection, "b", "a") == [
        {"year": 2014, "lang": "en", "_id": "b", "title": "", "text": "the\x1b[2J cat slept"},
        {"year": 2016, "lang": "en", "_id": "a", "title": "Cats", "text": "the cat sat " * 20},
    ]
    done = run("get", collection, "b")
    assert done.stdout == 'b\n{"year": 2014, "lang": "en"}\nthe\\x1b[2J cat slept\n'
    done = run("get", collection, "?", "c")
    assert (done.returncode, done.stderr) == (1, "no document '?'\n")
    assert done.stdout == 'c\n{"lang": "ko"}\nsleep\n'


def test_list(collection: Path) -> None:
    lines = run("list", collection).stdout.splitlines()
    assert lines[1:] == ["b  the\\x1b[2J cat slept", "c  sleep"]
    assert lines[0].startswith("a  Cats  the cat sat the") and lines[0].endswith("…")
    assert [each["_id"] for each in run_json("list", collection)] == ["a", "b", "c"]
    assert run_json("list", collection, "--where", "year = 1") == []
    assert run_json("list", collection, "--offset", "1", "--limit", "1")[0]["_id"] == "b"
    assert len(run_json("list", collection, "--where", "exists(year)")) == 2
    assert run("list", collection, "--where", "yaer > 3").stdout == ""
    assert "expected" in run("list", collection, "--where", "year >").stderr


def test_pages_order_and_facets(collection: Path) -> None:
    found = run_json("duplicates", collection, "--above", "0.0001")["groups"]
    assert [group["keys"][0] for group in found] == ["a"] and found[0]["cosines"][0] == 1
    done = run("duplicates", collection, "--above", "0.0001", "--where", "_id in ('b', 'c')")
    assert done.stdout.startswith("1.000  b\n") and "1 group, 1 document nearly" in done.stderr
    assert run("duplicates", collection, "--above", "1").stdout == ""
    assert run("duplicates", collection, "--above", "0").returncode == 2
    similar = ["similar", collection, "a"]
    assert "has no document 'gone'" in run("similar", collection, "gone").stderr
    whole = [hit["key"] for hit in run_json(*similar)["hits"]]
    assert [hit["key"] for hit in run_json(*similar, "--offset", "1")["hits"]] == whole[1:]
    assert run_json(*similar, "--min-score", "1.5")["hits"] == []
    assert "text" not in run_json(*similar, "--no-texts")["hits"][0]
    words = ("search", collection, "cat", "--mode", "text", "--facet", "lang")
    assert run_json(*words)["facets"] == {
        "lang": [{"value": "en", "count": 2}, {"value": "ko", "count": 1}]
    }
    assert run(*words).stdout.splitlines()[-1] == "lang: en 2, ko 1"
    done = run(*similar, "--where", "yaer > 3")
    assert done.stderr == "no document has a field yaer; did you mean year?\nno hits\n"
    assert run(*similar, "--offset", "-1").returncode == 2
