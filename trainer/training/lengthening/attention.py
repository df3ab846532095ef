"""Shifted sparse attention (S²-Attn): groups of tokens in training, full attention at inference.

Chen et al., LongLoRA, arXiv 2309.12307, section 3.2. A token sees the tokens of its group. In half
of the heads the groups begin half a group earlier, so that two layers carry information across
every border. The cost grows with the length of a text, not with its square.

    register()
    network = AutoModel.from_pretrained(folder, attn_implementation="shifted_sparse")

The paper rolls the tokens by half a group, which puts the text's end and beginning into one group;
here those two halves are groups of their own. So nothing is rolled, the end of a text and the
padding behind it never mix with its beginning, and what a text gets does not depend on the padding.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.network import quiet

NAME = "shifted_sparse"
# The entry of a network's configuration with the tokens of a group.
GROUP = "attention_group"
# Groups of a text where the configuration names no size; the paper's.
DEFAULT_GROUPS = 4


def register() -> None:
    """Make the name known to transformers."""
    AttentionInterface.register(NAME, shifted_sparse)
    AttentionMaskInterface.register(NAME, padding_mask)


def use(network: Any, group: int) -> None:
    """Train a network with groups of this many tokens, until `restore`.

    Raises ModelError for a network that transformers gives no choice of attention, or whose layers
    see only neighbours as they are.
    """
    kind = network.config.model_type
    if "sliding_attention" in (getattr(network.config, "layer_types", None) or ()):
        raise ModelError(
            f"attention_group: in a {kind} network some layers see a token's neighbours alone; "
            "leave it out"
        )
    register()
    with quiet():  # it only warns where it cannot
        network.set_attn_implementation(NAME)
    if network.config._attn_implementation != NAME:
        raise ModelError(f"attention_group: a {kind} network has an attention of its own")
    setattr(network.config, GROUP, group)


def restore(network: Any) -> None:
    """Undo `use`: the attention that transformers chooses, and nothing in the configuration."""
    if network.config._attn_implementation == NAME:
        network.set_attn_implementation("sdpa" if network._supports_sdpa else "eager")
        delattr(network.config, GROUP)


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
        raise ModelError(f"{NAME} attention is for encoders whose tokens see the whole text")
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

    query, key, value: (B, heads, T, d). attention_mask: (B, 1, 1 or T, T), bool with true for what
    is seen, or added to the scores; a mask of T × T keeps packed documents apart. Full attention in
    a module that is not in training, and for texts of up to a group. Returns (B, T, heads, d).
    """
    if position_bias is not None:
        raise ModelError(f"{NAME} attention cannot add a bias for the distance of two tokens")
    tokens, heads = query.shape[2], query.shape[1]
    if key.shape[1] != heads:  # fewer heads of keys: each serves several of the queries
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
