"""Weights in 8 bits: laid out for the kernel, written to a file, and mapped from it.

Weights have a scale for each output, activations one for each token, which the kernel finds. Some
channels of activations are several times as large as all others, and would leave those too few
steps. Such a channel is given further digits: columns with the same weights, so that its value is
the sum of all. The product stays one of integers. After Dettmers et al. (arXiv 2208.07339), who
multiply those channels in floating point instead.

all-MiniLM-L6-v2, least cosine of a sample text to float32: 0.995; without further digits 0.984.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.native.library import CLayer, CLinear, CNetwork, CNorm

Array = NDArray[Any]
Arrays = dict[str, Array]

LANES, PANEL, STEP = 16, 64, 4
"""Channels of a register, outputs of a panel, and digits that are multiplied at a time."""
MOST = 127
# Added to the moments, as a share of their mean: the inputs seen are some of all.
DAMPING = 0.05
BLOCK = 64  # rows that are rounded before those behind them are corrected
WORDS = 1 << 14  # rows of the table that are rounded at a time
_LINEARS, _NORMS = ("attention", "attended", "inner", "outer"), ("first_norm", "second_norm")
_PARTS = ("weights", "scales", "bias", "sums", "shares", "channels")


def quantize_linear(
    weight: Array, bias: Array, largest: Array, more: int, moments: Array
) -> Arrays:
    """The arrays of a linear part, by name.

    weight: (in, out) float32. bias: (out,) float32. largest: (in,), the largest absolute values of
    the inputs seen. more: further digits for all channels together. moments: (in, in), the sum of
    xᵀx over the inputs x seen.
    """
    channels, outputs = weight.shape
    scales = np.abs(weight).max(axis=0) / MOST
    scales[scales == 0] = 1
    whole = _rounded(weight / scales, moments).astype(np.int32)
    digits = _digits(largest, more)
    further = np.repeat(np.arange(channels), digits - 1)
    padding = -(channels + len(further)) % STEP
    columns = np.concatenate([whole, whole[further], np.zeros((padding, outputs), np.int32)]) + 128
    steps = columns.astype(np.uint8).reshape(-1, STEP, outputs).swapaxes(1, 2)
    panels = [steps[:, at : at + PANEL].ravel() for at in range(0, outputs, PANEL)]
    return {
        "weights": np.concatenate(panels),
        "scales": scales.astype(np.float32),
        "bias": bias.astype(np.float32),
        "sums": (scales * whole.sum(axis=0)).astype(np.float32),
        "shares": (1 / digits).astype(np.float32),
        "channels": np.concatenate([further, np.full(padding, -1)]).astype(np.int32),
    }


def _rounded(weight: Array, moments: Array) -> Array:
    """Whole numbers from -127 to 127, (in, out), whose products with the inputs are near weight's.

    The error of each row is made up for by the rows that are not rounded yet: GPTQ (Frantar et al.,
    arXiv 2210.17323), in the order of the inputs' sizes.
    """
    sizes = np.diag(moments)
    damped = moments.astype(np.float64) + np.diag(
        np.full(len(sizes), DAMPING * sizes.mean() + 1e-9)
    )
    order = np.argsort(-sizes, kind="stable")
    back = np.argsort(order)
    # The upper triangle whose square is the inverse: a third of the work of inverting it whole.
    turned = np.linalg.cholesky(damped[np.ix_(order[::-1], order[::-1])])[::-1, ::-1]
    upper = _inverse(turned).astype(np.float32)
    left = weight[order].astype(np.float32)
    rounded = np.empty_like(left)
    for start in range(0, len(left), BLOCK):
        stop = min(start + BLOCK, len(left))
        errors = np.empty_like(left[start:stop])
        for i in range(start, stop):
            rounded[i] = np.clip(np.rint(left[i]), -MOST, MOST)
            errors[i - start] = (left[i] - rounded[i]) / upper[i, i]
            left[i + 1 : stop] -= np.outer(upper[i, i + 1 : stop], errors[i - start])
        left[stop:] -= upper[start:stop, stop:].T @ errors
    return rounded[back]


def _inverse(upper: Array) -> Array:
    """The inverse of an upper triangle, (n, n)."""
    half = len(upper) // 2
    if half < BLOCK:
        return np.linalg.inv(upper)
    first, last = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    corner = -first @ upper[:half, half:] @ last
    return np.block([[first, corner], [np.zeros((len(last), half)), last]])


def _digits(largest: Array, more: int) -> Array:
    """Digits of each channel: a further one goes to the channel with the largest digits so far."""
    digits = np.ones(len(largest), np.int64)
    for _ in range(more):
        digits[np.argmax(largest / digits)] += 1
    return digits


def quantize_words(table: Array) -> Arrays:
    """The table of token vectors, (tokens, width) float32, with a scale for each."""
    scales = np.abs(table).max(axis=1) / MOST
    scales[scales == 0] = 1
    words = np.empty(table.shape, np.int8)
    for first in range(0, len(table), WORDS):  # a large table is not to be held three times
        rows = slice(first, first + WORDS)
        words[rows] = np.rint(table[rows] / scales[rows, None])
    return {"words": words, "word_scales": scales.astype(np.float32)}


def network(
    arrays: Mapping[str, Array], layers: int, heads: int, epsilon: float, bits: int
) -> CNetwork:
    """What the kernel reads. The arrays must be kept for as long as it is used.

    arrays: `words`, `word_scales`, `positions`, `norm.weight`, `norm.bias`, and of each layer
    `NUMBER.attention.weights` and so on. bits: of a digit of activations, without its sign.
    Raises KeyError, ValueError.
    """

    def at(name: str) -> int:
        return int(arrays[name].ctypes.data)

    def linear(name: str) -> CLinear:
        channels, outputs = len(arrays[f"{name}.shares"]), len(arrays[f"{name}.scales"])
        digits = channels + len(arrays[f"{name}.channels"])
        if arrays[f"{name}.weights"].size != digits * outputs:
            raise ValueError(f"{name} has weights of another size")
        if arrays[f"{name}.channels"].max(initial=-1) >= channels:
            raise ValueError(f"{name} names a channel that it does not have")
        return CLinear(channels, digits, outputs, *(at(f"{name}.{part}") for part in _PARTS))

    def norm(name: str) -> CNorm:
        return CNorm(at(f"{name}.weight"), at(f"{name}.bias"))

    stack = (CLayer * layers)()
    for i in range(layers):
        linears = [linear(f"{i}.{name}") for name in _LINEARS]
        stack[i] = CLayer(*linears, *(norm(f"{i}.{name}") for name in _NORMS))
    width, inner = arrays["words"].shape[1], len(arrays["0.inner.scales"])
    table = (at("words"), at("word_scales"), at("positions"))
    pointer = ctypes.cast(stack, ctypes.POINTER(CLayer))
    whole = CNetwork(width, heads, layers, inner, bits, epsilon, *table, norm("norm"), pointer)
    whole.kept = stack
    return whole
