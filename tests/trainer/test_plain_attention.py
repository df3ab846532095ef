"""Attention by plain products: torch's own in values and gradients, and where it is left alone."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from searchengine.trainer.training import attention
from searchengine.trainer.training.attention import LONGEST, plain_if_short
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS, write_plain

LAYER: Any = SimpleNamespace(is_causal=False)


def inputs(tokens: int, keys: int = 4, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(3, heads, tokens, 8) for heads in (4, keys, keys)]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [each.requires_grad_() for each in made]


def padding(tokens: int) -> Tensor:
    lengths = torch.tensor([tokens, tokens - 3, 2])
    return (torch.arange(tokens) < lengths[:, None])[:, None, None, :].expand(3, 1, tokens, tokens)


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril().expand(3, 1, tokens, tokens)


@pytest.mark.parametrize("mask", [None, padding, causal])
@pytest.mark.parametrize("scaling", [None, 0.5])
@pytest.mark.parametrize("keys", [4, 2])
def test_values_and_gradients_are_those_of_float32(mask: Any, scaling: Any, keys: int) -> None:
    tensors = inputs(9, keys)
    exact = [each.detach().float().requires_grad_() for each in tensors]
    seen = mask and mask(9)
    ours, _ = plain_if_short(LAYER, *tensors, seen, scaling=scaling)
    layer: Any = SimpleNamespace(is_causal=False, num_key_value_groups=4 // keys)
    theirs, _ = sdpa_attention_forward(layer, *exact, seen, scaling=scaling)
    assert ours.dtype == torch.bfloat16 and ours.shape == theirs.shape
    signs = torch.sign(theirs.detach())
    gradients = torch.autograd.grad((ours * signs).sum(), tensors)
    expected = torch.autograd.grad((theirs * signs).sum(), exact)
    for a, b in zip((ours, *gradients), (theirs, *expected), strict=True):
        assert torch.allclose(a.float(), b, atol=0.02, rtol=0.02)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch's fused attention was called with."""
    calls: list[Any] = []

    def called(*given: Any, **named: Any) -> tuple[str, None]:
        calls.append((given, named))
        return "fused", None

    monkeypatch.setattr(attention, "sdpa_attention_forward", called)
    return calls


def test_other_calls_are_passed_on_as_they_are(fused: list[Any]) -> None:
    short, mask = inputs(5), padding(5)
    decoder: Any = SimpleNamespace(is_causal=True)
    bias = torch.zeros(1, 4, 5, 5)
    calls: list[tuple[list[Any], dict[str, Any]]] = [
        ([LAYER, *inputs(5, dtype=torch.float32), mask], {}),
        ([LAYER, *inputs(LONGEST + 1), None], {}),
        ([decoder, *short, None], {}),
        ([LAYER, *short, None], {"is_causal": True}),
        ([LAYER, *short, mask], {"position_bias": bias}),
        ([LAYER, *short, mask], {"softcap": 30.0}),
        ([LAYER, *short, mask.to(torch.bfloat16)], {}),  # to add to the scores
        ([LAYER, *(each.to("meta") for each in short), mask], {}),
    ]
    for given, named in calls:
        assert plain_if_short(*given, dropout=0.1, scaling=0.5, **named)[0] == "fused"
        (passed, beside), is_causal = fused.pop(), named.pop("is_causal", None)
        assert passed == (*given, 0.1, 0.5, is_causal) and beside == named
    plain_if_short(LAYER, *inputs(LONGEST), None)
    plain_if_short(decoder, *short, causal(5))
    plain_if_short(decoder, *short, None, is_causal=False)
    assert not fused


def test_rotary_positions_leave_float32_under_autocast(fused: list[Any]) -> None:
    query, key, value = inputs(9)
    exact, _ = plain_if_short(LAYER, query, key, value, padding(9))
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = plain_if_short(LAYER, query.float(), key.float(), value, padding(9))
    assert not fused and ours.dtype == torch.bfloat16
    assert torch.allclose(ours.float(), exact.float(), atol=0.02, rtol=0.02)
    with torch.autocast("cpu", torch.float16):
        assert plain_if_short(LAYER, query, key, value, None)[0] == "fused"


def test_dropout_takes_shares_at_random_and_keeps_their_mean() -> None:
    query, key, _ = inputs(64)
    value = torch.ones(3, 4, 64, 8, dtype=torch.bfloat16)
    whole, _ = plain_if_short(LAYER, query, key, value, None)
    torch.manual_seed(0)
    dropped, _ = plain_if_short(LAYER, query, key, value, None, dropout=0.5)
    torch.manual_seed(0)
    again, _ = plain_if_short(LAYER, query, key, value, None, dropout=0.5)
    assert torch.allclose(whole.float(), torch.ones(()), atol=0.02)
    assert torch.equal(dropped, again) and dropped.float().std() > 0.1
    assert abs(dropped.float().mean() - 1) < 0.05


def run(tmp_path: Path, name: str) -> Any:
    base = write_plain(tmp_path / name)
    data = tmp_path / "pairs.tsv"
    rows = [f"the {a}\ta {b}" for a, b in itertools.pairwise(WORDS)][:12]
    data.write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    config = TrainConfig(
        train=[data],
        out=tmp_path / f"{name}-out",
        base=str(base),
        batch_size=4,
        max_steps=3,
        learning_rate=1e-3,
        dropout=0.0,
        precision="bf16",
    )
    losses: list[float] = []
    encoder = train(config, lambda line: line.loss is not None and losses.append(line.loss))
    return encoder, losses


def test_training_uses_it_and_gives_the_network_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = 0
    real = plain_if_short

    def counted(module: Any, query: Tensor, *rest: Any, **named: Any) -> Any:
        nonlocal gradients
        gradients += query.requires_grad and query.dtype == torch.bfloat16
        return real(module, query, *rest, **named)

    monkeypatch.setattr(attention, "plain_if_short", counted)
    encoder, losses = run(tmp_path, "plain")
    assert gradients >= 3
    network: Any = encoder.model.module.transformer
    assert network.config._attn_implementation == "sdpa"
    monkeypatch.setattr("searchengine.trainer.training.preparation.use_plain", lambda network: None)
    monkeypatch.setattr("searchengine.trainer.training.preparation.use_plain", lambda network: None)
    _, expected = run(tmp_path, "fused")
    assert losses and losses == pytest.approx(expected, rel=0.02)


def test_a_network_with_another_attention_keeps_it() -> None:
    network: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation="eager"))
    attention.use_plain(network)
    attention.restore(network)
    assert network.config._attn_implementation == "eager"
