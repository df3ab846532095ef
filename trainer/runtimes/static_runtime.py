"""Static models, run by numpy: the mean of token vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from searchengine.trainer import fingerprint
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.static_model import read_static
from searchengine.trainer.model.tokens import Ids, TokenIds
from searchengine.trainer.native.wordpiece import FastTokenIds
from searchengine.trainer.runtimes.runtime import Vectors
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig
from searchengine.trainer.sources.source import Source

BLOCK = 256
"""Tokens summed in float32; their sums are added in float64. A longer sum has a larger error."""


class StaticHandle:
    """The static model of a source, and what runs it: as ModelHandle and Runtime."""

    runs_on = "numpy fp32 (a static model)"
    kind = "numpy"
    precision = Precision.FP32
    token_budget = 1 << 15
    pads = False

    def __init__(self, config: RuntimeConfig, source: Source, place: Path):
        """place: the folder of its table. Raises ModelError."""
        is_open = config.precision in (Precision.AUTO, Precision.FP32)
        if source.layers is not None or not is_open or config.device not in (None, "cpu"):
            raise ModelError(
                f"{source.name} is a static model, without layers, which numpy computes on the "
                "processor in fp32: leave layers, precision and device out"
            )
        model = read_static(source.folder, place)
        self.config, self.source = config, source
        self.description = model.description
        self.tokens: TokenIds = FastTokenIds(model.description.tokens)
        self.fingerprint = fingerprint.of_static(model)
        self._table = model.table

    @property
    def runtime(self) -> "StaticHandle":
        """It runs itself."""
        return self

    def run(self, rows: Sequence[Ids]) -> Vectors:
        """Unit rows (B, dim) float32; zeros for a text without tokens."""
        means = np.zeros((len(rows), self._table.shape[1]))
        for ids, mean in zip(rows, means, strict=True):
            for start in range(0, len(ids), BLOCK):
                block = self._table.take(ids[start : start + BLOCK], axis=0)
                mean += np.add.reduce(block, axis=0) / len(ids)
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        vectors: Vectors = (means / lengths).astype(np.float32)
        return vectors

    @property
    def model(self) -> NoReturn:
        """Raises ModelError: there is no network to train or to save."""
        raise ModelError(
            f"{self.source.name} is a static model, without a network: it can be used, and neither "
            "trained nor saved again"
        )
