"""Models of BERT's kind, read from their folders without torch: all but the network's weights.

BERT, MiniLM, E5, BGE, arctic-embed (model_type bert), RoBERTa and XLM-R, which differ in where
positions begin: Devlin et al., arXiv 1810.04805. Learnt absolute positions, layer norms behind
attention and feed-forward, GELU. Other models are read by transformers (model_folder).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.files import read_object, read_text
from searchengine.trainer.model.head import (
    ACTIVATIONS,
    IDENTITY,
    Dense,
    Head,
    cut,
    head_tensors,
    head_width,
    read_head,
)
from searchengine.trainer.model.layout import (
    ADAPTER,
    TOKENIZER,
    WEIGHTS,
    lowercases,
    max_tokens,
    model_stages,
    pooling_modes,
    position_offset,
    read_settings,
    remote_code,
    transformer_settings,
)
from searchengine.trainer.model.tokens import Description, Tokenization
from searchengine.trainer.sources.source import Source, Starter
from searchengine.trainer.tensors import Tensors

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert")
POOLING = ("cls", "max", "mean")
EXACT_GELU, TANH_GELU = ("gelu",), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
# The packaged model, widened: CLS ⊕ mean. Mean lengths of the two pooled halves over SciFact
# abstracts: scaling each by the inverse gives them equal weight; CLS then gets a little less than
# the mean, for which the network was trained.
WIDE_DIMS = (768, 512, 256, 128, 64)
CLS_NORM, MEAN_NORM, CLS_WEIGHT = 6.91, 2.23, 0.75

EMBEDDINGS = ("word_embeddings", "token_type_embeddings", "position_embeddings")


DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def as_damage(source: Source) -> Iterator[None]:
    """Turn errors from damaged or contradictory files into ModelError."""
    try:
        yield
    except ModelError:
        raise
    except DAMAGE as error:
        raise ModelError(
            f"{source.folder} cannot be read, its files are damaged or belong to several models: "
            f"{type(error).__name__}, {first_line(error)}"
        ) from error


class OtherModelError(Exception):
    """Why a model is not of BERT's kind, or not laid out as one."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network of BERT's kind, without its weights.

    first_position: the position of a text's first token. tanh: whether the model was trained with
    GELU by tanh; the kernel computes both forms alike, which differ by at most 5e-4.
    """

    layers: int
    heads: int
    width: int
    inner: int
    epsilon: float
    first_position: int
    tanh: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Network":
        """From the entries of a config.json. Raises OtherModelError."""
        kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
        if kind not in FAMILIES:
            raise OtherModelError(f"its network is of the type {kind}, not BERT's")
        if activation not in EXACT_GELU + TANH_GELU:
            raise OtherModelError(f"its activation is {activation}, not GELU")
        if config.get("position_embedding_type") not in (None, "absolute"):
            raise OtherModelError("its positions are not absolute")
        if config.get("is_decoder") or config.get("add_cross_attention"):
            raise OtherModelError("its network is a decoder")
        try:
            return cls(
                layers=int(config.get("num_hidden_layers", 12)),
                heads=int(config.get("num_attention_heads", 12)),
                width=int(config.get("hidden_size", 768)),
                inner=int(config.get("intermediate_size", 3072)),
                epsilon=float(config.get("layer_norm_eps", 1e-12)),
                first_position=position_offset(config),
                tanh=activation in TANH_GELU,
            )
        except (TypeError, ValueError) as error:
            raise OtherModelError(f"config.json has a wrong size: {error}") from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors by their names in BertModel; -1: any number."""
        width, inner = self.width, self.inner
        square = ("self.query", "self.key", "self.value", "output.dense")
        linears = {f"attention.{name}": (width, width) for name in square}
        linears |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
        shapes: dict[str, tuple[int, ...]] = {
            f"embeddings.{name}.weight": (-1, width) for name in EMBEDDINGS
        }
        norms = ["embeddings.LayerNorm"]
        for layer in (f"encoder.layer.{i}" for i in range(self.layers)):
            norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
            for name, shape in linears.items():
                shapes[f"{layer}.{name}.weight"] = shape
                shapes[f"{layer}.{name}.bias"] = shape[:1]
        vectors = {f"{norm}.{kind}": (width,) for norm in norms for kind in ("weight", "bias")}
        return {**shapes, **vectors}


@dataclass(frozen=True, eq=False)
class Bert:
    """A model of BERT's kind in its folder.

    Attributes:
        tensors: the file of the network's weights.
        prefix: what precedes the names of BertModel there.
        pooling: "cls", "max" and "mean", side by side.
        description: of the model.
    """

    tensors: Tensors
    prefix: str
    network: Network
    pooling: tuple[str, ...]
    head: Head
    description: Description

    @property
    def words(self) -> int:
        """Number of tokens that the network has vectors for."""
        return int(self.tensors.shapes[f"{self.prefix}embeddings.{EMBEDDINGS[0]}.weight"][0])

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor by its name in BertModel. Raises ModelError where it is not finite."""
        values = self.tensors.float32(self.prefix + name)
        if not np.isfinite(values).all():
            raise ModelError(f"{self.tensors.path} holds NaN or infinity: the file is damaged")
        return values

    def named_tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """All tensors of the network and its head, by names that no folder's layout changes."""
        for name in self.network.shapes():
            yield name, self.tensor(name)
        yield from head_tensors(self.head)


def read_bert(source: Source) -> Bert:
    """The model of a source. Raises OtherModelError, and ModelError for a damaged folder."""
    folder = source.folder
    if names := remote_code(folder):
        raise OtherModelError(f"it comes with Python code of its own ({', '.join(names)})")
    stages = model_stages(folder)
    place = stages[0][1]
    config = read_object(place / "config.json")
    network = Network.of(config)
    if source.layers is not None:
        network = _truncated(network, source.layers)
    tensors = _open_weights(place)
    prefix = _find_prefix(tensors, network)
    tokens = _read_tokens(place, transformer_settings(place), config)
    pooling = pooling_modes(stages[1][1], network.width)
    head = read_head(stages[2:], network.width * len(pooling))
    if source.starter is Starter.WIDENED:
        pooling, head = ("cls", "mean"), [scales(network.width), None]
    if not {*pooling} <= {*POOLING}:
        raise OtherModelError(f"its pooling is {' and '.join(pooling)}")
    for layer in head:
        if layer is not None and layer.activation not in ACTIVATIONS:
            raise OtherModelError(f"its Dense has the activation {layer.activation}")
    width = head_width(head, network.width * len(pooling))
    dim, stated = read_settings(folder, width, unit=head[-1:] == [None])
    if source.starter is Starter.WIDENED:
        stated["matryoshka_dims"] = WIDE_DIMS
    description = Description(dim=dim, layers=network.layers, tokens=tokens, **stated)
    head += cut(width, dim)
    return Bert(tensors, prefix, network, pooling, head, description)


def _truncated(network: Network, layers: int) -> Network:
    if layers > network.layers:
        raise ModelError(
            f"layers is {layers}: expected 1 to {network.layers}, the layers of the network"
        )
    return replace(network, layers=layers)


def scales(width: int) -> Dense:
    """The layer that gives CLS and mean of the packaged model equal weight."""
    diagonal = np.full(2 * width, 1 / MEAN_NORM, np.float32)
    diagonal[:width] = CLS_WEIGHT / CLS_NORM
    return Dense(np.diag(diagonal), None, IDENTITY)


def _open_weights(place: Path) -> Tensors:
    if not (place / WEIGHTS).is_file():
        raise OtherModelError("its weights are in several files")
    if (place / ADAPTER).is_file():
        raise OtherModelError("it is an adapter")
    return Tensors(place / WEIGHTS)


def _find_prefix(tensors: Tensors, network: Network) -> str:
    """What the file of weights puts before the names of tensors, whose shapes are checked."""
    shapes = tensors.shapes
    first = f"embeddings.{EMBEDDINGS[0]}.weight"
    found = [str(name).removesuffix(first) for name in shapes if name.endswith(first)]
    if len(found) != 1:
        raise OtherModelError("its weights are not named as those of BERT")
    for name, expected in network.shapes().items():
        shape = shapes.get(found[0] + name)
        if shape is None:
            raise ModelError(
                f"{tensors.path} lacks {name}: the folder is incomplete, or its config.json "
                "belongs to another model"
            )
        if len(shape) != len(expected) or any(
            size not in (-1, got) for size, got in zip(expected, shape, strict=True)
        ):
            raise ModelError(
                f"{tensors.path}: {name} has the shape {shape}, but its config.json says {expected}"
            )
    return found[0]


def _read_tokens(
    place: Path, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> Tokenization:
    """How its texts are split. The tokenizer is not parsed here: that takes long, and once."""
    path = place / TOKENIZER
    if not path.is_file():
        raise OtherModelError(f"it has no {TOKENIZER}")
    options = read_object(place / "tokenizer_config.json", optional=True)
    text = read_text(path)
    if settings.get("do_lower_case") and not lowercases(state := read_object(path)):
        present = [] if state.get("normalizer") is None else [state["normalizer"]]
        steps = [{"type": "Lowercase"}, *present]
        text = json.dumps(state | {"normalizer": {"type": "Sequence", "normalizers": steps}})
    limit = max_tokens(settings, options.get("model_max_length"), config)
    pad_id = config.get("pad_token_id") or 0
    return Tokenization(text, limit, pad_id, options.get("truncation_side", "right"))
