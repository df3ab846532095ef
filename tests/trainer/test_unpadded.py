"""Texts behind one another: the vectors of padded batches, by an attention within each text."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from searchengine.trainer.model.modules import (
    Batch,
    Normalize,
    Pooling,
    PoolingMode,
    SentenceModule,
    lowered,
)
from searchengine.trainer.runtimes import unpadded as unpadded_module
from searchengine.trainer.runtimes.unpadded import Unpadded, unpadded

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
NETWORKS: dict[str, dict[str, Any]] = {
    "BertConfig": {},
    "XLMRobertaConfig": {"pad_token_id": 1},  # positions begin behind it
    "RobertaConfig": {"pad_token_id": 1},
    "Qwen3Config": GROUPED,  # sees the tokens before alone
    "Qwen2Config": {"num_key_value_heads": 2},
    "LlamaConfig": {"num_key_value_heads": 2},
}
LENGTHS = (24, 1, 17, 9, 9, 3)


def within(parts: list[Tensor], starts: Tensor, longest: int, causal: bool) -> Tensor:
    """What torch's varlen_attn computes on CUDA, text by text."""
    assert starts.dtype == torch.int32 and longest >= int(starts.diff().max())
    assert int(starts[-1]) == len(parts[0]), "nothing but the tokens of texts"
    results = [
        scaled_dot_product_attention(
            *(x[start:end].transpose(0, 1) for x in parts), is_causal=causal
        ).transpose(0, 1)
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
    return torch.cat(results)


def module(kind: str, **more: Any) -> SentenceModule:
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SIZES | more)
    network = transformers.AutoModel.from_config(config)
    pooling = Pooling(32, (PoolingMode.MEAN, PoolingMode.CLS, PoolingMode.LAST_TOKEN))
    copy = SentenceModule(network, pooling, [Normalize()])
    return lowered(copy, torch.float32, torch.device("cpu"))


def batch(rows: int = len(LENGTHS)) -> Batch:
    torch.manual_seed(1)
    lengths = torch.tensor(LENGTHS[:rows])[:, None]
    mask = (torch.arange(max(LENGTHS)) < lengths).to(torch.int64)
    return Batch(torch.randint(2, 90, mask.shape) * mask + (1 - mask), mask)


@pytest.mark.parametrize(("kind", "more"), NETWORKS.items())
def test_vectors_are_those_of_padded_texts(
    kind: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpadded_module, "_within", within)
    padded, changed = module(kind, **more), unpadded(module(kind, **more))
    assert isinstance(changed.transformer, Unpadded)
    with torch.inference_mode():
        for rows in (len(LENGTHS), 2, 1):
            found, expected = changed.output(batch(rows)), padded.output(batch(rows))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("wrong", ["vectors", "error"])
def test_a_network_stays_padded_where_vectors_would_differ(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other(parts: list[Tensor], *_: Any) -> Tensor:
        if wrong == "error":
            raise ImportError("no module named varlen")
        return parts[2].flip(0)

    monkeypatch.setattr(unpadded_module, "_within", other)
    padded, same = module("BertConfig"), module("BertConfig")
    with caplog.at_level("INFO"):
        assert unpadded(same) is same
    assert caplog.messages[-1].startswith("texts are padded: ")
    assert torch.equal(same.output(batch()), padded.output(batch()))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("MPNetConfig", {}),  # its attention adds a bias for the distance of tokens
        ("ModernBertConfig", {}),  # some of its layers see neighbours alone
        ("Qwen3Config", {**GROUPED, "use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_other_networks_stay_as_they_are(
    kind: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpadded_module, "_within", within)
    network = module(kind, **more)
    assert unpadded(network) is network
