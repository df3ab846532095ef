"""Fingerprints: what changes a vector is in them, what cannot is not; collections stay open."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.errors import EncoderMismatch
from tests.tiny_model import write_sentence_transformer
from tests.trainer.test_model_folders import TEXTS, change_json
from trainer.encoder import Encoder
from trainer.model.tokens import normalised


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
    change_json(folder / "config.json", **values)
    after = load(folder)
    np.testing.assert_array_equal(after.encode(TEXTS), before.encode(TEXTS))
    assert after.fingerprint == before.fingerprint


def test_a_setting_at_its_default_may_be_left_out(folder: Path) -> None:
    before = load(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_act"], config["layer_norm_eps"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).fingerprint == before.fingerprint


# -------------------------------------------------------------------------- collections made before


def former(encoder: Encoder) -> str:
    """The fingerprint as it was when it left out the network's configuration, written by hand."""
    digest = hashlib.sha256()
    for name, weight in sorted(encoder.module.state_dict().items()):
        digest.update(f"{name} {list(weight.shape)}\n".encode())
        digest.update(weight.numpy().tobytes())
    rest = {
        "tokenizer": normalised(encoder.model.tokenizer.backend_tokenizer),
        "pooling": ["mean", True],
        "head": [["Normalize", ""]],
        "max_tokens": 24,
        "prompts": {},
        "default_prompt": None,
    }
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()


@pytest.fixture
def before(folder: Path, tmp_path: Path) -> Path:
    """A collection that knows its encoder by the former fingerprint."""
    path = tmp_path / "c.index"
    with SearchEngine.create(path, folder) as engine:
        engine.add([{"_id": "1", "text": "a dog"}, {"_id": "2", "text": "the big whale"}])
        collection = engine.collection
        old = collection.settings["encoder"] | {"fingerprint": former(load(folder))}
        with collection.own_store() as store, collection.writing(store) as writer:
            writer.changes.set("encoder", old)
    return path


def stored(path: Path) -> str:
    with SearchEngine.open(path) as engine:
        return engine.stats().fingerprint


def test_a_collection_with_a_former_fingerprint_is_searched_and_left_alone(
    before: Path, folder: Path
) -> None:
    encoder = load(folder)
    assert encoder.former_fingerprints == (former(encoder),) != (encoder.fingerprint,)
    with SearchEngine.open(before) as engine:
        assert engine.search("a dog", 1)[0].key == "1"
    assert stored(before) == former(encoder)


CHANGE: dict[str, Callable[[SearchEngine], object]] = {
    "add": lambda engine: engine.add([{"_id": "3", "text": "two birds"}]),
    "update": lambda engine: engine.update({"1": {"year": 2020}}),
    "delete": lambda engine: engine.delete(["2"]),
    "optimize": lambda engine: engine.optimize(),
}


@pytest.mark.parametrize("name", CHANGE)
def test_the_next_change_writes_the_present_fingerprint(
    before: Path, folder: Path, name: str
) -> None:
    encoder = load(folder)
    with SearchEngine.open(before) as reader:
        reader.search("a dog")
        with SearchEngine.open(before, folder) as engine:
            CHANGE[name](engine)
        assert stored(before) == encoder.fingerprint
        reader.refresh()
        assert reader.search("a dog", 1)[0].key == "1"


def test_a_collection_with_a_former_fingerprint_refuses_another_encoder(
    before: Path, tmp_path: Path
) -> None:
    other = write_sentence_transformer(tmp_path / "other", prompts={"query": "the dog: "})
    with pytest.raises(EncoderMismatch, match="fingerprint"):
        SearchEngine.open(before, other)
