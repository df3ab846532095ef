"""Models of BERT's kind, read from their folders without torch: all but the network's weights.

BERT, MiniLM, E5, BGE, arctic-embed (model_type bert), RoBERTa and XLM-R, which differ in where
positions begin: Devlin et al., arXiv 1810.04805. Learnt absolute positions, layer norms behind
attention and feed-forward, GELU. Other models are read by transformers (model_folder).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import Tensors, read_object, read_text
from searchengine.trainer.model.head import Head, read_head
from searchengine.trainer.model.layout import (
    TOKENIZER,
    WEIGHTS,
    check_layers,
    max_tokens,
    model_stages,
    position_offset,
    transformer_settings,
)
from searchengine.trainer.model.tokens import Description, Tokenization
from searchengine.trainer.sources.source import Source

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert")
POOLING = ("cls", "max", "mean")
EXACT_GELU, TANH_GELU = ("gelu",), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
EMBEDDINGS = ("word_embeddings", "token_type_embeddings", "position_embeddings")


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
        return cls(
            layers=int(config.get("num_hidden_layers", 12)),
            heads=int(config.get("num_attention_heads", 12)),
            width=int(config.get("hidden_size", 768)),
            inner=int(config.get("intermediate_size", 3072)),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
            first_position=position_offset(config),
            tanh=activation in TANH_GELU,
        )

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

    tensors: the file of the network's weights. prefix: what precedes the names of BertModel there.
    pooling: "cls", "max" and "mean", side by side.
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
        for i, layer in enumerate(self.head):
            if layer is not None:
                yield f"head.{i}.weight", layer.weight
                if layer.bias is not None:
                    yield f"head.{i}.bias", layer.bias


def read_bert(source: Source) -> Bert:
    """The model of a source. Raises OtherModelError, and ModelError for a damaged folder."""
    stages = model_stages(source.folder)
    place = stages[0][1]
    config = read_object(place / "config.json")
    network = Network.of(config)
    if source.layers is not None:
        check_layers(source.layers, network.layers)
        network = replace(network, layers=source.layers)
    if not (place / WEIGHTS).is_file():
        raise OtherModelError("its weights are in several files")
    tensors = Tensors(place / WEIGHTS)
    prefix = _find_prefix(tensors, network)
    tokens = _read_tokens(place, config)
    pooling, head, stated = read_head(source, stages[1:], network.width)
    if not {*pooling} <= {*POOLING}:
        raise OtherModelError(f"its pooling is {' and '.join(pooling)}")
    description = Description(layers=network.layers, tokens=tokens, **stated)
    return Bert(tensors, prefix, network, pooling, head, description)


def _find_prefix(tensors: Tensors, network: Network) -> str:
    """What the file of weights puts before the names of tensors, whose shapes are checked."""
    shapes = tensors.shapes
    first = f"embeddings.{EMBEDDINGS[0]}.weight"
    found = [str(name).removesuffix(first) for name in shapes if name.endswith(first)]
    if len(found) != 1:
        raise OtherModelError("its weights are not named as those of BERT")
    for name, expected in network.shapes().items():
        shape = shapes.get(found[0] + name, ())
        if len(shape) != len(expected) or any(
            size not in (-1, got) for size, got in zip(expected, shape, strict=True)
        ):
            raise ModelError(
                f"{tensors.path} has {f'{name} of the shape {shape}' if shape else f'no {name}'}, "
                f"but its config.json says {expected}: the folder is incomplete, or of several "
                "models"
            )
    return found[0]


def _read_tokens(place: Path, config: Mapping[str, Any]) -> Tokenization:
    """How its texts are split. The tokenizer is not parsed here: that takes long, and once."""
    path = place / TOKENIZER
    if not path.is_file():
        raise OtherModelError(f"it has no {TOKENIZER}")
    settings = transformer_settings(place)
    options = read_object(place / "tokenizer_config.json", optional=True)
    limit = max_tokens(settings, options.get("model_max_length"), config)
    pad_id = config.get("pad_token_id") or 0
    return Tokenization(read_text(path), limit, pad_id, options.get("truncation_side", "right"))
