"""Networks that some settings do not fit: refused by name before anything is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    ModernBertConfig,
    ModernBertModel,
    T5Config,
    T5EncoderModel,
)

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS, write_plain

SIZE = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def write_network(folder: Path, kind: str) -> Path:
    """A plain folder with a network of another kind, and the same tokenizer."""
    write_plain(folder)
    networks: dict[str, Any] = {
        "t5": lambda: T5EncoderModel(
            T5Config(vocab_size=120, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        ),
        "albert": lambda: AlbertModel(
            AlbertConfig(**SIZE, embedding_size=16, intermediate_size=64), add_pooling_layer=False
        ),
        "modernbert": lambda: ModernBertModel(
            ModernBertConfig(**SIZE, intermediate_size=64, pad_token_id=0)
        ),
        "bert": lambda: None,
    }
    torch.manual_seed(0)
    if network := networks[kind]():
        network.save_pretrained(folder)
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


@pytest.mark.parametrize("kind", ["t5", "albert", "modernbert"])
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
