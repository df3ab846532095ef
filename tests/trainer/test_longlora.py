"""LongLoRA: positions interpolated, attention in shifted groups, adapters merged in the end.

The attention is compared with its definition written out.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.training.longlora import (
    interpolated,
    lengthened,
    padding_mask,
    prepare_network,
    restore_network,
    shifted_sparse,
)
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import set_dropout
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
GROUP, WINDOW = 4, 96
IN_GROUPS = TrainConfig(train=["x"], out="y", attention_group=GROUP)  # type: ignore[arg-type]


# --- positions ------------------------------------------------------------------------------------


def read(folder: Path, network: Any = None) -> Model:
    """A model; with another network than the folder was written with."""
    if network is not None:
        network.save_pretrained(write_plain(folder))
    return Encoder.load(folder, runtime="torch", precision="fp32").model


def test_interpolation_worked_out_by_hand() -> None:
    table = torch.tensor([[9.0, 9.0], [0.0, 8.0], [2.0, 4.0], [6.0, 0.0]])
    longer = interpolated(table, 7, kept=1)
    expected = [[9, 9], [0, 8], [1, 6], [2, 4], [4, 2], [6, 0], [6, 0]]
    assert longer.tolist() == expected
    assert torch.equal(interpolated(table, 4), table)


def test_short_texts_keep_their_vectors(tmp_path: Path) -> None:
    model = read(write_sentence_transformer(tmp_path / "m"))
    longer = lengthened(model, WINDOW)
    short, tokens = TEXT[:60], torch.randint(5, 60, (1, 48))
    before, after = (Encoder(m, "", precision="fp32").encode([short]) for m in (model, longer))
    np.testing.assert_allclose(after, before, atol=1e-6)
    states = [m.module.transformer(tokens)[0] for m in (model, longer)]
    assert not torch.allclose(*states, atol=1e-2)


def test_positions_behind_the_padding_id_are_counted_from_there(tmp_path: Path) -> None:
    config = RobertaConfig(**{**SIZE, "pad_token_id": 1, "max_position_embeddings": 34})
    torch.manual_seed(0)
    model = read(tmp_path / "m", RobertaModel(config, add_pooling_layer=False))
    assert model.max_tokens == 32
    longer = lengthened(model, 64).module.transformer
    assert longer.config.max_position_embeddings == 66
    tables = [n.embeddings.position_embeddings.weight for n in (model.module.transformer, longer)]
    assert torch.equal(tables[0][:18], tables[1][:18])
    assert torch.equal(tables[0][18:], tables[1][18::3])
    assert longer(torch.full((1, 64), 7))[0].isfinite().all()


def test_what_cannot_be_lengthened_or_grouped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="window is 16: expected 24 or more"):
        lengthened(read(write_sentence_transformer(tmp_path / "m")), 16)
    network = ModernBertModel(ModernBertConfig(**SIZE, max_position_embeddings=40))
    with pytest.raises(ModelError, match="a modernbert network has no learned positions"):
        lengthened(read(tmp_path / "modern", network), 80)
    with pytest.raises(ModelError, match=r"attention_group is for bert, .* not for mpnet"):
        prepare_network(MPNetModel(MPNetConfig(**SIZE)), IN_GROUPS)


# --- attention ------------------------------------------------------------------------------------


def reference(tensors: list[Tensor], seen: Tensor, group: int) -> Tensor:
    """Full scores; what is not seen, or in another group of a head, gets no weight.

    seen: (B, 1 or T, T) bool. Returns (B, T, heads, d).
    """
    query, key, value = tensors
    heads, tokens = query.shape[1], query.shape[2]
    scores = query @ key.mT / query.shape[-1] ** 0.5
    place = torch.arange(tokens)
    for head in range(heads):
        number = (place + group // 2 * (head < heads // 2)) // group
        same = number[:, None] == number[None, :]
        scores[:, head] = scores[:, head].masked_fill(~(same & seen), float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num()
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("tokens", [5, 8, 13, 16, 22])
@pytest.mark.parametrize("group", [4, 5])
@pytest.mark.parametrize("heads", [1, 4, 5])
def test_values_and_gradients_equal_the_definition(tokens: int, group: int, heads: int) -> None:
    torch.manual_seed(tokens)
    shape, layer = (3, heads, tokens, 3), SimpleNamespace(training=True)
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    lengths = torch.tensor([tokens, max(1, tokens - 3), 2])
    real = torch.arange(tokens) < lengths[:, None]
    result, _ = shifted_sparse(layer, *tensors, padding_mask(attention_mask=real), group=group)
    if tokens <= group:
        group = 2 * tokens + group  # one group, and no border that is shifted into the text
    expected = reference(tensors, real[:, None, :], group)
    signs = torch.randn_like(expected) * real[:, :, None, None]
    assert torch.allclose(result * (signs != 0), expected * (signs != 0), atol=1e-12)
    ours = torch.autograd.grad((result * signs).sum(), tensors, retain_graph=True)
    theirs = torch.autograd.grad((expected * signs).sum(), tensors)
    for a, b in zip(ours, theirs, strict=True):
        assert a.isfinite().all() and torch.allclose(a, b, atol=1e-12)


def test_one_group_and_inference_are_full_attention() -> None:
    torch.manual_seed(0)
    config = BertConfig(**SIZE, max_position_embeddings=64, initializer_range=0.3)
    network: Any = BertModel(config, add_pooling_layer=False)
    set_dropout(network, 0.0)
    short, long = torch.randint(5, 50, (2, GROUP)), torch.randint(5, 50, (2, 21))
    mask = torch.ones_like(long)
    mask[1, 9:] = 0
    prepare_network(network, IN_GROUPS)
    ours = network.train()(short)[0], network.eval()(long, mask)[0]
    in_groups = network.train()(long, mask)[0]
    restore_network(network)
    full = network(short)[0], network(long, mask)[0]
    assert torch.allclose(ours[0], full[0], atol=1e-6)
    assert torch.allclose(ours[1][mask == 1], full[1][mask == 1], atol=1e-6)
    assert not torch.allclose(in_groups[mask == 1], full[1][mask == 1], atol=1e-2)


# --- a run ----------------------------------------------------------------------------------------


def test_embeddings_norms_and_attention_are_trained_and_the_saved_model_is_plain(
    base: Path, tmp_path: Path
) -> None:
    """Questions, and texts longer than the base's positions, in which they are found."""
    lines = ["anchor\tpositive"]
    for i, (noun, verb) in enumerate((n, v) for n in WORDS[2:8] for v in WORDS[8:13]):
        filler = TEXT.split()[i : i + 70]
        filler[i % 70 : i % 70] = ["the", noun, verb]
        lines.append(f"the {noun} {verb}\t{' '.join(filler)}")
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    config = TrainConfig(
        train=(tmp_path / "pairs.tsv",),
        out=tmp_path / "out",
        base=str(base),
        prefixes=(32,),
        window=WINDOW,
        max_tokens=WINDOW,
        attention_group=16,
        adapter_rank=2,
        dropout=0.0,
        batch_size=5,
        max_steps=6,
        learning_rate=2e-2,
        precision="fp32",  # type: ignore[arg-type]
    )
    encoder = train(config)
    network: Any = encoder.module.transformer
    assert not hasattr(network, "peft_config")
    assert all(weight.requires_grad for weight in network.parameters())
    saved = Encoder.load(config.out, runtime="torch", precision="fp32")
    assert saved.max_tokens == WINDOW
    exact = Encoder(encoder.model, "", precision="fp32")
    assert np.allclose(saved.encode([TEXT]), exact.encode([TEXT]), atol=1e-6)
    assert "adapter" not in " ".join(path.name for path in config.out.rglob("*"))
    assert "attention_group" not in (config.out / "config.json").read_text()
    before, after = (e.module.state_dict() for e in (Encoder.load(base), saved))
    assert set(before) == set(after)
    names = {
        name.removeprefix("transformer.").removesuffix(".weight")
        for name in before
        if "position" not in name and not torch.allclose(before[name], after[name], atol=1e-6)
    }
    assert {"embeddings.word_embeddings", "embeddings.LayerNorm"} < names
    parts = ("attention.self.query", "attention.self.key", "attention.self.value")
    parts += ("attention.output.dense",)
    linear = {f"encoder.layer.{i}.{part}" for i in range(2) for part in parts}
    assert {n for n in names if "encoder" in n and "LayerNorm" not in n} == linear
