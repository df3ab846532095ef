"""Attention of training: plain matrix products for short texts, shifted groups for long ones.

*Plain.* torch's fused attention saves memory, which long texts need. But in bf16 on a processor its
backward pass takes up to ten times as long for sentences, and it is not fused with dropout (torch
2.13).

*Shifted sparse attention* (S²-Attn; Chen et al., LongLoRA, arXiv 2309.12307, section 3.2). A token
sees the tokens of its group. In half of the heads the groups begin half a group earlier, so that
two layers carry information across every border. The cost grows with the length of a text, not with
its square. It is for training; the trained model has full attention.

    register()
    network = AutoModel.from_pretrained(folder, attn_implementation="shifted_sparse")

The paper rolls the tokens by half a group, which puts the text's end and beginning into one group;
here those two halves are groups of their own. So nothing is rolled, the end of a text and the
padding behind it never mix with its beginning, and a token's vector does not depend on the padding.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.network import quiet
from searchengine.trainer.training.dropout import dropout as drop

PLAIN, SHIFTED = "plain_if_short", "shifted_sparse"
LONGEST = 512
"""Maximum tokens of a short text. At 1,024, plain attention saves no time and needs more memory."""
# Arguments of some networks that only torch's fused attention follows.
_FUSED_ONLY = ("cache", "position_bias", "softcap")
# The entry of a network's configuration with the tokens of a group.
GROUP = "attention_group"
# Groups of a text if the configuration names no size; the paper's.
DEFAULT_GROUPS = 4


def use_plain(network: Any) -> None:
    """Let a network train with plain attention, if it has torch's fused one and can change it."""
    if getattr(network.config, "_attn_implementation", None) != "sdpa":  # or no transformer
        return
    AttentionInterface.register(PLAIN, plain_if_short)
    AttentionMaskInterface.register(PLAIN, sdpa_mask)
    with quiet():  # it only warns where it cannot
        network.set_attn_implementation(PLAIN)


def use_groups(network: Any, group: int) -> None:
    """Train a network with groups of this many tokens, until `restore`.

    Raises ModelError for a network that does not let transformers choose its attention, or whose
    layers see only neighbours as they are.
    """
    kind = network.config.model_type
    if "sliding_attention" in (getattr(network.config, "layer_types", None) or ()):
        raise ModelError(
            f"attention_group: in a {kind} network some layers see a token's neighbours alone; "
            "leave it out"
        )
    register()
    with quiet():  # it only warns where it cannot
        network.set_attn_implementation(SHIFTED)
    if network.config._attn_implementation != SHIFTED:
        raise ModelError(f"attention_group: a {kind} network has an attention of its own")
    setattr(network.config, GROUP, group)


def restore(network: Any) -> None:
    """Undo `use_plain` and `use_groups`: the attention that transformers chooses."""
    kind = getattr(network.config, "_attn_implementation", None)
    if kind == PLAIN:
        network.set_attn_implementation("sdpa")
    elif kind == SHIFTED:
        network.set_attn_implementation("sdpa" if network._supports_sdpa else "eager")
        delattr(network.config, GROUP)


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
        or _compute_type(query) != torch.bfloat16
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
    shares = drop(scores.softmax(-1), dropout)
    return (shares @ value).transpose(1, 2).contiguous(), None


def _compute_type(query: Tensor) -> torch.dtype:
    """The type of the matrix products; rotary positions leave float32 under autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype


def register() -> None:
    """Make shifted sparse attention known to transformers, by its name."""
    AttentionInterface.register(SHIFTED, shifted_sparse)
    AttentionMaskInterface.register(SHIFTED, padding_mask)


def padding_mask(
    *,
    mask_function: Any = bidirectional_mask_function,
    attention_mask: Tensor | None = None,
    **unused: Any,
) -> Tensor | None:
    """(B, 1, 1, T) bool, true on real tokens; None where all are. For all queries the same.

    transformers calls it with the (B, T) mask of a batch. Raises ModelError for a network whose
    tokens see less than the whole text.
    """
    if mask_function is not bidirectional_mask_function:
        raise ModelError(f"{SHIFTED} attention is for encoders whose tokens see the whole text")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, None, None, :].bool()


def shifted_sparse(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it.

    query, key, value: (B, heads, T, d). attention_mask: (B, 1, 1 or T, T), bool, true where a
    token sees another, or added to the scores; a mask of T × T keeps packed documents apart. Full
    attention in a module that is not in training, and for texts not longer than a group. Returns
    (B, T, heads, d).
    """
    if position_bias is not None:
        raise ModelError(f"{SHIFTED} attention cannot add a bias for the distance of two tokens")
    tokens, heads = query.shape[2], query.shape[1]
    if key.shape[1] != heads:  # fewer heads of keys, each for several of the queries
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    mask = None if attention_mask is None else _added(attention_mask, query.dtype)
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scaling}
    group = getattr(module.config, GROUP, None) or -(-tokens // DEFAULT_GROUPS)
    if not module.training or tokens <= group:
        result = scaled_dot_product_attention(query, key, value, mask, **options)
        return result.transpose(1, 2), None
    half = heads // 2
    parts = [
        _grouped([x[:, chosen] for x in (query, key, value)], mask, group, first, options)
        for chosen, first in ((slice(half, None), 0), (slice(half), group - group // 2))
        if query[:, chosen].shape[1]
    ]
    return torch.cat(parts[::-1], dim=1).transpose(1, 2), None


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores: finite, as a group may be nothing but padding."""
    if mask.dtype != torch.bool:
        return mask.to(dtype).clamp(min=torch.finfo(dtype).min)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _grouped(
    tensors: list[Tensor], mask: Tensor | None, group: int, first: int, options: dict[str, Any]
) -> Tensor:
    """(B, h, T, d): attention within a group of the `first` tokens and groups of `group` tokens.

    The last group may be shorter. tensors: query, key, value, each (B, h, T, d).
    """
    batch, heads, tokens, width = tensors[0].shape
    last = tokens - (tokens - first) % group
    results = []
    for start, end, size in ((0, first, first), (first, last, group), (last, tokens, group)):
        if start == end:
            continue
        size = min(size, end - start)
        query, key, value = (
            x[:, :, start:end].reshape(batch, heads, -1, size, width).transpose(1, 2).flatten(0, 1)
            for x in tensors
        )  # each (B · groups, h, size, d)
        of_groups = None if mask is None else _mask_blocks(mask, start, end, size)
        result = scaled_dot_product_attention(query, key, value, of_groups, **options)
        result = result.reshape(batch, -1, heads, size, width).transpose(1, 2)
        results.append(result.reshape(batch, heads, end - start, width))
    return torch.cat(results, dim=2)


def _mask_blocks(mask: Tensor, start: int, end: int, size: int) -> Tensor:
    """(B · groups, 1, 1 or size, size): the part of a mask that each group sees."""
    batch, count = len(mask), (end - start) // size
    if mask.shape[2] == 1:
        return mask[..., start:end].reshape(batch * count, 1, 1, size)
    squares = mask[:, 0, start:end, start:end].reshape(batch, count, size, count, size)
    diagonal = squares.diagonal(dim1=1, dim2=3)  # (B, size, size, groups)
    return diagonal.permute(0, 3, 1, 2).reshape(batch * count, 1, size, size)
