"""Static models run by numpy: the mean of the token vectors. Needs no torch."""

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from trainer.errors import ModelError
from trainer.model.source import Source
from trainer.model.static import StaticModel, read_static
from trainer.model.tokens import Padded
from trainer.runtimes.config import Precision, RuntimeConfig
from trainer.runtimes.runtime import Vectors

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.model.folder import Model


BLOCK = 256
"""Tokens summed in float32; their sums are added in float64. A longer sum has a larger error."""


class NumpyKind(StrEnum):
    """What computes without a runtime of its own."""

    NUMPY = "numpy"


class StaticRuntime:
    """Averages rows of a table. Safe to use from several threads."""

    kind = NumpyKind.NUMPY
    precision = Precision.FP32
    token_budget = 1 << 15
    multiple = 1
    packs = True  # padding is never looked at

    def __init__(self, model: StaticModel):
        self._table = model.table

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32; zeros for a text without tokens."""
        means = np.zeros((len(batch.ids), self._table.shape[1]))
        for ids, length, mean in zip(batch.ids, batch.mask.sum(axis=1), means, strict=True):
            for start in range(0, length, BLOCK):
                rows = self._table.take(ids[start : min(start + BLOCK, length)], axis=0)
                mean += np.add.reduce(rows, axis=0) / length
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        vectors: Vectors = (means / lengths).astype(np.float32)
        return vectors


class StaticHandle:
    """The static model of a source, as `trainer.runtimes.handle.ModelHandle` is that of others."""

    runs_on = f"{NumpyKind.NUMPY} {Precision.FP32}"

    def __init__(self, config: RuntimeConfig, source: Source, place: "Path"):
        """place: the folder of its table. Raises ModelError."""
        if source.layers is not None:
            raise ModelError(f"{source.name} is a static model, without layers: leave layers out")
        on_cpu = config.device in (None, "cpu")
        if config.precision not in (Precision.AUTO, Precision.FP32) or not on_cpu:
            raise ModelError(
                f"{source.name} is a static model, which numpy computes on the processor in fp32: "
                "leave precision and device out"
            )
        model = read_static(source.folder, place, source.route)
        self.config, self.source = config, source
        self.description = model.description
        self._table = model.table
        self.runtime = StaticRuntime(model)
        self.fingerprint = model.fingerprint

    def runtime_for(self, tokens: int) -> StaticRuntime:
        """As of ModelHandle: it is always the same."""
        return self.runtime

    @property
    def model(self) -> "Model":
        """All parts, as torch modules, for saving."""
        import torch

        from trainer.model.static_network import static_model

        return static_model(torch.from_numpy(self._table), self.description)
