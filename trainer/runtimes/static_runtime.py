"""Static models, run by numpy: the mean of token vectors.

Two folders hold one: that of Model2Vec (config.json of the type model2vec, the tensor `embeddings`,
perhaps `weights` and `mapping`; https://github.com/MinishLab/model2vec), and that of
sentence-transformers with the module StaticEmbedding (the tensor `embedding.weight`). Both have a
tokenizer.json. The vectors are those of sentence-transformers, which adds no special tokens and
keeps unknown ones.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from searchengine.trainer import fingerprint
from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.files import Tensors, read_object
from searchengine.trainer.model.layout import (
    MODULES,
    TOKENIZER,
    WEIGHTS,
    listed_modules,
    read_settings,
    require_safetensors,
)
from searchengine.trainer.model.tokens import (
    UNLIMITED,
    Description,
    Ids,
    TokenIds,
    Tokenization,
    Vectors,
)
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig
from searchengine.trainer.sources.source import Source

KIND, NORMALIZE = "StaticEmbedding", "Normalize"
MODEL2VEC, MODEL2VEC_TABLE = "model2vec", "embeddings"
TABLES = ("embedding.weight", MODEL2VEC_TABLE)
BLOCK = 256
"""Tokens summed in float32; their sums are added in float64. A longer sum has a larger error."""


def static_stages(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module, the table first; none of another model. Raises ModelError."""
    if (folder / MODULES).is_file():
        modules = listed_modules(folder)
        return modules if modules and modules[0][0] == KIND else []
    config = read_object(folder / "config.json", optional=True)
    return [(KIND, folder)] if config.get("model_type") == MODEL2VEC else []


class StaticHandle:
    """The static model of a source, and what runs it: as ModelHandle and Runtime."""

    runs_on = "numpy fp32 (a static model)"
    kind = "numpy"
    precision: str = Precision.FP32
    token_budget = 1 << 15
    min_ratio = 0.0

    def __init__(self, config: RuntimeConfig, source: Source, stages: Sequence[tuple[str, Path]]):
        """stages: see static_stages. Raises ModelError."""
        is_open = config.precision in (Precision.AUTO, Precision.FP32)
        if source.layers is not None or not is_open or config.device not in (None, "cpu"):
            raise ModelError(
                f"{source.name} is a static model, without layers, which numpy computes on the "
                "processor in fp32: leave layers, precision and device out"
            )
        (_, place), *behind = stages
        kinds = {kind for kind, _ in behind}
        if more := kinds - {NORMALIZE}:
            raise ModelError(
                f"{source.folder} has a {min(more)} behind its {KIND}: only {NORMALIZE} may follow "
                "the table of token vectors"
            )
        table = _read_table(place)
        stated = read_settings(source.folder, table.shape[1], unit=bool(kinds))
        tokens = _read_tokens(place, len(table))
        self.config, self.source = config, source
        self.description = Description(layers=0, tokens=tokens, **stated)
        self.tokens = TokenIds(tokens)
        # The dimensions that truncate_dim leaves out have no part in the mean.
        self._table = np.ascontiguousarray(table[:, : self.description.dim])
        self.fingerprint = fingerprint.of_static(self._table, self.description)

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


def _read_table(place: Path) -> NDArray[np.float32]:
    """(tokens, dim); the vector of a text is the mean of its tokens' rows."""
    require_safetensors(place)
    path = place / WEIGHTS
    tensors = Tensors(path)
    name = next((name for name in TABLES if len(tensors.shapes.get(name, ())) == 2), None)
    if name is None or not all(tensors.shapes[name]):
        raise ModelError(
            f"{path} has no table of token vectors: expected the tensor {' or '.join(TABLES)} of "
            f"two dimensions, got {', '.join(sorted(tensors.shapes)) or 'none'}"
        )
    table = tensors[name]
    if name == MODEL2VEC_TABLE and "mapping" in tensors.shapes:
        table = table[tensors["mapping"].astype(np.int64)]
    table = table.astype(np.float32)
    if name == MODEL2VEC_TABLE and "weights" in tensors.shapes:
        table = table * tensors.float32("weights")[:, None]
    if not np.isfinite(table).all():
        raise ModelError(f"{path} holds NaN or infinity: the file is damaged")
    return table


def _read_tokens(place: Path, rows: int) -> Tokenization:
    """How the texts are split; without special tokens."""
    state = read_object(place / TOKENIZER)
    limit = state.get("truncation") or {}
    try:
        state |= {"post_processor": None, "padding": None, "truncation": None}
        tokenizer = Tokenizer.from_str(json.dumps(state))
        most, side = int(limit.get("max_length", UNLIMITED)), limit.get("direction", "Right")
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{place / TOKENIZER} is not a tokenizer: {first_line(error)}") from error
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise ModelError(
            f"{place / TOKENIZER} has the token number {highest}, but the table has {rows} rows: "
            "the files belong to two models"
        )
    return Tokenization(tokenizer.to_str(), most, 0, side.lower())
