"""Model folders, read: the sentence-transformers layout, safetensors only.

The folder defines the model: modules.json lists the modules, each module's config its settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.model.layout import (
    MODEL_CONFIG,
    WEIGHTS,
    check_similarity,
    max_tokens,
    model_stages,
    pooling_modes,
    prompts_of,
    read_object,
    require_safetensors,
    trained_dims,
    transformer_settings,
    truncate_dim,
)
from searchengine.trainer.model.modules import (
    Classifier,
    Dense,
    HeadLayer,
    LayerNorm,
    Normalize,
    Pooling,
    PoolingMode,
    SentenceModule,
)
from searchengine.trainer.model.network import read_transformer
from searchengine.trainer.model.tokens import check_settings

# Not read by sentence-transformers: the history of training, and the classifier.
HISTORY = "training.json"
CLASSIFIER = "classifier"
HEAD_LAYERS = ("Dense", "LayerNorm", "Normalize")
Weighted = TypeVar("Weighted", Dense, LayerNorm, Classifier)


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory: all that a folder holds.

    matryoshka_dims: trained prefix lengths, descending, starting with the full width. prompts: by
    name. recipe: how the model was trained, free-form JSON.
    """

    module: SentenceModule
    tokenizer: Any
    max_tokens: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    matryoshka_dims: tuple[int, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        dims = self.matryoshka_dims or (self.module.dim,)
        check_settings(self.module.dim, dims, self.max_tokens, self.prompts, self.default_prompt)
        object.__setattr__(self, "matryoshka_dims", tuple(dims))


def read_model(folder: Path, *, trust_remote_code: bool = False) -> Model:
    """The model in `folder`: a sentence-transformers folder or a plain transformers one.

    trust_remote_code: Python code that comes with the folder may be run; else it never is.
    """
    stages = _stages(folder)
    place = stages[0][1]
    settings = transformer_settings(place)
    transformer, tokenizer = read_transformer(place, settings, trust_remote_code)
    width = int(transformer.config.hidden_size)
    pooling = _read_pooling(stages[1][1], width)
    head = _read_head(stages[2:], pooling.out_width)
    config = read_object(folder / MODEL_CONFIG, optional=True)
    width = SentenceModule(transformer, pooling, head).dim
    head += _truncation(width, truncate_dim(config, width, folder))
    check_similarity(config, bool(head) and isinstance(head[-1], Normalize), folder)
    module = SentenceModule(transformer, pooling, head).eval()
    return Model(
        module,
        tokenizer,
        max_tokens=max_tokens(settings, tokenizer.model_max_length, transformer.config.to_dict()),
        prompts=prompts_of(config, folder),
        default_prompt=config.get("default_prompt_name"),
        matryoshka_dims=trained_dims(config, module.dim, folder),
        recipe=config.get("recipe") or {},
        history=read_object(folder / HISTORY, optional=True),
        classifier=_read_classifier(folder),
    )


def _truncation(width: int, dim: int) -> list[HeadLayer]:
    """The layer that keeps the first `dim` of `width` dimensions; none where all are kept."""
    if dim == width:
        return []
    layer = Dense(width, dim, False, "torch.nn.modules.linear.Identity")
    with torch.no_grad():
        layer.linear.weight.copy_(torch.eye(dim, width))
    return [layer]


def _read_classifier(folder: Path) -> Classifier | None:
    path = folder / CLASSIFIER / "config.json"
    config = read_object(path, optional=True)
    if not config:
        return None
    labels, dims = config.get("labels"), config.get("dims")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ModelError(f"{path}: expected labels as strings")
    if not isinstance(dims, list) or not all(type(dim) is int and dim > 0 for dim in dims):
        raise ModelError(f"{path}: expected dims, the prefix lengths that it was trained for")
    return _filled(Classifier(dims, labels), folder / CLASSIFIER).eval()


def _stages(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module, in order: one Transformer, one Pooling, then head layers."""
    stages = model_stages(folder)
    kinds = [kind for kind, _ in stages]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(HEAD_LAYERS):
        raise ModelError(
            f"{folder} has the modules {', '.join(kinds) or 'none'}: expected Transformer, "
            f"Pooling, then any of {', '.join(HEAD_LAYERS)}"
        )
    return stages


def _read_pooling(place: Path, width: int) -> Pooling:
    modes, include_prompt = pooling_modes(place, width)
    return Pooling(width, tuple(map(PoolingMode, modes)), include_prompt)


def _read_head(stages: list[tuple[str, Path]], width: int) -> list[HeadLayer]:
    """The layers behind the pooling, checked to fit one another. width: what pooling gives."""
    head: list[HeadLayer] = []
    for kind, place in stages:
        layer: HeadLayer = Normalize()
        expected: Any = width
        out_width = width
        if kind == "Dense":
            layer = _read_dense(place)
            expected, out_width = layer.linear.in_features, layer.out_width
        elif kind == "LayerNorm":
            expected = read_object(place / "config.json").get("dimension")
            if type(expected) is not int:
                raise ModelError(
                    f"{place / 'config.json'} has dimension {expected!r}, not a whole number"
                )
            layer = _filled(LayerNorm(expected), place)
        if expected != width:
            raise ModelError(f"{place} takes vectors {expected} wide, but gets them {width} wide")
        width = out_width
        head.append(layer)
    return head


def _read_dense(place: Path) -> Dense:
    config = read_object(place / "config.json")
    inputs = (config.get("module_input_name"), config.get("module_output_name"))
    if config.get("use_residual") or not set(inputs) <= {None, "sentence_embedding"}:
        raise ModelError(f"{place} is a Dense of an unknown kind: expected a plain linear layer")
    try:
        activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
        sizes = int(config["in_features"]), int(config["out_features"])
        layer = Dense(*sizes, bool(config.get("bias", True)), activation)
    except (KeyError, TypeError) as error:
        raise ModelError(f"{place / 'config.json'} lacks a size of the layer: {error}") from error
    return _filled(layer, place)


def _filled(layer: Weighted, place: Path) -> Weighted:
    require_safetensors(place)
    try:
        layer.load_state_dict(load_file(place / WEIGHTS))
    except Exception as error:
        raise ModelError(
            f"{place / WEIGHTS} does not fit its config: {first_line(error)}"
        ) from error
    return layer.float()
