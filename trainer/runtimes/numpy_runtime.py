"""What numpy runs: static models, and networks like BERT at a tenth of the speed of the others.

torch takes seconds to import, and OpenVINO's graph is compiled by it. A small first job, such as a
few notes and a question, is over before that. The network is BERT's (Devlin et al., arXiv
1810.04805), in float32; RoBERTa's differs in where positions begin. A static model is the mean of
its token vectors.
"""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.numpy_models import (
    Described,
    StaticModel,
    read_static,
)
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import Padded, TokenIds
from searchengine.trainer.native.wordpiece import FastTokenIds
from searchengine.trainer.runtimes.runtime import Vectors
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

    from searchengine.trainer.model.model_folder import Model

Array = NDArray[Any]  # of float32
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: |error| ≤ 1.5e-7.
ERF_SCALE = np.float32(0.3275911)
ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
BLOCK = 256
"""Tokens summed in float32; their sums are added in float64. A longer sum has a larger error."""


class NumpyKind(StrEnum):
    """The numpy runtime, which needs no other library."""

    NUMPY = "numpy"


class Linear(NamedTuple):
    """x · weight + bias, with weight (in, out)."""

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        y: Array = x @ self.weight
        y += self.bias
        return y


class Norm(NamedTuple):
    """Layer normalisation of rows."""

    weight: Array
    bias: Array
    epsilon: float

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normal: Array = (
            centred / np.sqrt(variance + np.float32(self.epsilon)) * self.weight + self.bias
        )
        return normal


class Layer(NamedTuple):
    """One layer: attention, then the two products with a GELU between them."""

    attention: Linear  # queries, keys and values side by side
    attended: Linear
    first_norm: Norm
    inner: Linear
    outer: Linear
    second_norm: Norm


class Dense(NamedTuple):
    """A layer of the head; without a linear part it gives vectors unit length."""

    linear: Linear | None = None
    activation: str = ""

    def __call__(self, x: Array) -> Array:
        if self.linear is None:
            return _unit(x)
        return ACTIVATIONS[self.activation](self.linear(x))


def _unit(x: Array) -> Array:
    unit: Array = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.float32(1e-12))
    return unit


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.Tanh": np.tanh,
}
"""What numpy computes behind a layer of the head, by the names of model folders."""


class Head:
    """What follows a network: its pooled vectors side by side, then the layers of the head."""

    def __init__(self, model: Described):
        """Raises ModelError."""
        network = model.network
        self._pooling = tuple(zip(network.pooling, network.scales, strict=True))
        self._layers = []
        for activation, place, biased in network.head:
            dense = Dense()
            if activation:
                names = ("linear.weight", "linear.bias") if biased else ("linear.weight",)
                weight, *bias = model.tensors(place, names)
                none = np.zeros(len(weight), np.float32)
                dense = Dense(Linear(weight.T, bias[0] if bias else none), activation)
            self._layers.append(dense)

    def __call__(self, cls: Array, means: Array) -> Vectors:
        """Unit rows (B, dim) float32, from those of the first tokens and of the means, (B, H)."""
        pooled = []
        for mode, scale in self._pooling:
            rows = means if mode == "mean" else cls
            pooled.append(rows if scale == 1 else rows * scale)
        vectors = np.concatenate(pooled, axis=1)
        for layer in self._layers:
            vectors = layer(vectors)
        return np.asarray(_unit(vectors), np.float32)


class NumpyRuntime:
    """Runs a described network. Safe to use from several threads.

    Attributes:
        words: (tokens, H), the table of token vectors.
        positions: (length, H), which are added to them.
        norm: of their sum.
        layers: of the network.
    """

    kind = NumpyKind.NUMPY
    precision = Precision.FP32
    token_budget = 1024
    multiple = 1
    packs = True  # padding costs attention alone

    def __init__(self, model: Described):
        """Raises ModelError."""
        network = self._network = model.network

        def tensors(kind: str, names: Sequence[str]) -> list[Array]:
            full = [f"{network.prefix}{name}.{kind}" for name in names]
            return list(model.tensors(network.place, full))

        def linear(*names: str) -> Linear:
            matrices, biases = tensors("weight", names), tensors("bias", names)
            if len(names) == 1:  # as they are: no copy
                return Linear(matrices[0].T, biases[0])
            return Linear(np.concatenate(matrices).T, np.concatenate(biases))

        def norm(name: str) -> Norm:
            (weight,), (bias,) = tensors("weight", [name]), tensors("bias", [name])
            return Norm(weight, bias, network.epsilon)

        parts = ("word_embeddings", "token_type_embeddings", "position_embeddings")
        self.words, types, positions = tensors("weight", [f"embeddings.{part}" for part in parts])
        # A text is one sentence to the network: all tokens are of type 0.
        self.positions = positions[network.first_position :] + types[0]
        self.norm = norm("embeddings.LayerNorm")
        self.layers = []
        for i in range(network.layers):
            at = f"encoder.layer.{i}"
            qkv = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
            self.layers.append(
                Layer(
                    linear(*qkv),
                    linear(f"{at}.attention.output.dense"),
                    norm(f"{at}.attention.output.LayerNorm"),
                    linear(f"{at}.intermediate.dense"),
                    linear(f"{at}.output.dense"),
                    norm(f"{at}.output.LayerNorm"),
                )
            )
        self._head = Head(model)

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32."""
        with one_thread:
            hidden = self._hidden(batch.ids, batch.mask.astype(bool))  # (B, T, H), padding is 0
        means = hidden.sum(axis=1) / batch.mask.sum(axis=1, keepdims=True)
        return self._head(hidden[:, 0], means)

    def _hidden(self, ids: NDArray[np.int64], real: NDArray[np.bool_]) -> Array:
        """Token vectors. All but attention sees the real tokens alone, (N, H)."""
        rows, width = ids.shape
        places = np.nonzero(real)[1]
        x = self.norm(self.words[ids[real]] + self.positions[places])
        padding = np.where(real, 0, -np.inf).astype(np.float32)[:, None, None, :]
        spread = np.zeros((rows, width, 3 * x.shape[1]), np.float32)
        for layer in self.layers:
            spread[real] = layer.attention(x)
            heads = spread.reshape(rows, width, 3, self._network.heads, -1)
            mixed = _attention(heads, padding)
            x = layer.first_norm(x + layer.attended(mixed[real]))
            x = layer.second_norm(x + layer.outer(_gelu(layer.inner(x))))
        hidden = np.zeros((rows, width, x.shape[1]), np.float32)
        hidden[real] = x
        return hidden


def _attention(parts: Array, padding: Array) -> Array:
    """(B, T, 3, heads, d) to (B, T, H): each token's mean of values, weighted by softmax."""
    queries, keys, values = parts.transpose(2, 0, 3, 1, 4)  # (B, heads, T, d) each
    scores: Array = queries @ keys.swapaxes(2, 3) / np.float32(np.sqrt(parts.shape[-1]))
    scores += padding
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Array = (scores @ values).swapaxes(1, 2)
    return mixed.reshape(*mixed.shape[:2], -1)


def _gelu(x: Array) -> Array:
    """x · Φ(x), by the error function."""
    z = np.abs(x) * np.float32(np.sqrt(0.5))
    t = 1 / (1 + ERF_SCALE * z)
    tail = np.full_like(t, ERF[0])
    for coefficient in ERF[1:]:
        tail *= t
        tail += np.float32(coefficient)
    tail *= t * np.exp(-z * z)  # 1 − erf(z)
    gelu: Array = x * np.where(x < 0, tail, 2 - tail) * np.float32(0.5)
    return gelu


class _OneThread:
    """A block in which BLAS uses one thread.

    With more, products as small as these wait for one another: on two busy cores a question takes
    300 ms in place of 10. The number of threads is a setting of the process, so blocks take turns;
    so does a fork, since OpenBLAS stops its threads before one and would wait for this one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._controller: ThreadpoolController | None = None
        release = self._lock.release
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=release, after_in_child=release
        )

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._controller is None:
            from threadpoolctl import ThreadpoolController  # which others do without

            self._controller = ThreadpoolController()
        self._limit = self._controller.limit(limits=1, user_api="blas")

    def __exit__(self, *_: object) -> None:
        self._limit.restore_original_limits()
        self._lock.release()


one_thread = _OneThread()


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

    def __init__(self, config: RuntimeConfig, source: Source, place: Path):
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
        self.tokens: TokenIds = FastTokenIds(model.description.tokens)
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

        from searchengine.trainer.model.torch_model import static_model

        return static_model(torch.from_numpy(self._table), self.description)
