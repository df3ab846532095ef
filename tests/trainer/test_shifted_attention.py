"""Shifted sparse attention: equal to its definition written out, and where it must be full."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    MPNetConfig,
    MPNetModel,
)

from searchengine.trainer.errors import ModelError
from searchengine.trainer.training.longlora import (
    padding_mask,
    prepare_network,
    restore_network,
    shifted_sparse,
)
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import set_dropout

GROUP = 4


LAYER = SimpleNamespace(training=True)
CONFIG = TrainConfig(train=["x"], out="y", attention_group=GROUP)  # type: ignore[arg-type]


def inputs(batch: int, heads: int, tokens: int) -> list[Tensor]:
    torch.manual_seed(tokens)
    shape = batch, heads, tokens, 3
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]


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
    tensors = inputs(3, heads, tokens)
    lengths = torch.tensor([tokens, max(1, tokens - 3), 2])
    real = torch.arange(tokens) < lengths[:, None]
    result, _ = shifted_sparse(LAYER, *tensors, padding_mask(attention_mask=real), group=group)
    if tokens <= group:
        group = 2 * tokens + group  # one group, and no border that is shifted into the text
    expected = reference(tensors, real[:, None, :], group)
    signs = torch.randn_like(expected) * real[:, :, None, None]
    assert torch.allclose(result * (signs != 0), expected * (signs != 0), atol=1e-12)
    ours = torch.autograd.grad((result * signs).sum(), tensors, retain_graph=True)
    theirs = torch.autograd.grad((expected * signs).sum(), tensors)
    for a, b in zip(ours, theirs, strict=True):
        assert a.isfinite().all() and torch.allclose(a, b, atol=1e-12)


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    network = BertModel(config, add_pooling_layer=False)
    set_dropout(network, 0.0)
    return network.train()


@pytest.fixture
def sparse(network: Any) -> Any:
    prepare_network(network, CONFIG)
    yield network.train()
    restore_network(network)


def ids(*shape: int) -> Tensor:
    return torch.randint(5, 50, shape, generator=torch.Generator().manual_seed(1))


def test_one_group_and_inference_are_full_attention(network: Any, sparse: Any) -> None:
    short, long = ids(2, GROUP), ids(2, 21)
    mask = torch.ones_like(long)
    mask[1, 9:] = 0
    ours = sparse(short)[0], sparse.eval()(long, mask)[0]
    in_groups = sparse.train()(long, mask)[0]
    restore_network(network)
    full = network(short)[0], network(long, mask)[0]
    assert torch.allclose(ours[0], full[0], atol=1e-6)
    assert torch.allclose(ours[1][mask == 1], full[1][mask == 1], atol=1e-6)
    assert not torch.allclose(in_groups[mask == 1], full[1][mask == 1], atol=1e-2)


def test_other_networks_are_refused() -> None:
    size = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    mpnet = MPNetModel(MPNetConfig(**size, intermediate_size=64))
    with pytest.raises(ModelError, match=r"attention_group is for bert, .* not for mpnet"):
        prepare_network(mpnet, CONFIG)
