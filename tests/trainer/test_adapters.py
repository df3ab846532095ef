"""Adapters in training: what they train, and that the saved model is plain and the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS
from tests.trainer.test_longer_windows import TEXT

NOUNS, VERBS = WORDS[2:8], WORDS[8:13]
WINDOW, GROUP = 96, 16


@pytest.fixture
def config(base: Path, tmp_path: Path) -> TrainConfig:
    """Questions and texts longer than the base's positions, in which they are found."""
    lines = ["anchor\tpositive"]
    for i, (noun, verb) in enumerate((n, v) for n in NOUNS for v in VERBS):
        filler = TEXT.split()[i : i + 70]
        filler[i % 70 : i % 70] = ["the", noun, verb]
        lines.append(f"the {noun} {verb}\t{' '.join(filler)}")
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    return TrainConfig(
        train=(tmp_path / "pairs.tsv",),
        out=tmp_path / "out",
        base=str(base),
        prefixes=(32,),
        window=WINDOW,
        max_tokens=WINDOW,
        attention_group=GROUP,
        adapter_rank=2,
        dropout=0.0,
        batch_size=5,
        max_steps=6,
        learning_rate=2e-2,
        precision="fp32",
    )


def weights(encoder: Encoder) -> dict[str, torch.Tensor]:
    return encoder.module.state_dict()


def changed(config: TrainConfig) -> set[str]:
    """Weights that training changed by more than rounding, but for the position table."""
    before, after = (weights(e) for e in (Encoder.load(config.base), Encoder.load(config.out)))
    assert set(before) == set(after)
    return {
        name.removeprefix("transformer.").removesuffix(".weight")
        for name in before
        if "position" not in name and not torch.allclose(before[name], after[name], atol=1e-6)
    }


def test_the_saved_model_is_plain_and_reads_as_many_tokens_as_it_was_trained_for(
    config: TrainConfig,
) -> None:
    encoder = train(config)
    network: Any = encoder.module.transformer
    assert not hasattr(network, "peft_config") and all(
        p.requires_grad for p in network.parameters()
    )
    assert network.config._attn_implementation == "sdpa"
    saved = Encoder.load(config.out, runtime="torch", precision="fp32")
    assert saved.max_tokens == WINDOW
    exact = Encoder(encoder.model, "", precision="fp32")
    assert np.allclose(saved.encode([TEXT]), exact.encode([TEXT]), atol=1e-6)
    files = " ".join(path.name for path in config.out.rglob("*"))
    assert (
        "adapter" not in files and "attention_group" not in (config.out / "config.json").read_text()
    )
    assert "attention_group" in encoder.recipe["config"]
    card = (config.out / "README.md").read_text()
    assert "- `adapter_rank`: 2\n" in card
    assert f"- `window`: {WINDOW}\n" in card


def test_adapters_embeddings_and_norms_are_trained_and_nothing_else(config: TrainConfig) -> None:
    train(config)
    names = changed(config)
    assert {"embeddings.word_embeddings", "embeddings.LayerNorm"} < names
    assert {n for n in names if "attention" in n and "LayerNorm" not in n} == {
        f"encoder.layer.{i}.attention.{part}"
        for i in range(2)
        for part in ("self.query", "self.key", "self.value", "output.dense")
    }
    assert not {n for n in names if ".intermediate" in n or n.endswith("output.dense.bias")}
    assert not {f"encoder.layer.{i}.output.dense" for i in range(2)} & names
