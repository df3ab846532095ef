"""Cron, pipes and programs: exit statuses, one shape of JSON, help."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_json
from tiny_model import write_model2vec


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model2vec(tmp_path_factory.mktemp("model") / "static")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("whales sleep")
    return tmp_path / "notes"


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
