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
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function

from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.model.layout import position_offset
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.network import quiet
from searchengine.trainer.training.train_config import TrainConfig

# The ways of computing rotary angles that a further factor can be multiplied into.
SCALABLE = ("default", "linear")
# The name of the attention in transformers, and the entry of a network's configuration with the
# tokens of a group.
SHIFTED, GROUP = "shifted_sparse", "attention_group"
ADAPTER = "default"  # peft's name for the only one
ADAPTER_ALPHA = 16.0  # the product of an adapter is scaled by α / rank
# Names of the modules around a linear layer of the attention, in lower case.
ATTENTION = ("attention", "attn")


def lengthened(model: Model, window: int, kept: int | None = None) -> Model:
    """The model with a window of this many tokens, special tokens included; not trained for it.

    kept: number of learned positions that stay; None: half of them. Up to the network's own
    positions only the length limit changes. Raises ModelError for a window that is shorter than the
    model's, a network without absolute positions, and one that has no more than `kept`.
    """
    network: Any = model.module.transformer
    if window < model.max_tokens:
        raise ModelError(
            f"window is {window}: expected {model.max_tokens} or more, the tokens that the base "
            "model reads"
        )
    positions = getattr(network.config, "max_position_embeddings", None) or 0
    if not positions:
        raise ModelError(
            f"window: a {network.config.model_type} network has no absolute positions to "
            "interpolate; leave it out"
        )
    positions -= position_offset(network.config.to_dict())
    if window > positions:
        network = _stretched(network, window, positions, kept)
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.model_max_length = window
    changed = model.module.changed(transformer=network)
    return replace(model, module=changed, tokenizer=tokenizer, max_tokens=window)


def _stretched(network: Any, window: int, positions: int, kept: int | None) -> Any:
    """A network of the same class and weights for `window` tokens instead of `positions`."""
    kept = positions // 2 if kept is None else kept
    config = copy.deepcopy(network.config)
    offset = position_offset(config.to_dict())
    config.max_position_embeddings = window + offset
    # Rotary positions of all layers, or of the layers with full attention.
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in rope and "rope_theta" not in rope:
        rope = rope.get("full_attention") or {}
    if rope:
        if rope.get("rope_type", "default") not in SCALABLE:
            raise ModelError(
                f"window: the rotary positions of this {config.model_type} network are scaled by "
                f"{rope['rope_type']!r}; expected one of {', '.join(SCALABLE)}"
            )
        rope |= {"rope_type": "linear", "factor": rope.get("factor", 1.0) * window / positions}
    with torch.random.fork_rng(devices=[]):  # of the random weights that are replaced below
        longer = type(network)(config)
    if getattr(network, "pooler", None) is None and hasattr(longer, "pooler"):
        longer.pooler = None
    weights, shapes = network.state_dict(), longer.state_dict()
    tables = [name for name in weights if weights[name].shape != shapes[name].shape]
    if not tables and not rope:
        raise ModelError(
            f"window: a {config.model_type} network has neither learned positions nor rotary ones "
            "that this program knows; leave it out"
        )
    for name in tables:
        weights[name] = interpolated(weights[name], window + offset, kept + offset)
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
    """Give a network the attention and the adapters of a run. Raises as the two functions."""
    if config.attention_group:
        use_groups(network, config.attention_group)
    if config.adapter_rank:
        add_adapters(network, config)


def use_groups(network: Any, group: int) -> None:
    """Train a network with groups of this many tokens, until `use_full_attention`.

    Raises ModelError for a network that does not let transformers choose its attention, or whose
    layers see only neighbours as they are.
    """
    kind = network.config.model_type
    if "sliding_attention" in (getattr(network.config, "layer_types", None) or ()):
        raise ModelError(
            f"attention_group: in a {kind} network some layers see a token's neighbours alone; "
            "leave it out"
        )
    AttentionInterface.register(SHIFTED, shifted_sparse)
    AttentionMaskInterface.register(SHIFTED, padding_mask)
    with quiet():  # it only warns where it cannot
        network.set_attn_implementation(SHIFTED)
    if network.config._attn_implementation != SHIFTED:
        raise ModelError(f"attention_group: a {kind} network has an attention of its own")
    setattr(network.config, GROUP, group)


def use_full_attention(network: Any) -> None:
    """Undo `use_groups`: the attention that transformers chooses."""
    if getattr(network.config, "_attn_implementation", None) == SHIFTED:
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

    query: (B, heads, T, d). key, value: the same, or with fewer heads, each for several of the
    query's. attention_mask: as `padding_mask` gives it. Full attention in a module that is not in
    training, and for texts not longer than a group. Returns (B, T, heads, d).
    """
    if position_bias is not None:
        raise ModelError(f"{SHIFTED} attention cannot add a bias for the distance of two tokens")
    tokens, heads = query.shape[2], query.shape[1]
    key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scaling}
    group = getattr(module.config, GROUP)
    if not module.training or tokens <= group:
        result = scaled_dot_product_attention(query, key, value, attention_mask, **options)
        return result.transpose(1, 2), None
    real = query.new_ones(len(query), 1, 1, tokens, dtype=torch.bool)
    if attention_mask is not None:
        real = attention_mask
    half = heads // 2
    parts = [
        _grouped([x[:, part] for x in (query, key, value)], real, group, shift, options)
        for part, shift in ((slice(half), group // 2), (slice(half, heads), 0))
        if query[:, part].shape[1]
    ]
    return torch.cat(parts, dim=1).transpose(1, 2), None


def _grouped(
    tensors: list[Tensor], real: Tensor, group: int, shift: int, options: dict[str, Any]
) -> Tensor:
    """(B, h, T, d): attention within groups of `group` tokens, which begin `shift` tokens earlier.

    tensors: query, key, value, each (B, h, T, d); they are padded on both sides to whole groups.
    real: (B, 1, 1, T) bool, false on padding; a group of nothing but padding gives zeros.
    """
    batch, heads, tokens, width = tensors[0].shape
    around = shift, -(shift + tokens) % group
    in_groups = batch, heads, -1, group, width
    padded = (pad(x, (0, 0, *around)).reshape(in_groups) for x in tensors)
    query, key, value = (
        x.transpose(1, 2).flatten(0, 1) for x in padded
    )  # (B · groups, h, group, d)
    mask = pad(real, around).view(-1, 1, 1, group)
    result = scaled_dot_product_attention(query, key, value, mask, **options)
    result = result.reshape(batch, -1, heads, group, width).transpose(1, 2)
    return result.reshape(batch, heads, -1, width)[:, :, shift : shift + tokens]


def add_adapters(network: Any, config: TrainConfig) -> None:
    """Put adapters beside the linear layers of the attention, in place; freeze the rest.

    Embeddings and norms stay trainable (LoRA⁺). The network's output is as before.
    Raises ConfigError for a network whose attention cannot be identified.
    """
    import peft

    targets = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and any(word in name.lower() for word in ATTENTION)
    ]
    if not targets:
        raise ConfigError(
            f"adapter_rank: the attention of a {network.config.model_type} network cannot be "
            "identified; leave it out"
        )
    adapters = peft.LoraConfig(
        r=config.adapter_rank,
        lora_alpha=ADAPTER_ALPHA,
        target_modules=targets,
        lora_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        peft.LoraModel(network, adapters, ADAPTER)  # changes the network itself
    for module in network.modules():
        if isinstance(module, nn.Embedding) or "norm" in type(module).__name__.lower():
            module.requires_grad_(True)


def merge_adapters(network: Any) -> None:
    """Add every adapter's product to its matrix, in place, and remove it.

    The vectors stay the same but for rounding.
    """
    import peft

    for name, module in list(network.named_modules()):
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
            network.set_submodule(name, module.get_base_layer())
    if hasattr(network, "peft_config"):
        del network.peft_config
