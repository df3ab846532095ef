"""Low-rank adapters of a network in training, merged into its weights in the end, by peft.

LoRA (Hu et al., arXiv 2106.09685) trains a product of two thin matrices beside each frozen one.
LongLoRA (arXiv 2309.12307, section 3.3) found that longer texts also need the embeddings and the
norms to be trained, which are few weights: LoRA⁺.
"""

from typing import Any

import torch
from torch import nn

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.config import TrainConfig

ADAPTER = "default"  # peft's name for the only one
# What the modules around a linear layer of the attention are called, in lower case.
ATTENTION = ("attention", "attn")


def add_adapters(network: Any, config: TrainConfig) -> None:
    """Put adapters beside the linear layers of the attention, in place; freeze the rest.

    With `adapter_extras` embeddings and norms stay trainable. The network's output is as before.
    Raises ConfigError without peft, or for a network whose attention cannot be identified.
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
        lora_alpha=config.adapter_alpha,
        target_modules=targets,
        lora_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        peft.LoraModel(network, adapters, ADAPTER)  # changes the network itself
    if config.adapter_extras:
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
