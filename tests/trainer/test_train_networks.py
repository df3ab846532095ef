"""Networks that some settings do not fit: refused by name before anything is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ModernBertConfig, ModernBertModel, T5Config, T5EncoderModel

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WIDTH, WORDS, small_decoder, write_plain, write_sentence_transformer

SIZE = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def write_network(folder: Path, kind: str) -> Path:
    """A plain folder with a network of another kind, and the same tokenizer."""
    write_plain(folder)
    networks: dict[str, Any] = {
        "t5": lambda: T5EncoderModel(
            T5Config(vocab_size=120, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        ),
        "modernbert": lambda: ModernBertModel(
            ModernBertConfig(**SIZE, intermediate_size=64, pad_token_id=0)
        ),
    }
    torch.manual_seed(0)
    networks[kind]().save_pretrained(folder)
    return folder


def configure(folder: Path, kind: str, **settings: Any) -> TrainConfig:
    lines = [f"the {n} {v}" for n in WORDS[2:8] for v in WORDS[8:13]]
    (folder / "sentences.tsv").write_text("\n".join(["sentence", *lines]) + "\n")
    pairs = [f"{line}\t{line} fast" for line in lines]
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")
    chosen = {
        "train": [folder / "pairs.tsv"],
        "max_steps": 1,
        "precision": "fp32",
        "batch_size": 8,
        **settings,
    }
    base = write_network(folder / "base", kind)
    return TrainConfig(out=folder / "out", base=str(base), **chosen)


@pytest.mark.parametrize("kind", ["t5", "modernbert"])
def test_layers_that_cannot_be_cut_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    config = configure(tmp_path, kind, layers_per_step=1)
    with pytest.raises(ConfigError, match=rf"layers_per_step with .*: a {kind} network may"):
        train(config)


def test_a_network_that_names_no_masked_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mlm_weight: this t5 network cannot name masked tokens"):
        train(configure(tmp_path, "t5", mlm_weight=0.1))


def test_two_equal_views_of_a_sentence_are_refused(tmp_path: Path) -> None:
    sentences = [tmp_path / "sentences.tsv"]
    config = configure(tmp_path, "modernbert", train=sentences)
    with pytest.raises(ConfigError, match=r"is a modernbert network without dropout.*set dropout"):
        train(config)
    train(replace(config, dropout=0.1))
    train(replace(config, augment="delete-word"))  # type: ignore[arg-type]
    train(replace(config, dropout=0.0))  # asked for by name


# --- decoders with last-token pooling, of the shape of Qwen3-Embedding ----------------------------


PROMPT = "the dog near "
TEXTS = ["the sea", "a dog sleeps near the sea", "fast"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_sentence_transformer(
        tmp_path_factory.mktemp("decoder") / "model",
        {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True},
        prompts={"query": PROMPT, "document": ""},
    )
    network = small_decoder(max_position_embeddings=48, initializer_range=0.3, pad_token_id=0)
    network.save_pretrained(folder)
    return folder


def reference(folder: Path, role: str) -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return model.encode_query(TEXTS) if role == "query" else model.encode_document(TEXTS)


@pytest.mark.parametrize("role", ["query", "document"])
def test_vectors_of_a_decoder_are_those_of_sentence_transformers(decoder: Path, role: Any) -> None:
    vectors = Encoder.load(decoder, precision="fp32").encode(TEXTS, role=role)
    np.testing.assert_allclose(vectors, reference(decoder, role), atol=1e-5)


def test_a_decoder_learns_and_is_saved(decoder: Path, tmp_path: Path) -> None:
    rows = [
        f"{n} {v} {w}\t{w} {v} the {n}"
        for n in WORDS[2:8]
        for v in WORDS[8:13]
        for w in WORDS[15:17]
    ]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    config = TrainConfig(
        train=(path,),
        out=tmp_path / "out",
        base=str(decoder),
        prefixes=(32, 8),
        max_steps=30,
        batch_size=8,
        learning_rate=5e-3,
        precision="fp32",
        adapter_rank=4,
        gradient_cache=True,
    )
    losses: list[float] = []
    train(config, lambda line: losses.append(line.loss or 0.0))
    trained = Encoder.load(tmp_path / "out", precision="fp32")
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[2:7])
    np.testing.assert_allclose(
        trained.encode(TEXTS, role="query"), reference(tmp_path / "out", "query"), atol=1e-4
    )
    assert (trained.encode(TEXTS) != Encoder.load(decoder, precision="fp32").encode(TEXTS)).any()
