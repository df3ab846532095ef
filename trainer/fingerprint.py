"""Fingerprints of models: sha256 (hex) of everything that decides the vector of a text.

The same of a folder and of the model in memory, before a save and after a load, on any device.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from searchengine.trainer.model.bert import POOLING, Bert, Network, OtherModelError
from searchengine.trainer.model.tokens import Description, normalised

if TYPE_CHECKING:  # which is torch
    from searchengine.trainer.model.model_folder import Model

# Entries of a network's configuration that change no vector: its origin, the types in which it is
# stored and computed, its training, and what follows the hidden states.
NO_EFFECT = frozenset({
    "architectures", "attn_implementation", "auto_map", "custom_pipelines", "dtype",
    "finetuning_task", "gradient_checkpointing", "id2label", "label2id", "num_labels",
    "output_attentions", "output_hidden_states", "problem_type", "reference_compile", "return_dict",
    "task_specific_params", "tie_word_embeddings", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "use_cache",
})  # fmt: skip
NO_EFFECT_PREFIXES = ("_", "classifier_", "initializer_")


def of_folder(bert: Bert) -> str:
    """The fingerprint of a model of BERT's kind, from its folder. Raises ModelError."""
    head = ["unit" if layer is None else layer.activation for layer in bert.head]
    values = {"network": asdict(bert.network), "pooling": list(bert.pooling), "head": head}
    return _digest(bert.named_tensors(), values, bert.description)


def of_static(table: NDArray[np.float32], description: Description) -> str:
    """The fingerprint of a static model, whose table is (tokens, dim)."""
    return _digest([("table", table)], {"network": "static"}, description)


def of_model(model: "Model", description: Description) -> str:
    """The fingerprint of a model in memory; for one of BERT's kind equal to that of its folder."""
    module: Any = model.module
    config, stored = module.transformer.config, module.state_dict()
    pooling = [*module.pooling.modes]
    names = {name: name for name in sorted(stored)}
    values: dict[str, Any] = {
        "network": configuration(config),
        "pooling": [*pooling, True],
        "head": [
            [type(layer).__name__, getattr(layer, "activation_name", "")] for layer in module.head
        ],
    }
    with suppress(OtherModelError):
        network = Network.of(config.to_dict())
        bert = {name: f"transformer.{name}" for name in network.shapes()}
        if {*bert.values()} <= {*stored} and {*pooling} <= {*POOLING}:
            head = [getattr(layer, "activation_name", "unit") for layer in module.head]
            values = {"network": asdict(network), "pooling": pooling, "head": head}
            behind = (name for name in stored if name.startswith("head."))
            names = bert | {name.replace("linear.", ""): name for name in behind}
    tensors = ((name, stored[place].float().cpu().contiguous()) for name, place in names.items())
    return _digest(((name, tensor.numpy()) for name, tensor in tensors), values, description)


def _digest(
    tensors: Iterable[tuple[str, NDArray[Any]]], values: Mapping[str, Any], description: Description
) -> str:
    digest = hashlib.sha256()
    for name, array in tensors:
        digest.update(f"{name} {list(array.shape)}\n".encode())
        digest.update(array.data if array.flags.c_contiguous else array.tobytes())
    rest = {
        "tokenizer": normalised(Tokenizer.from_str(description.tokens.state)),
        "max_tokens": description.tokens.max_tokens,
        "truncation_side": description.tokens.truncation_side,
        "prompts": dict(description.prompts),
        "default_prompt": description.default_prompt,
    }
    digest.update(json.dumps({**values, **rest}, sort_keys=True).encode())
    return digest.hexdigest()


def configuration(config: Any) -> dict[str, Any]:
    """The entries of a network's configuration that change vectors, without its type's defaults.

    So a version of transformers with one more entry changes nothing.
    """
    try:
        defaults = type(config)().to_dict()
    except Exception:  # a class that came with a model, and wants arguments
        defaults = {}
    values = _deciding(config.to_dict())
    chosen = {name: value for name, value in values.items() if value != defaults.get(name)}
    return chosen | {"model_type": config.model_type}


def _deciding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without entries that change no vector, at any depth; as JSON values."""
    deciding = {}
    for name, value in values.items():
        # A rate of dropout is a number; ESM's token_dropout, a switch, is in every vector.
        dropout = "drop" in name and not isinstance(value, bool)
        if dropout or name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES):
            continue
        deciding[name] = _deciding(value) if isinstance(value, Mapping) else value
    return dict(json.loads(json.dumps(deciding, default=str)))
