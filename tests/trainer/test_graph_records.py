"""Compiled graphs are known by content, and only those that this user compiled are run."""

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.disk import Checksums
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes import graph as graph_module
from searchengine.trainer.runtimes.graph import Graph
from tests.tiny_model import write_plain, write_sentence_transformer

pytest.importorskip("openvino", reason="the extra `fast` is not installed")

pytestmark = pytest.mark.usefixtures("traced_once")

TEXTS = ["the dog sleeps", "a", "two big whales near the sea"]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of files written just now are remembered too: what tests wait for otherwise."""
    monkeypatch.setattr("searchengine.trainer.model.disk.SETTLED", 0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model to copy."""
    folder = write_sentence_transformer(tmp_path_factory.mktemp("kept") / "m")
    load(folder).encode(["a"])
    return folder


@pytest.fixture
def model(kept: Path, tmp_path: Path) -> Path:
    """A compiled model to change."""
    return Path(shutil.copytree(kept, tmp_path / "m"))


def load(folder: Path) -> Encoder:
    return Encoder.load(folder, runtime="openvino", precision="fp32")


def by_torch(folder: Path) -> np.ndarray:
    return Encoder.load(folder, runtime="torch", precision="fp32").encode(TEXTS)


def found(folder: Path) -> Graph | None:
    return graph_module.find_graph(Source.find(folder))


def compiled(folder: Path) -> Path:
    """The folder of the one graph beside a model."""
    (record,) = (folder / "compiled").glob("*/graph.json")
    return record.parent


def replaced(path: Path, content: bytes, *, in_place: bool) -> None:
    """Other content of the same size and time of change."""
    state = path.stat()
    assert len(content) == state.st_size
    if not in_place:
        path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_mtime_ns == state.st_mtime_ns


# ----------------------------------------------------------------------------------- by its content


@pytest.mark.parametrize("in_place", [True, pytest.param(False, marks=pytest.mark.long)])
def test_new_weights_of_the_same_size_and_time_are_compiled_again(
    model: Path, tmp_path: Path, in_place: bool
) -> None:
    before = load(model).encode(TEXTS)
    other = write_plain(tmp_path / "other", seed=1) / "model.safetensors"
    replaced(model / "model.safetensors", other.read_bytes(), in_place=in_place)
    after = load(model).encode(TEXTS)
    np.testing.assert_allclose(after, by_torch(model), rtol=0, atol=2e-5)
    assert np.abs(after - before).max() > 0.01


# --------------------------------------------------------------------- no record vouches for itself


def write_record(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    record = json.loads((folder / "graph.json").read_text())
    change(record)
    (folder / "graph.json").write_text(json.dumps(record))


def test_an_edited_record_is_not_believed(model: Path) -> None:
    assert found(model) is not None
    write_record(compiled(model), lambda record: record.update(token_budget=513))
    assert found(model) is None


@pytest.mark.parametrize("name", ["graph.xml", "graph.bin", "tokenizer.json"])
def test_a_graphs_file_of_the_same_size_and_time_is_noticed(model: Path, name: str) -> None:
    assert found(model) is not None
    path = compiled(model) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    replaced(path, bytes(content), in_place=True)
    assert found(model) is None


def test_another_users_graph_is_not_run_and_not_removed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = compiled(model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another user"))
    assert found(model) is None
    np.testing.assert_allclose(load(model).encode(TEXTS), by_torch(model), rtol=0, atol=2e-5)
    ours = found(model)
    assert ours is not None and ours.folder != theirs and theirs.is_dir()
    assert (tmp_path / "another user" / "searchengine" / "key").stat().st_mode & 0o077 == 0


# ----------------------------------------------------------------------------------- read only once


@pytest.mark.parametrize("content", ["{", "[1]", '{"%s": 3}', '{"%s": [1, 2]}', '{"%s": []}'])
def test_damaged_checksums_are_computed_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_bytes(b"one")
    name = str(tmp_path / "file")
    (tmp_path / "checksums.json").write_text(content % name if "%" in content else content)
    with Checksums(tmp_path) as sums:
        assert sums.of(tmp_path / "file") == sha256(b"one").hexdigest()
    with Checksums(tmp_path) as sums:
        assert sums.of(tmp_path / "file") == sha256(b"one").hexdigest()
