"""Longer texts, as LongLoRA (Chen et al., arXiv 2309.12307) trains a network to read them.

*Positions.* Position interpolation (Chen et al., arXiv 2306.15595) squeezes the longer text into
the positions that the network knows: token m of a window f times as long gets the position m / f.
The network must be trained a little to read them. Half of the learned positions stay as they are,
so that short texts keep the vectors that they had before any training.

*Attention.* In shifted sparse attention (S²-Attn, section 3.2) a token sees the tokens of its
group. In half of the heads the groups begin half a group earlier, so that two layers carry
information across every border. The cost grows with the length of a text, not with its square. It
is for training; the trained model has full attention. The paper rolls the tokens by half a group,
which puts the text's end and beginning into one group; here those two halves are groups of their
own, so a token's vector does not depend on the padding behind the text.

*Adapters.* LoRA (Hu et al., arXiv 2106.09685) trains a product of two thin matrices beside each
frozen one; peft merges it into the weights in the end. Longer texts also need the embeddings and
the norms to be trained, which are few weights: LoRA⁺ (section 3.3).
"""

import copy
import functools
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.layout import position_offset
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.training.train_config import TrainConfig

# Networks whose tokens all see the whole text, and whose attention transformers lets us choose.
GROUPED = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
SHIFTED = "shifted_sparse"  # the attention's name in transformers
ADAPTER_ALPHA = 16.0  # the product of an adapter is scaled by α / rank


def lengthened(model: Model, window: int) -> Model:
    """The model with a window of this many tokens, special tokens included; not trained for it.

    Up to the network's own positions only the length limit changes. Raises ModelError for a window
    that is shorter than the model's, and for a network without learned positions.
    """
    network: Any = model.module.transformer
    if window < model.max_tokens:
        raise ModelError(
            f"window is {window}: expected {model.max_tokens} or more, the tokens that the base "
            "model reads"
        )
    offset = position_offset(network.config.to_dict())
    positions = (getattr(network.config, "max_position_embeddings", None) or 0) - offset
    if window > positions:
        network = _stretched(network, window + offset, positions // 2 + offset)
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.model_max_length = window
    changed = model.module.changed(transformer=network)
    return replace(model, module=changed, tokenizer=tokenizer, max_tokens=window)


def _stretched(network: Any, rows: int, kept: int) -> Any:
    """A network of the same class and weights with `rows` positions, the first `kept` as before."""
    config = copy.deepcopy(network.config)
    config.max_position_embeddings = rows
    with torch.random.fork_rng(devices=[]):  # of the random weights that are replaced below
        longer = type(network)(config)
    if getattr(network, "pooler", None) is None and hasattr(longer, "pooler"):
        longer.pooler = None
    weights, shapes = network.state_dict(), longer.state_dict()
    tables = [name for name in weights if weights[name].shape != shapes[name].shape]
    if not tables:
        raise ModelError(
            f"window: a {config.model_type} network has no learned positions to interpolate; leave "
            "it out"
        )
    for name in tables:
        weights[name] = interpolated(weights[name], rows, kept)
    longer.load_state_dict(weights)
    return longer.to(network.dtype)


def interpolated(table: Tensor, rows: int, kept: int = 0) -> Tensor:
    """A table of learned positions with more rows: (n, H) to (rows, H).

    The first `kept` rows stay. Row m behind them is at (m − kept) · (n − kept) / (rows − kept) in
    the rest of the old table, linear between two rows; behind the last one it is the last.
    """
    old = table[kept:]
    at = torch.arange(rows - kept, dtype=torch.float64) * (len(old) / (rows - kept))
    low = at.long()
    share = (at - low).unsqueeze(1).to(table)
    high = (low + 1).clamp(max=len(old) - 1)
    return torch.cat([table[:kept], torch.lerp(old[low], old[high], share)])


def prepare_network(network: Any, config: TrainConfig) -> None:
    """Give a network the attention and the adapters of a run, until `restore_network`.

    Raises ModelError for groups in other networks than GROUPED.
    """
    if config.attention_group:
        kind = network.config.model_type
        if kind not in GROUPED:
            raise ModelError(
                f"attention_group is for {', '.join(GROUPED)} networks, not for {kind}: leave it "
                "out"
            )
        attention = functools.partial(shifted_sparse, group=config.attention_group)
        AttentionInterface.register(SHIFTED, attention)
        AttentionMaskInterface.register(SHIFTED, padding_mask)
        network.set_attn_implementation(SHIFTED)
    if config.adapter_rank:
        add_adapters(network, config.adapter_rank, config.seed)


def add_adapters(network: Any, rank: int, seed: int) -> None:
    """Put adapters beside the linear layers of the attention, in place; freeze the rest.

    Embeddings and norms stay trainable (LoRA⁺). The network's output is as before.
    """
    import peft

    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    targets = [name for name in linear if re.search("attention|attn", name.lower())]
    adapters = peft.LoraConfig(r=rank, lora_alpha=ADAPTER_ALPHA, target_modules=targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(adapters, network)
    for module in network.modules():
        if isinstance(module, nn.Embedding) or "norm" in type(module).__name__.lower():
            module.requires_grad_(True)


def restore_network(network: Any) -> None:
    """Leave nothing of `prepare_network` but its effect on the weights; the vectors stay."""
    network.requires_grad_(True)
    if network.config._attn_implementation == SHIFTED:
        network.set_attn_implementation("sdpa")
    if hasattr(network, "peft_config"):
        for name, module in list(network.named_modules()):
            if hasattr(module, "lora_A"):
                module.merge()
                network.set_submodule(name, module.get_base_layer())
        del network.peft_config


def padding_mask(*, attention_mask: Tensor | None = None, **unused: Any) -> Tensor | None:
    """(B, 1, 1, T) bool, true on real tokens; None where all are. For all queries the same.

    transformers calls it with the (B, T) mask of a batch.
    """
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
    group: int,
    scaling: float | None = None,
    dropout: float = 0.0,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, within groups of `group` tokens.

    query, key, value: (B, heads, T, d). attention_mask: as `padding_mask` gives it. Full attention
    in a module that is not in training, and for texts not longer than a group. Returns
    (B, T, heads, d).
    """
    attend: Any = functools.partial(scaled_dot_product_attention, dropout_p=dropout, scale=scaling)
    half, tokens = query.shape[1] // 2, query.shape[2]
    if not module.training or tokens <= group:
        return attend(query, key, value, attention_mask).transpose(1, 2), None
    real = query.new_ones(len(query), 1, 1, tokens, dtype=torch.bool)
    if attention_mask is not None:
        real = attention_mask

    def grouped(heads: slice, shift: int) -> Any:
        """(B, h, T, d): groups begin `shift` tokens earlier; both ends are padded to whole ones."""
        around = shift, -(shift + tokens) % group
        rows = [  # (B · groups, h, group, d)
            torch.unflatten(pad(x[:, heads], (0, 0, *around)), 2, (-1, group))
            .transpose(1, 2)
            .flatten(0, 1)
            for x in (query, key, value)
        ]
        mask = pad(real, around).view(-1, 1, 1, group)  # a group of nothing but padding gives zeros
        result = attend(*rows, mask).unflatten(0, (len(query), -1))
        return result.transpose(1, 2).flatten(2, 3)[:, :, shift : shift + tokens]

    halves = grouped(slice(half), group // 2), grouped(slice(half, None), 0)
    return torch.cat(halves, dim=1).transpose(1, 2), None
