"""A longer window: positions interpolated, and everything that reads a model follows it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
)

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.training.longlora import interpolated, lengthened
from tests.tiny_model import WORDS, write_plain, write_sentence_transformer

SIZE = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "pad_token_id": 0,
}
TEXT = " ".join(WORDS[i % len(WORDS)] for i in range(150))


def read(folder: Path) -> Model:
    return Encoder.load(folder, runtime="torch", precision="fp32").model


def with_network(folder: Path, network: Any) -> Path:
    write_plain(folder)
    network.save_pretrained(folder)
    return folder


def test_interpolation_worked_out_by_hand() -> None:
    table = torch.tensor([[9.0, 9.0], [0.0, 8.0], [2.0, 4.0], [6.0, 0.0]])
    longer = interpolated(table, 7, kept=1)
    expected = [[9, 9], [0, 8], [1, 6], [2, 4], [4, 2], [6, 0], [6, 0]]
    assert longer.tolist() == expected
    assert torch.equal(interpolated(table, 4), table)


def test_short_texts_keep_their_vectors(tmp_path: Path) -> None:
    model = read(write_sentence_transformer(tmp_path / "m"))
    longer = lengthened(model, 96)
    short, tokens = TEXT[:60], torch.randint(5, 60, (1, 48))
    before, after = (Encoder(m, "", precision="fp32").encode([short]) for m in (model, longer))
    np.testing.assert_allclose(after, before, atol=1e-6)
    states = [m.module.transformer(tokens)[0] for m in (model, longer)]
    assert not torch.allclose(*states, atol=1e-2)


def test_positions_behind_the_padding_id_are_counted_from_there(tmp_path: Path) -> None:
    config = RobertaConfig(**{**SIZE, "pad_token_id": 1, "max_position_embeddings": 34})
    torch.manual_seed(0)
    network = RobertaModel(config, add_pooling_layer=False)
    model = read(with_network(tmp_path / "m", network))
    assert model.max_tokens == 32
    longer = lengthened(model, 64).module.transformer
    assert longer.config.max_position_embeddings == 66
    tables = [n.embeddings.position_embeddings.weight for n in (model.module.transformer, longer)]
    assert torch.equal(tables[0][:18], tables[1][:18])
    assert torch.equal(tables[0][18:], tables[1][18::3])
    assert longer(torch.full((1, 64), 7))[0].isfinite().all()


def test_windows_that_cannot_be_are_refused(tmp_path: Path) -> None:
    model = read(write_sentence_transformer(tmp_path / "m"))
    with pytest.raises(ModelError, match="window is 16: expected 24 or more"):
        lengthened(model, 16)
    network = ModernBertModel(ModernBertConfig(**SIZE, max_position_embeddings=40))
    with pytest.raises(ModelError, match="a modernbert network has no learned positions"):
        lengthened(read(with_network(tmp_path / "modern", network)), 80)
