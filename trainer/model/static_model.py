"""Static models: a table of token vectors, whose mean is a text's vector. Read by numpy.

Two folders hold one: that of Model2Vec (config.json of the type model2vec, the tensor `embeddings`,
perhaps `weights` and `mapping`; https://github.com/MinishLab/model2vec), and that of
sentence-transformers with the module StaticEmbedding (the tensor `embedding.weight`). Both have a
tokenizer.json. The vectors are those of sentence-transformers, which adds no special tokens and
keeps unknown ones.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.files import read_object
from searchengine.trainer.model.layout import (
    MODULES,
    TOKENIZER,
    WEIGHTS,
    listed_modules,
    read_settings,
    require_safetensors,
)
from searchengine.trainer.model.tokens import UNLIMITED, Description, Tokenization
from searchengine.trainer.tensors import Tensors

KIND, NORMALIZE = "StaticEmbedding", "Normalize"
MODEL2VEC, MODEL2VEC_TABLE = "model2vec", "embeddings"
TABLES = ("embedding.weight", MODEL2VEC_TABLE)


@dataclass(frozen=True, slots=True, eq=False)
class StaticModel:
    """A static model in memory.

    table: (tokens, dim) float32; the vector of a text is the mean of its tokens' rows.
    """

    table: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    description: Description


def static_place(folder: Path) -> Path | None:
    """The folder of the table, if this is the folder of a static model. Raises ModelError."""
    if (folder / MODULES).is_file():
        modules = listed_modules(folder)
        return modules[0][1] if modules and modules[0][0] == KIND else None
    config = read_object(folder / "config.json", optional=True)
    return folder if config.get("model_type") == MODEL2VEC else None


def read_static(folder: Path, place: Path) -> StaticModel:
    """The static model of a folder, with its table in `place`. Raises ModelError."""
    modules = listed_modules(folder) if (folder / MODULES).is_file() else []
    kinds = [kind for kind, _ in modules]
    if more := [kind for kind in kinds[1:] if kind != NORMALIZE]:
        raise ModelError(
            f"{folder} has a {more[0]} behind its {KIND}: expected {NORMALIZE}, or nothing"
        )
    table = _read_table(place)
    stated = read_settings(folder, table.shape[1], unit=kinds[-1:] == [NORMALIZE])
    description = Description(layers=0, tokens=_read_tokens(place, len(table)), **stated)
    # The dimensions that truncate_dim leaves out have no part in the mean.
    return StaticModel(np.ascontiguousarray(table[:, : description.dim]), description)


def _read_table(place: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
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
