"""Model folders, written so that sentence-transformers, mteb and others load them."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from searchengine.trainer.classifier import write_classifier
from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import new_folder, write_json
from searchengine.trainer.model.layout import (
    MODEL_CONFIG,
    MODULES,
    POOLING_SWITCHES,
    TRANSFORMER_CONFIG,
    WEIGHTS,
)
from searchengine.trainer.model.model_folder import HISTORY, Model
from searchengine.trainer.model.modules import Dense, Pooling
from searchengine.trainer.model.network import quiet
from searchengine.trainer.sources.source import CHECKPOINT

# The dotted names every version of sentence-transformers since 2.0 resolves.
MODULE_TYPE = "sentence_transformers.models.{}"


def write_model(model: Model, path: Path, readme: str) -> None:
    """Write `model` and its README to the folder `path`, replacing a model that is there.

    Everything goes to a folder beside it that is renamed at the end: an interrupted save leaves the
    old model or none. ModelError where `path` is something else than a model or an empty folder.
    """
    check_replaceable(path)
    with new_folder(path, keep=CHECKPOINT) as new:
        _write_files(model, new)
        (new / "README.md").write_text(readme, encoding="utf-8")


def check_replaceable(path: Path) -> None:
    """ModelError unless `path` is free, a model, empty, or holds only a training checkpoint."""
    if not path.exists():
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {""}
    if MODULES not in names and not names <= {CHECKPOINT}:
        raise ModelError(f"{path} exists and is not a model: name a new folder, or empty this one")


def _write_files(model: Model, folder: Path) -> None:
    network: Any = model.module.transformer
    with quiet():
        network.save_pretrained(folder, safe_serialization=True)
        model.tokenizer.save_pretrained(folder)
    write_json(folder / TRANSFORMER_CONFIG, {"max_seq_length": model.max_tokens})
    stages = [("Transformer", "")]
    for i, layer in enumerate((model.module.pooling, *model.module.head), 1):
        kind = type(layer).__name__
        stages.append((kind, f"{i}_{kind}"))
        place = folder / stages[i][1]
        place.mkdir()
        write_json(place / "config.json", _layer_config(layer))
        if weights := layer.state_dict():
            save_file({k: v.contiguous() for k, v in weights.items()}, place / WEIGHTS)
    listed = [
        {"idx": i, "name": str(i), "path": place, "type": MODULE_TYPE.format(kind)}
        for i, (kind, place) in enumerate(stages)
    ]
    write_json(folder / MODULES, listed)
    config = {
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt,
        "similarity_fn_name": "cosine",
        "matryoshka_dims": list(model.matryoshka_dims),
        "recipe": dict(model.recipe),
    }
    write_json(folder / MODEL_CONFIG, config)
    if model.history:
        write_json(folder / HISTORY, dict(model.history))
    if model.classifier is not None:
        write_classifier(model.classifier, folder)


def _layer_config(layer: Any) -> dict[str, Any]:
    if isinstance(layer, Dense):
        return {
            "in_features": layer.linear.in_features,
            "out_features": layer.linear.out_features,
            "bias": layer.linear.bias is not None,
            "activation_function": layer.activation_name,
        }
    if not isinstance(layer, Pooling):
        return {}
    # Spelled with the switches that all readers know; where the order differs, as in version 6.
    modes = [str(mode) for mode in layer.modes]
    if [mode for mode in POOLING_SWITCHES.values() if mode in modes] != modes:
        return {"embedding_dimension": layer.width, "pooling_mode": modes, "include_prompt": True}
    switches = {key: mode in modes for key, mode in POOLING_SWITCHES.items()}
    return {"word_embedding_dimension": layer.width, **switches, "include_prompt": True}
