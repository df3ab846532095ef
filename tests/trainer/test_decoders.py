"""Decoders with last-token pooling, of the shape of Qwen3-Embedding: encoded, trained, saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WIDTH, WORDS, write_sentence_transformer

PROMPT = "the dog near "
TEXTS = ["the sea", "a dog sleeps near the sea", "fast"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_sentence_transformer(
        tmp_path_factory.mktemp("decoder") / "model",
        {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True},
        prompts={"query": PROMPT, "document": ""},
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=120,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=48,
        initializer_range=0.3,
        pad_token_id=0,
    )
    Qwen3Model(config).save_pretrained(folder)
    return folder


def reference(folder: Path, role: str) -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return model.encode_query(TEXTS) if role == "query" else model.encode_document(TEXTS)


@pytest.mark.parametrize("role", ["query", "document"])
def test_vectors_are_those_of_sentence_transformers(base: Path, role: Any) -> None:
    vectors = Encoder.load(base, precision="fp32").encode(TEXTS, role=role)
    np.testing.assert_allclose(vectors, reference(base, role), atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"adapter_rank": 4, "gradient_cache": True},
    ],
    ids=["whole", "adapters"],
)
def test_it_learns_and_is_saved(base: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
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
        base=str(base),
        prefixes=(32, 8),
        max_steps=30,
        batch_size=8,
        learning_rate=5e-3,
        precision="fp32",
        **settings,
    )
    losses: list[float] = []
    train(config, lambda line: losses.append(line.loss or 0.0))
    trained = Encoder.load(tmp_path / "out", precision="fp32")
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[2:7])
    np.testing.assert_allclose(
        trained.encode(TEXTS, role="query"), reference(tmp_path / "out", "query"), atol=1e-4
    )
    assert (trained.encode(TEXTS) != Encoder.load(base, precision="fp32").encode(TEXTS)).any()
