"""What follows the network: pooling, Dense and Normalize, read from a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import Tensors, read_object
from searchengine.trainer.model.layout import (
    WEIGHTS,
    pooling_modes,
    read_settings,
    require_safetensors,
)
from searchengine.trainer.sources.source import Source, Starter

Array = NDArray[np.float32]
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
# The packaged model, widened: CLS ⊕ mean. Mean lengths of the two pooled halves over SciFact
# abstracts: scaling each by the inverse gives them equal weight; CLS then gets a little less than
# the mean, for which the network was trained.
WIDE_DIMS = (768, 512, 256, 128, 64)
CLS_NORM, MEAN_NORM, CLS_WEIGHT = 6.91, 2.23, 0.75


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A linear layer: weight (out, in) and bias (out,) float32, or None.

    activation: IDENTITY or TANH.
    """

    weight: Array
    bias: Array | None
    activation: str


Head = Sequence[Dense | None]
"""The layers in order; None: unit length."""


def read_head(
    source: Source, stages: Sequence[tuple[str, Path]], width: int
) -> tuple[tuple[str, ...], Head, dict[str, Any]]:
    """Pooling modes, the layers behind the pooling, and the fields of a Description in the folder.

    stages: (kind, folder) of the modules behind the network. width: of the network.
    """
    head: list[Dense | None] = []
    if source.starter is Starter.WIDENED:
        pooling: tuple[str, ...] = ("cls", "mean")
        scales = np.repeat([CLS_WEIGHT / CLS_NORM, 1 / MEAN_NORM], width).astype(np.float32)
        head, width = [Dense(np.diag(scales), None, IDENTITY), None], 2 * width
    else:
        pooling = pooling_modes(stages[0][1], width)
        width *= len(pooling)
        for kind, place in stages[1:]:
            layer = None if kind == "Normalize" else _read_dense(place, width)
            width = width if layer is None else len(layer.weight)
            head.append(layer)
    stated = read_settings(source.folder, width, unit=head[-1:] == [None])
    if source.starter is Starter.WIDENED:
        stated["matryoshka_dims"] = WIDE_DIMS
    if stated["dim"] < width:
        head.append(Dense(np.eye(stated["dim"], width, dtype=np.float32), None, IDENTITY))
    return pooling, head, stated


def _read_dense(place: Path, width: int) -> Dense:
    """width: of its inputs."""
    config = read_object(place / "config.json")
    inputs = {config.get("module_input_name"), config.get("module_output_name")}
    if config.get("use_residual") or not inputs <= {None, "sentence_embedding"}:
        raise ModelError(f"{place} is a Dense of an unknown kind: expected a plain linear layer")
    require_safetensors(place)
    tensors = Tensors(place / WEIGHTS)
    bias = tensors.float32("linear.bias") if config.get("bias", True) else None
    weight = tensors.float32("linear.weight")
    if weight.shape[1:] != (width,) or (bias is not None and bias.shape != weight.shape[:1]):
        raise ModelError(
            f"{place} has weights of the shape {weight.shape} and "
            f"{'no bias' if bias is None else f'a bias of {bias.shape}'}, but gets vectors "
            f"{width} wide"
        )
    if not np.isfinite(weight).all() or not np.isfinite(0.0 if bias is None else bias).all():
        raise ModelError(f"{place / WEIGHTS} holds NaN or infinity: the file is damaged")
    activation = str(config.get("activation_function", TANH))
    if activation not in (IDENTITY, TANH):
        raise ModelError(
            f"{place} is a Dense with the activation {activation}: expected {IDENTITY} or {TANH}"
        )
    return Dense(weight, bias, activation)
