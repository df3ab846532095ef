"""Fingerprints: what changes a vector is in them, what cannot is not."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from searchengine.trainer.encoder import Encoder
from tests.tiny_model import write_sentence_transformer
from tests.trainer.test_model_folders import TEXTS, change_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sentence_transformer(tmp_path / "m")


def load(folder: Path) -> Encoder:
    return Encoder.load(folder, precision="fp32")


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention heads": ("config.json", {"num_attention_heads": 2}),
    "activation": ("config.json", {"hidden_act": "relu"}),
    "epsilon of the layer norms": ("config.json", {"layer_norm_eps": 0.5}),
    "causal attention": ("config.json", {"is_decoder": True}),
    "truncation side": ("tokenizer_config.json", {"truncation_side": "left"}),
    "length limit": ("sentence_bert_config.json", {"max_seq_length": 7}),
    "pooling": ("1_Pooling/config.json", {"pooling_mode": "max"}),
    "prompt": ("config_sentence_transformers.json", {"prompts": {"query": "the dog: "}}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_vectors_changes_the_fingerprint(folder: Path, name: str) -> None:
    file, values = CHANGES[name]
    texts = [*TEXTS, "a dog sleeps " * 20 + "near the green house"]
    before = load(folder)
    vectors = before.encode(texts, role="query")
    change_json(folder / file, **values)
    after = load(folder)
    assert np.abs(after.encode(texts, role="query") - vectors).max() > 1e-4, "a case worth testing"
    assert after.fingerprint != before.fingerprint
    after.save(folder.parent / "out")
    assert load(folder.parent / "out").fingerprint == after.fingerprint


@pytest.mark.parametrize(
    "values",
    [
        {"transformers_version": "4.6.1"},
        {"dtype": "bfloat16"},
        {"torch_dtype": "float16"},
        {"_name_or_path": "somewhere/else"},
        {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "classifier_dropout": 0.2},
        {"initializer_range": 0.5},
        {"architectures": ["BertForMaskedLM"]},
        {"id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}},
        {"use_cache": False},
        {"output_hidden_states": True},
        {"layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    ],
    ids=lambda values: ", ".join(values),
)
def test_what_changes_no_vector_is_left_out(folder: Path, values: dict[str, Any]) -> None:
    before = load(folder)
    vectors = before.encode(TEXTS)
    change_json(folder / "config.json", **values)
    after = load(folder)
    np.testing.assert_array_equal(after.encode(TEXTS), vectors)
    assert after.fingerprint == before.fingerprint


def test_a_setting_at_its_default_may_be_left_out(folder: Path) -> None:
    before = load(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_act"], config["layer_norm_eps"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).fingerprint == before.fingerprint


def test_weights_decide_and_place_and_precision_do_not(folder: Path, tmp_path: Path) -> None:
    before = load(folder).fingerprint
    assert Encoder.load(folder, precision="bf16").fingerprint == before
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert load(moved).fingerprint == before
    weights = load_file(moved / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][7, 3] += 1e-3
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert load(moved).fingerprint != before
