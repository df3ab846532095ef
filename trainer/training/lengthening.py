"""Longer texts: interpolated positions, and low-rank adapters that are cheap to train (LongLoRA).

*Positions.* Position interpolation (Chen et al., arXiv 2306.15595) squeezes the longer text into
the positions that the network knows: token m of a window f times as long gets the position m / f.
The network must be trained a little to read them. Half of the learned positions stay as they are by
default, so that short texts keep the vectors that they had before any training.

*Adapters.* LoRA (Hu et al., arXiv 2106.09685) trains a product of two thin matrices beside each
frozen one; peft merges it into the weights in the end. LongLoRA (arXiv 2309.12307, section 3.3)
found that longer texts also need the embeddings and the norms to be trained, which are few weights:
LoRA⁺.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.model.layout import position_offset
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.training.train_config import TrainConfig

# The ways of computing rotary angles that a further factor can be multiplied into.
SCALABLE = ("default", "linear")
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
    if window < model.max_tokens:
        raise ModelError(
            f"window is {window}: expected {model.max_tokens} or more, the tokens that the base "
            "model reads"
        )
    module = model.module
    config: Any = module.transformer.config
    positions = getattr(config, "max_position_embeddings", None) or 0
    network: Any = module.transformer
    if not positions:
        raise ModelError(
            f"window: a {network.config.model_type} network has no absolute positions to "
            "interpolate; leave it out"
        )
    positions -= position_offset(config.to_dict())
    if window > positions:
        network = _stretched(network, window, positions, kept)
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.model_max_length = window
    changed = module.changed(transformer=network)
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

    layer_type = peft.tuners.lora.LoraLayer
    for name, module in list(network.named_modules()):
        if isinstance(module, layer_type):
            module.merge()
            network.set_submodule(name, module.get_base_layer())
    if hasattr(network, "peft_config"):
        del network.peft_config
