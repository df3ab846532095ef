"""Model folders that bring code, or ask for something else than cosines of whole vectors."""

import json
import re
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedModel

from searchengine.cli import cli
from searchengine.trainer.card import model_card
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.modules import Classifier
from tests.tiny_model import WIDTH, write_json, write_sentence_transformer

TEXTS = ["the whale sleeps in the sea", "a dog", "two old birds sing near the big green tree"]


def change_json(path: Path, **values: Any) -> None:
    """Write some values of a JSON object again."""
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | values)


# ---------------------------------------------------------------------------------- code of a model


def test_code_of_a_model_is_never_run(tmp_path: Path) -> None:
    """That of a type that only the code in its folder knows, which leaves a file behind."""
    folder, ran = write_sentence_transformer(tmp_path / "own"), tmp_path / "ran"
    (folder / "own_code.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()")
    auto_map = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    change_json(folder / "config.json", model_type="own", auto_map=auto_map)
    with pytest.raises(ModelError, match="own needs Python code that came with it, which is never"):
        Encoder.load(folder)
    assert not ran.exists()


# ------------------------------------------------------------------ sentence-transformers' settings


def without_normalize(folder: Path) -> None:
    """Drop the last module, so that vectors are not of length 1."""
    write_json(folder / "modules.json", json.loads((folder / "modules.json").read_text())[:2])


@pytest.mark.parametrize(
    ("name", "unit", "dim", "taken"),
    [
        ("dot", True, WIDTH * 2, True),
        ("euclidean", True, None, True),
        ("cosine", False, 8, True),
        (None, False, 8, True),
        ("dot", False, None, False),
        ("dot", True, 8, False),
        ("manhattan", True, None, False),
    ],
)
def test_similarities_that_order_as_the_cosine_does(
    tmp_path: Path, name: str | None, unit: bool, dim: int | None, taken: bool
) -> None:
    dims = {"matryoshka_dims": [WIDTH, 16, 8, 4]}
    folder = write_sentence_transformer(
        tmp_path / "m", similarity_fn_name=name, truncate_dim=dim, **dims
    )
    if not unit:
        without_normalize(folder)
    if not taken:
        with pytest.raises(ModelError, match=f"similarity_fn_name '{name}'"):
            Encoder.load(folder)
        return
    encoder = Encoder.load(folder, precision="fp32")
    expected = SentenceTransformer(str(folder), device="cpu").encode(
        TEXTS, normalize_embeddings=True
    )
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-6)
    assert encoder.dim == encoder.matryoshka_dims[0] == min(dim or WIDTH, WIDTH)


# ------------------------------------------------------------------------------- several at once


def test_threads_load_models_at_once(tmp_path: Path) -> None:
    """transformers replaces a method of its class while it loads, for all threads."""
    folder = write_sentence_transformer(tmp_path / "model")
    tie_weights = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(8) as pool:
        prints = {*pool.map(lambda _: Encoder.load(folder).fingerprint, range(16))}
    assert len(prints) == 1 and PreTrainedModel.tie_weights is tie_weights


# --- fingerprints ---------------------------------------------------------------------------------


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


def test_weights_decide_and_place_and_precision_do_not(folder: Path, tmp_path: Path) -> None:
    before = load(folder).fingerprint
    assert Encoder.load(folder, precision="bf16").fingerprint == before
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert load(moved).fingerprint == before
    weights = load_file(moved / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][7, 3] += 1e-3
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert load(moved).fingerprint != before


# --- the model card: its figures, its commands, and what it must not give away --------------------


CONFIG = {
    "train": ["/secret/place/nli.tsv", "own data\\captions.jsonl.gz"],
    "out": "/secret/models/tiny-search",
    "base": "/secret/models/base",
    "dev": ["/secret/stsb_dev.tsv"],
    "batch_size": 64,
    "max_steps": 100,
    "learning_rate": 3e-5,
    "seed": 7,
}
RECIPE = {
    "config": CONFIG,
    "changed": ["max_steps", "base", "dev", "learning_rate"],
    "examples": 41522,
    "excluded": 1818,
    "verdict": "The same: nDCG@10 on dev .80 against .81; the base is kept as it was",
    "measures": [
        {
            "measure": "nDCG@10 on dev",
            "n": 300,
            "base": {str(WIDTH): 0.8, "16": 0.5, "8": 0.41239},
            "result": {str(WIDTH): 0.9, "16": 0.75, "8": 0.6},
        }
    ],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = Encoder.load(write_sentence_transformer(tmp_path_factory.mktemp("m") / "tiny")).model
    return replace(
        model,
        matryoshka_dims=(WIDTH, 16, 8),
        recipe=RECIPE,
        prompts={"query": "a ", "document": "the "},
        classifier=Classifier((WIDTH,), ("good", "bad")),
    )


@pytest.fixture(scope="module")
def saved(trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    Encoder(trained, "").save(path)
    return path


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```", text, re.DOTALL)


def test_what_a_card_tells(trained: Model, saved: Path) -> None:
    text = (saved / "README.md").read_text(encoding="utf-8")
    assert text == model_card(trained) == model_card(Encoder.load(saved).model)
    assert f"| {WIDTH} | 80.00 | 90.00 |\n| 16 | 50.00 | 75.00 |\n| 8 | 41.24 | 60.00 |\n" in text
    assert "secret" not in text and "own data" not in text


def test_commands_of_the_card(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="no faiss")
    commands = blocks((saved / "README.md").read_text(encoding="utf-8"), "sh")[0].splitlines()
    monkeypatch.chdir(saved)
    (saved / "notes").mkdir()
    (saved / "notes" / "whales.txt").write_text("whales sleep near the sea")
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "searchengine"
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
    assert "whales sleep" in done.output
