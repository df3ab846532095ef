"""The layers behind the pooling: Dense and Normalize, read from a folder and computed by numpy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import read_object
from searchengine.trainer.model.layout import WEIGHTS, require_safetensors
from searchengine.trainer.tensors import Tensors

Array = NDArray[np.float32]
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    IDENTITY: lambda x: x,
    TANH: np.tanh,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
    "torch.nn.modules.activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "torch.nn.modules.activation.SiLU": lambda x: x / (1 + np.exp(-x)),
}
"""What numpy computes behind a Dense, by the names of model folders."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A linear layer: weight (out, in) and bias (out,) float32, or None; and an activation."""

    weight: Array
    bias: Array | None
    activation: str


Head = Sequence[Dense | None]
"""The layers in order; None: unit length."""


def read_head(stages: Sequence[tuple[str, Path]], width: int) -> list[Dense | None]:
    """The layers of modules (kind, folder), checked to fit one another. width: of the pooling."""
    head: list[Dense | None] = []
    for kind, place in stages:
        layer = None if kind == "Normalize" else _read_dense(place)
        if layer is not None:
            if layer.weight.shape[1:] != (width,):
                raise ModelError(
                    f"{place} has weights of the shape {layer.weight.shape}, but gets vectors "
                    f"{width} wide"
                )
            width = len(layer.weight)
        head.append(layer)
    return head


def _read_dense(place: Path) -> Dense:
    config = read_object(place / "config.json")
    inputs = {config.get("module_input_name"), config.get("module_output_name")}
    if config.get("use_residual") or not inputs <= {None, "sentence_embedding"}:
        raise ModelError(f"{place} is a Dense of an unknown kind: expected a plain linear layer")
    require_safetensors(place)
    tensors = Tensors(place / WEIGHTS)
    try:
        bias = tensors.float32("linear.bias") if config.get("bias", True) else None
        weight = tensors.float32("linear.weight")
    except KeyError as error:
        raise ModelError(f"{place / WEIGHTS} does not fit its config: it lacks {error}") from error
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ModelError(f"{place} has weights of {weight.shape}, but a bias of {bias.shape}")
    if not np.isfinite(weight).all() or not np.isfinite(0.0 if bias is None else bias).all():
        raise ModelError(f"{place / WEIGHTS} holds NaN or infinity: the file is damaged")
    return Dense(weight, bias, str(config.get("activation_function", TANH)))


def cut(width: int, dim: int) -> list[Dense | None]:
    """The layer that keeps the first `dim` of `width` dimensions; none where all are kept."""
    identity = np.eye(dim, width, dtype=np.float32)
    return [] if dim == width else [Dense(identity, None, IDENTITY)]


def head_width(head: Head, width: int) -> int:
    """The width of the vectors behind a head. width: of the pooling."""
    return next((len(layer.weight) for layer in reversed(head) if layer is not None), width)


def apply_head(head: Head, vectors: Array) -> Array:
    """Unit rows (B, dim) float32 of the pooled vectors (B, H)."""
    for layer in (*head, None):
        if layer is None:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.float32(1e-12))
            continue
        vectors = vectors @ layer.weight.T
        if layer.bias is not None:
            vectors += layer.bias
        vectors = ACTIVATIONS[layer.activation](vectors)
    return np.asarray(vectors, np.float32)


def head_tensors(head: Head) -> Iterator[tuple[str, Array]]:
    """The tensors of a head, by name."""
    for i, layer in enumerate(head):
        if layer is not None:
            yield f"head.{i}.weight", layer.weight
            if layer.bias is not None:
                yield f"head.{i}.bias", layer.bias
