"""Attention of training on a processor: plain matrix products for short texts in bf16.

torch's fused attention saves memory, which long texts need. But in bf16 on a processor its backward
pass takes up to ten times as long for sentences, and it is not fused with dropout (torch 2.13).
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from searchengine.trainer.model.network import quiet

NAME = "plain_if_short"
LONGEST = 512
"""Maximum tokens of a short text. At 1,024, plain attention saves no time and needs more memory."""
# Arguments of some networks that only torch's fused attention follows.
_FUSED_ONLY = ("cache", "position_bias", "softcap")


def use(network: Any) -> None:
    """Let a network train with plain attention, if it has torch's fused one and can change it."""
    if getattr(network.config, "_attn_implementation", None) != "sdpa":  # or no transformer
        return
    AttentionInterface.register(NAME, plain_if_short)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    with quiet():  # it only warns where it cannot
        network.set_attn_implementation(NAME)


def restore(network: Any) -> None:
    """Undo `use`."""
    if getattr(network.config, "_attn_implementation", None) == NAME:
        network.set_attn_implementation("sdpa")


def plain_if_short(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it.

    query, key, value: (B, heads, T, d); keys and values may have fewer heads. attention_mask: bool
    (B, 1, T, T), true where a token sees another. Without a mask a token sees all others, or in a
    decoder those before it. Returns (B, T, heads, d).
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if (
        query.device.type != "cpu"
        or _computed(query) != torch.bfloat16
        or key.shape[2] > LONGEST
        or (causal if attention_mask is None else attention_mask.dtype != torch.bool)
        or any(more.get(name) is not None for name in _FUSED_ONLY)
    ):
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
        )
    key, value = (repeat_kv(x, query.shape[1] // x.shape[1]) for x in (key, value))
    scores = (query * (scaling or query.shape[-1] ** -0.5)) @ key.transpose(2, 3)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    shares = torch.nn.functional.dropout(scores.softmax(-1), dropout)
    return (shares @ value).transpose(1, 2).contiguous(), None


def _computed(query: Tensor) -> torch.dtype:
    """The type that it is multiplied in; rotary positions leave float32 under autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
