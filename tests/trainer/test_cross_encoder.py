"""Cross-encoders: scores as sentence-transformers gives them, and errors."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_model import write_cross_encoder, write_plain

from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.errors import ModelError, RuntimeChoiceWarning
from searchengine.trainer.model.network import _check_weights
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

FP32 = RuntimeConfig("torch", "fp32", "cpu")
QUESTIONS = ["the dog sleeps", "a whale", "", "the cat \ud800 sings", "sea " * 80, "bird"]
TEXTS = ["a dog runs far", "whale in the sea " * 30, "old house", "", "new car", "   "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("models") / "cross")


def configured(folder: Path, new: Path, **changes: Any) -> Path:
    """A copy of a model with other lines in config.json."""
    new.mkdir()
    for file in folder.iterdir():
        (new / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | changes
    (new / "config.json").write_text(json.dumps(config))
    return new


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_scores_are_those_of_sentence_transformers(
    folder: Path, tmp_path: Path, activation: str
) -> None:
    from sentence_transformers import CrossEncoder as Peer

    place = "linear" if activation == "Identity" else "activation"
    named = {"activation_fn": f"torch.nn.modules.{place}.{activation}"}
    model = configured(folder, tmp_path / "model", sentence_transformers=named)
    clean = [(q.replace("\ud800", "\ufffd"), t) for q, t in zip(QUESTIONS, TEXTS, strict=True)]
    expected = Peer(str(model), device="cpu").predict(clean)
    scores = CrossEncoder.load(model, FP32).score(QUESTIONS, TEXTS)
    assert scores.dtype == np.float32 and np.abs(scores - expected).max() < 1e-5
    assert np.ptp(scores) > 0.05  # else any order would do


def test_no_pairs(folder: Path) -> None:
    assert CrossEncoder.load(folder, FP32).score([], []).shape == (0,)


def test_bf16_of_torch_must_give_the_same_scores(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.cpu_has_native_bf16", lambda: True
    )
    exact = CrossEncoder.load(folder, FP32).score(QUESTIONS, TEXTS)
    lower = CrossEncoder.load(folder, RuntimeConfig("torch", "bf16", "cpu"))
    assert lower.precision == "bf16"
    assert 0 < np.abs(lower.score(QUESTIONS, TEXTS) - exact).max() < 0.1
    monkeypatch.setattr("searchengine.trainer.runtimes.measure.max_difference", lambda *_: 0.03)
    automatic = CrossEncoder.load(folder, RuntimeConfig("torch"))
    with pytest.warns(RuntimeChoiceWarning, match=r"torch in bf16 .*at most 0.02, got bf16 0.0300"):
        automatic.start()
    assert (automatic.runtime, automatic.precision) == ("torch", "fp32")
    assert np.allclose(automatic.score(QUESTIONS, TEXTS), exact, atol=1e-5)


def test_what_is_no_cross_encoder_is_refused(folder: Path, tmp_path: Path) -> None:
    unknown = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    two = write_cross_encoder(tmp_path / "two", labels=2)
    torn = configured(folder, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes(b"torn")
    headless = configured(folder, tmp_path / "headless")
    shutil.copy(write_plain(tmp_path / "plain") / "model.safetensors", headless)
    cases = {
        tmp_path / "plain": "is a BertModel, which scores no pairs",
        two: "has 2 outputs",
        configured(folder, tmp_path / "tanh", sentence_transformers=unknown): "applies torch.nn",
        tmp_path / "missing": "no model at",
        torn: "cannot be read, damaged or half downloaded",
        headless: "of the network's weights, such as bert.pooler.dense.bias",
        "starter": "encodes one text, and scores no pairs; name a cross-encoder: a sequence",
    }
    for source, message in cases.items():
        with pytest.raises(ModelError, match=message):
            CrossEncoder.load(source, FP32)
        with pytest.raises(ModelError, match=message):
            CrossEncoder.load(source, RuntimeConfig("openvino"))
    network = SimpleNamespace(pooler="a classifier uses it")
    with pytest.raises(ModelError, match="lacks 1 of the network's weights"):
        _check_weights(network, ["pooler.dense.bias"], Path("m"), pools=True)
    _check_weights(network, ["pooler.dense.bias"], Path("m"), pools=False)
    assert network.pooler is None
