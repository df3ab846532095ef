"""A network of BERT's kind rounded to 8 bits, by what it computes of sample texts in float32.

The inputs that each matrix has there say which of its channels are large, and how its weights are
best rounded: see native.weights. The vectors of the same texts say what rounding costs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from searchengine.trainer.model.bert import EMBEDDINGS, Bert
from searchengine.trainer.model.head import apply_head
from searchengine.trainer.model.tokens import Ids, TokenIds, Vectors
from searchengine.trainer.native.weights import Arrays, quantize_linear, quantize_words

Array = NDArray[Any]  # of float32
TEXTS = Path(__file__).with_name("sample_texts.txt")
NEAREST = 10  # neighbours of a sample text that are compared: as many as a page of hits has
# Bits of a digit → part → channels of its inputs for each further digit. Behind a norm, several
# channels are large.
FURTHER = {
    7: {"attention": 4, "attended": 24, "inner": 12, "outer": 24},
    6: {"attention": 2, "attended": 12, "inner": 6, "outer": 8},
}


def sample_ids(tokens: TokenIds) -> list[Ids]:
    """Token ids of each sample text, in several languages, and of all joined.

    The last is some 3,700 tokens, or as long as the network takes: errors that occur in long texts
    alone are seen as well.
    """
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    return tokens([*texts, " ".join(texts)])


def agreement(vectors: Vectors, exact: Vectors) -> tuple[float, float]:
    """How near the unit rows of a rounded network are to those in float32.

    The least cosine of a text's two vectors (NaN counts as −1), and the mean share of each text's
    NEAREST other texts that are its nearest in `exact`, 0–1.
    """
    cosine = float(np.nan_to_num(np.einsum("nd,nd->n", vectors, exact), nan=-1.0).min())
    nearest = []
    for rows in (vectors, exact):
        scores = rows @ rows.T
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1, kind="stable")[:, :NEAREST])
    return cosine, float(np.mean([np.isin(*pair).mean() for pair in zip(*nearest, strict=True)]))


@threadpool_limits.wrap(1, "blas")  # type: ignore[untyped-decorator]
def quantize(bert: Bert, ids: Sequence[Ids], bits: int) -> tuple[Arrays, Vectors]:
    """The network's arrays in 8 bits, by name, and the float32 vectors (n, dim) of sample texts.

    ids: of the texts. bits: of a digit of activations, without its sign. Raises ModelError. With
    more threads, BLAS' products of this size wait for one another on a busy machine.
    """
    network, tensor = bert.network, bert.tensor
    words, types, positions = (tensor(f"embeddings.{name}.weight") for name in EMBEDDINGS)
    # A text is one sentence to the network: all tokens are of type 0.
    positions = positions[network.first_position :] + types[0]
    arrays = quantize_words(words) | {"positions": positions}

    def norm(x: Array, name: str, kept: str) -> Array:
        weight, bias = tensor(f"{name}.weight"), tensor(f"{name}.bias")
        arrays[f"{kept}.weight"], arrays[f"{kept}.bias"] = map(np.ascontiguousarray, (weight, bias))
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        scaled: Array = centred / np.sqrt(variance + np.float32(network.epsilon)) * weight + bias
        return scaled

    lengths = [len(row) for row in ids]
    places = np.concatenate([np.arange(length) for length in lengths])
    x = norm(words[np.concatenate(ids)] + positions[places], "embeddings.LayerNorm", "norm")
    for i in range(network.layers):
        layer = f"encoder.layer.{i}"

        def linear(x: Array, part: str, *names: str, i: int = i, layer: str = layer) -> Array:
            weight = np.concatenate([tensor(f"{layer}.{name}.weight") for name in names]).T
            bias = np.concatenate([tensor(f"{layer}.{name}.bias") for name in names])
            largest = np.abs(x).max(axis=0)
            further = len(largest) // FURTHER[bits][part]
            rounded = quantize_linear(weight, bias, largest, further, x.T @ x)
            arrays.update({f"{i}.{part}.{key}": values for key, values in rounded.items()})
            product: Array = x @ weight + bias
            return product

        qkv = linear(
            x, "attention", *(f"attention.self.{name}" for name in ("query", "key", "value"))
        )
        mixed = _attention(qkv, lengths, network.heads)
        attended = linear(mixed, "attended", "attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm", f"{i}.first_norm")
        inner = _gelu(linear(x, "inner", "intermediate.dense"))
        outer = linear(inner, "outer", "output.dense")
        x = norm(x + outer, f"{layer}.output.LayerNorm", f"{i}.second_norm")
    texts = np.split(x, np.cumsum(lengths)[:-1])
    pooled = [{"cls": x[0], "max": x.max(axis=0), "mean": x.mean(axis=0)} for x in texts]
    vectors = [np.concatenate([modes[mode] for mode in bert.pooling]) for modes in pooled]
    return arrays, apply_head(bert.head, np.stack(vectors))


def _attention(qkv: Array, lengths: Sequence[int], heads: int) -> Array:
    """(N, 3 · H) of all texts to (N, H): each token's mean of values, weighted by softmax."""
    mixed = []
    for text in np.split(qkv, np.cumsum(lengths)[:-1]):
        queries, keys, values = text.reshape(len(text), 3, heads, -1).transpose(1, 2, 0, 3)
        scores: Array = queries @ keys.swapaxes(1, 2) / np.float32(np.sqrt(queries.shape[-1]))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed.append((scores @ values).swapaxes(0, 1).reshape(len(text), -1))
    return np.concatenate(mixed)


def _gelu(x: Array) -> Array:
    """x · Φ(x) by tanh, which differs from the error function's by at most 5e-4."""
    z = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    gelu: Array = np.float32(0.5) * x * (1 + np.tanh(z))
    return gelu
