"""A network that torch has read is described for numpy, which gives the same vectors without it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import WIDTH, write_json, write_plain, write_sentence_transformer
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from searchengine import SearchEngine
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.numpy_models import find_described
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes import handle, torch_runtime
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

TEXTS = ["a whale sings", "", "x", "the dog sleeps in the house near the sea " * 9, "고래 🐋 ½"]
EXACT = {"runtime": "torch", "precision": "fp32"}


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """The choice is free, nothing is remembered; no OpenVINO, no VNNI, no bf16."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME", raising=False)
    monkeypatch.setattr(RuntimeConfig, "tries_openvino", False)
    monkeypatch.setattr(handle, "adds_bytes", lambda: False)
    monkeypatch.setattr(torch_runtime, "cpu_has_native_bf16", lambda: False)


def write_heads(folder: Path) -> Path:
    """Two poolings, then a Dense with a bias, unit length, and a Dense without one."""
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode": ["cls", "mean"]}
    write_sentence_transformer(folder, pooling, prompts={"query": "a "})
    torch.manual_seed(1)
    kinds = ["Transformer", "Pooling", "Dense", "Normalize", "Dense"]
    places = ["", "1_Pooling", "2_Dense", "3_Normalize", "4_Dense"]
    for place, size, bias in (("2_Dense", (2 * WIDTH, 24), True), ("4_Dense", (24, 16), False)):
        (folder / place).mkdir()
        activation = "torch.nn.modules." + ("activation.Tanh" if bias else "linear.Identity")
        config = {"in_features": size[0], "out_features": size[1], "bias": bias}
        write_json(folder / place / "config.json", {**config, "activation_function": activation})
        tensors = {"linear.weight": torch.randn(size[1], size[0])}
        tensors |= {"linear.bias": torch.randn(size[1])} if bias else {}
        save_file(tensors, folder / place / "model.safetensors")
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": places[i], "type": f"sentence_transformers.{kind}"}
            for i, kind in enumerate(kinds)
        ],
    )
    return folder


def write_roberta(folder: Path) -> Path:
    """Positions begin behind the padding's, and the names of tensors have a prefix."""
    write_plain(folder)
    config = BertConfig.from_pretrained(folder)
    sizes = {name: getattr(config, name) for name in ("vocab_size", "hidden_size")}
    network = RobertaModel(
        RobertaConfig(
            **sizes,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=50,
            type_vocab_size=1,
            pad_token_id=0,
            layer_norm_eps=1e-5,
            initializer_range=0.3,
        ),
        add_pooling_layer=False,
    )
    network.save_pretrained(folder)
    tensors = {f"roberta.{name}": tensor for name, tensor in network.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_half(folder: Path) -> Path:
    """In half precision."""
    write_plain(folder)
    tensors = {name: t.half() for name, t in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "write", [write_plain, write_sentence_transformer, write_heads, write_roberta, write_half]
)
def test_numpy_gives_the_vectors_of_torch(write: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    exact = Encoder.load(folder, **EXACT)  # type: ignore[arg-type]
    first = Encoder.load(folder)
    assert first.runs_on.startswith("torch")  # nobody has read it before
    first.encode(TEXTS)
    second = Encoder.load(folder)
    assert second.runs_on == "numpy for the first texts, then torch"
    for role in ("query", "document", None):
        expected = exact.encode(TEXTS, role=role)  # type: ignore[arg-type]
        found = second.encode(TEXTS, role=role)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, expected, atol=5e-6)
    assert second.runs_on == "numpy for the first texts, then torch"
    assert second.fingerprint == exact.fingerprint
    assert second._description == exact._description
    # A truncated one has a record of its own.
    Encoder.load(folder, layers=1).encode(TEXTS)
    short = Encoder.load(folder, layers=1)
    assert short.runs_on.startswith("numpy") and short.layers == 1
    expected = Encoder.load(folder, layers=1, **EXACT).encode(TEXTS)  # type: ignore[arg-type]
    np.testing.assert_allclose(short.encode(TEXTS), expected, atol=5e-6)


def write_relu(folder: Path) -> Path:
    write_plain(folder)
    config = BertConfig.from_pretrained(folder, hidden_act="relu")
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def write_max(folder: Path) -> Path:
    return write_sentence_transformer(
        folder, {"word_embedding_dimension": WIDTH, "pooling_mode": "max"}
    )


def write_cut(folder: Path) -> Path:
    return write_sentence_transformer(folder, truncate_dim=16)


@pytest.mark.parametrize("write", [write_relu, write_max, write_cut])
def test_other_networks_stay_with_torch(write: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    Encoder.load(folder).encode(TEXTS)
    assert find_described(Source.find(folder)) is None
    assert Encoder.load(folder).runs_on.startswith("torch")


def test_changed_files_and_damaged_records_are_read_by_torch(
    tmp_path: Path, own_cache: Path
) -> None:
    folder = write_plain(tmp_path / "model")
    Encoder.load(folder).encode(TEXTS)
    assert find_described(Source.find(folder)) is not None
    (record,) = own_cache.rglob("network.json")
    content = record.read_text()
    record.write_text(content.replace('"heads"', '"hands"'))
    assert find_described(Source.find(folder)) is None
    record.write_text(content)
    write_plain(tmp_path / "model", seed=1)
    assert find_described(Source.find(folder)) is None


PROGRAM = """
import sys
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
RuntimeConfig.tries_openvino = False
from searchengine.cli import cli
cli(["search", "c.index", "a whale", "-k1", "--json"], standalone_mode=False)
print(sorted({"torch", "transformers", "openvino"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_question_needs_no_torch(tmp_path: Path, own_cache: Path) -> None:
    folder = write_sentence_transformer(tmp_path / "model")
    with SearchEngine.create(tmp_path / "c.index", folder) as engine:
        engine.add([{"_id": "a", "text": "the whale sings"}, {"_id": "b", "text": "two birds"}])
    environment: dict[str, Any] = {**os.environ, "XDG_CACHE_HOME": str(own_cache.parent)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]" and '"key": "a"' in done.stdout
