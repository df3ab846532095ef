"""Cron, pipes and programs: exit statuses, one shape of JSON, choices of files, help."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import run, run_json
from tiny_model import write_model2vec

from searchengine import SearchEngine
from tests.searchengine.cli.test_cli import indexing, interrupted, wait_until


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model2vec(tmp_path_factory.mktemp("model") / "static")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("whales sleep")
    return tmp_path / "notes"


# ---------------------------------------------------------------------------------- choice of files


def test_files_without_a_reader_as_text(notes: Path, encoder: Path, tmp_path: Path) -> None:
    (notes / "b.foo").write_text("owls")
    (notes / "Makefile").write_text("all:")
    (notes / "built").mkdir()
    (notes / "built" / "c.txt").write_text("no")
    arguments = ("index", notes, tmp_path / "c", "--encoder", encoder, "--ignore", "built")
    choice = ("--as-text", ".FOO,Makefile")
    assert run_json(*arguments)["skipped"] == {".foo": 1, "without a suffix": 1}
    assert run_json(*arguments, *choice)["added"] == 2
    assert run_json(*arguments, *choice, "--prune")["unchanged"] == 3
    assert run_json(*arguments, "--prune")["removed"] == 2
    single = ("index", notes / "b.foo", tmp_path / "d", "--encoder", encoder)
    assert "--as-text reads others as text" in run(*single).stderr
    assert run_json(*single, "--as-text", "foo")["added"] == 1
    assert run(*single, "--as-text", ",").returncode == 2


def test_watching_makes_the_same_choice(notes: Path, encoder: Path, tmp_path: Path) -> None:
    (notes / "b.foo").write_text("owls")
    (notes / "c.log").write_text("no")
    choice = ("--as-text", ".foo", "--ignore", ".log", "--watch", "--json")
    process = indexing(notes, tmp_path / "c", "--encoder", encoder, *choice)
    try:
        wait_until(lambda: (tmp_path / "c" / "documents.db").exists() and _keys(tmp_path / "c"))
        assert _keys(tmp_path / "c") == ["a.txt", "b.foo"]
    finally:
        last = interrupted(process, signal.SIGINT, 130)
    assert last.startswith(f"Stopped watching {notes}; {tmp_path / 'c'} has 2 documents")


def _keys(collection: Path) -> list[str]:
    with SearchEngine.open(collection) as engine:
        return sorted(engine.keys())


# --------------------------------------------------------------------------------------- JSON shape


def shape(value: Any) -> Any:
    """The keys of JSON objects; lists and other values only as such."""
    return sorted(value) if isinstance(value, dict) else type(value).__name__


def test_json_has_the_same_keys_whatever_the_options(
    notes: Path, encoder: Path, tmp_path: Path
) -> None:
    (notes / "b.png").write_bytes(b"")
    index = ("index", notes, tmp_path / "c", "--encoder", encoder)
    runs = {
        "index": [run_json(*index, *more) for more in ((), ("--prune",), ("--skip-bad",))],
        "search": [
            run_json("search", tmp_path / "c", "whales", *more)
            for more in ((), ("--facet", "path"), ("--exact",), ("--where", "size > 1000"))
        ],
        "verify": [run_json("verify", tmp_path / "c")],
        "reindex": [
            run_json("reindex", tmp_path / "c", *more)
            for more in (("--encoder", encoder), ("--discard",))
        ],
        "delete": [
            run_json("delete", tmp_path / "c", *more) for more in (("x",), ("--where", "size = 0"))
        ],
    }
    for command, results in runs.items():
        assert len({json.dumps(shape(result)) for result in results}) == 1, command
    empty: dict[str, Any] = {"hits": [], "facets": {}, "replaced": {}, "notes": []}
    empty |= {"exact": False}
    assert runs["search"][3] == empty
