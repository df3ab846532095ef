"""The fingerprint of an encoder: a checksum of everything that decides the vector of a text."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from trainer.model.folder import Model
from trainer.model.network import runs_remote_code
from trainer.model.pairs import PairModel
from trainer.model.tokens import normalised

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


def fingerprints(model: Model | PairModel) -> tuple[str, ...]:
    """sha256 (hex) of what decides the vectors; then the fingerprints by older versions.

    Collections of older versions store the latter. Of a cross-encoder: of what decides the scores.
    """
    module = model.module
    weights = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        weights.update(f"{name} {list(weight.shape)}\n".encode())
        weights.update(weight.detach().float().cpu().contiguous().numpy().data)
    network: Any = module.transformer
    present = {
        "network": configuration(network.config),
        "code": _code(network),
        "truncation_side": model.tokenizer.truncation_side,
    }
    tokens = {
        "tokenizer": normalised(model.tokenizer.backend_tokenizer),
        "max_tokens": model.max_tokens,
    }
    if isinstance(model, PairModel):
        return (_digest(weights, tokens | present),)
    module = model.module
    first: dict[str, Any] = tokens | {
        "pooling": [*map(str, module.pooling.modes), module.pooling.include_prompt],
        "head": [
            [type(layer).__name__, getattr(layer, "activation_name", "")] for layer in module.head
        ],
        "prompts": dict(model.prompts),
        "default_prompt": model.default_prompt,
    }
    if module.mix is not None:
        first["first_mixed_layer"] = module.mix.start
    second = first | present
    if not module.pooling.include_prompt:  # they tell where a prompt ends
        second["special_ids"] = sorted(model.tokenizer.all_special_ids)
    return tuple(_digest(weights, version) for version in (second, first))


def _digest(weights: Any, values: Mapping[str, Any]) -> str:
    digest = weights.copy()
    digest.update(json.dumps(values, sort_keys=True).encode())
    return str(digest.hexdigest())


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


def _code(network: Any) -> list[str]:
    """The source of a network's classes that came with its folder; [] for one of transformers."""
    if not runs_remote_code(network):
        return []
    kinds = {type(part) for part in network.modules()}
    ours = [kind for kind in kinds if kind.__module__.startswith("transformers_modules.")]
    return sorted({inspect.getsource(inspect.getmodule(kind) or kind) for kind in ours})
