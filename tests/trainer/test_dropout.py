"""Dropout: its probability, its gradient, and where it takes the place of torch's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.dropout import Dropout, dropout, set_dropout, use_dropout
from tests.tiny_model import write_sentence_transformer


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("base") / "model")


# p to 2⁻¹⁶, as values are divided by the share that is kept.
EXACT = {0.1: 6554 / 2**16, 0.5: 0.5, 0.999: 65470 / 2**16}


@pytest.mark.parametrize("p", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_dropped_evenly_and_independently(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    kept = dropout(torch.ones(400_003, dtype=dtype), p)
    values = kept.unique().tolist()
    assert values == [0, torch.ones((), dtype=dtype).div_(1 - EXACT[p]).item()]
    for place in range(4):  # each number of 64 bits serves four values
        share = (kept[place::4] == 0).float().mean().item()
        assert share == pytest.approx(EXACT[p], abs=5 * (p * (1 - p) / 100_000) ** 0.5)
    for gap in (1, 2, 3, 4):
        pairs = ((kept[gap:] == 0) & (kept[:-gap] == 0)).float().mean().item()
        assert pairs == pytest.approx(EXACT[p] ** 2, abs=0.005)


def test_the_gradient_is_that_of_the_values_kept() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    torch.manual_seed(1)
    y = dropout(x, 0.25)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, x * gradient) and gradient.unique().tolist() == [0, pytest.approx(4 / 3)]
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.25), y) and not torch.equal(dropout(x, 0.25), y)


@pytest.mark.parametrize("shape", [(0, 3), (1,), ()])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.float64)
    assert torch.equal(dropout(x, 0.0), x) and dropout(x, 0.5).shape == shape
    assert not dropout(x, 1.0).any()


def test_it_takes_the_place_of_every_layer(base: Path) -> None:
    network: Any = Encoder.load(base).module.transformer
    before = [m.p for m in network.modules() if isinstance(m, torch.nn.Dropout)]
    use_dropout(network)
    layers = [m for m in network.modules() if isinstance(m, torch.nn.Dropout)]
    assert before and {type(layer) for layer in layers} == {Dropout}
    assert [layer.p for layer in layers] == before and not any(m.training for m in layers)
    x = torch.ones(8)
    assert layers[0](x) is x and not torch.equal(Dropout(0.5)(x), x)


def test_dropout_of_hidden_states_and_of_attention(base: Path) -> None:
    network = Encoder.load(base).module.transformer
    set_dropout(network, 0.0)
    rates = [m.p for m in network.modules() if isinstance(m, torch.nn.Dropout)]
    assert rates and set(rates) == {0.0}
    network.train()
    tokens = {"input_ids": torch.tensor([[2, 6, 7, 3]]), "attention_mask": torch.ones(1, 4)}
    torch.testing.assert_close(network(**tokens)[0], network(**tokens)[0], rtol=0, atol=0)
    set_dropout(network, 0.5)
    assert not torch.equal(network(**tokens)[0], network(**tokens)[0])
