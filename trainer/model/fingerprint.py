"""The fingerprint of an encoder: a checksum of everything that decides the vector of a text."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.network import runs_remote_code
from searchengine.trainer.model.pairs import PairModel
from searchengine.trainer.model.tokens import normalised

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


def fingerprint(model: Model | PairModel) -> str:
    """sha256 (hex) of what decides the vectors; of a cross-encoder, of what decides the scores."""
    module = model.module
    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {list(weight.shape)}\n".encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().data)
    network: Any = module.transformer
    values: dict[str, Any] = {
        "tokenizer": normalised(model.tokenizer.backend_tokenizer),
        "max_tokens": model.max_tokens,
        "network": configuration(network.config),
        "code": _code(network),
        "truncation_side": model.tokenizer.truncation_side,
    }
    if isinstance(model, Model):
        values |= _pooling_and_prompts(model)
    digest.update(json.dumps(values, sort_keys=True).encode())
    return digest.hexdigest()


def _pooling_and_prompts(model: Model) -> dict[str, Any]:
    module = model.module
    values: dict[str, Any] = {
        "pooling": [*map(str, module.pooling.modes), module.pooling.include_prompt],
        "head": [
            [type(layer).__name__, getattr(layer, "activation_name", "")] for layer in module.head
        ],
        "prompts": dict(model.prompts),
        "default_prompt": model.default_prompt,
    }
    if module.mix is not None:
        values["first_mixed_layer"] = module.mix.start
    if not module.pooling.include_prompt:  # they tell where a prompt ends
        values["special_ids"] = sorted(model.tokenizer.all_special_ids)
    return values


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
