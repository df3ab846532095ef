"""What the native kernel runs: networks of BERT's kind in 8 bits, without torch.

The weights are rounded once, which takes seconds, and kept in the user's cache (`Kept`). `quantize`
runs sample texts in float32 by numpy: the inputs of each matrix say which of its channels are
large, and how its weights are best rounded, see native.weights. The vectors of the same texts say
what rounding costs (`agreement`).
"""

import ctypes
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from safetensors.numpy import save
from threadpoolctl import threadpool_limits

from searchengine.trainer import fingerprint
from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import Tensors, aligned, user_cache, write_at_once
from searchengine.trainer.model.bert import EMBEDDINGS, Bert
from searchengine.trainer.model.head import TANH, Head
from searchengine.trainer.model.tokens import Ids, TokenIds, Vectors, threads
from searchengine.trainer.native import weights
from searchengine.trainer.native.library import CNetwork, CTexts, digit_bits, levels, load
from searchengine.trainer.native.weights import LANES, Arrays, quantize_linear, quantize_words
from searchengine.trainer.runtimes.runtime_config import INT8, RuntimeKind
from searchengine.trainer.sources.source import Source

_log = logging.getLogger(__name__)
FORMAT = 3  # of the file, and of the sample texts
# Of the sample texts, beside float32: the least cosine, and the share of equal neighbours.
MIN_COSINE, MIN_AGREEMENT = 0.99, 0.9
Array = NDArray[Any]  # of float32
TEXTS = Path(__file__).with_name("sample_texts.txt")
NEAREST = 10  # neighbours of a sample text that are compared: as many as a page of hits has
# Bits of a digit → part → how many channels of its inputs share one further digit. Behind a norm,
# several channels are large.
FURTHER = {
    7: {"attention": 4, "attended": 24, "inner": 12, "outer": 24},
    6: {"attention": 2, "attended": 12, "inner": 6, "outer": 8},
}


class InaccurateError(ModelError):
    """A model for which 8 bits are not accurate enough."""


class NativeRuntime:
    """Runs a network of BERT's kind. Safe to use from several threads, as all runtimes.

    precision: the one in use, never "auto". token_budget, min_ratio: tokens of the batch that it
    runs fastest, and least length of a text in it, relative to the longest.
    """

    kind: str = RuntimeKind.NATIVE
    precision: str = INT8
    token_budget = 1 << 14  # the kernel takes a few texts at a time from it
    min_ratio = 0.0

    def __init__(self, bert: Bert, arrays: Arrays):
        """Raises KeyError or ValueError for arrays that are not the network's."""
        network = bert.network
        self._bert, self._arrays = bert, arrays  # the kernel reads the arrays
        self._network = weights.network(
            arrays, network.layers, network.heads, network.epsilon, digit_bits()
        )

    def run(self, rows: Sequence[Ids]) -> Vectors:
        """Unit rows (B, dim) float32. Raises ModelError."""
        tokens = np.concatenate(rows).astype(np.int32, copy=False)
        lengths = np.array([len(row) for row in rows], np.int32)
        words, longest = len(self._arrays["words"]), len(self._arrays["positions"])
        if tokens.min(initial=0) < 0 or tokens.max(initial=0) >= words:
            raise ModelError(
                f"the tokenizer gave the token {tokens.max()}, but the network has {words}: the "
                "files belong to two models"
            )
        if lengths.min(initial=1) < 1 or lengths.max(initial=1) > longest:
            raise ModelError(f"a text must have 1 to {longest} tokens, got {lengths.max()}")
        maxima = "max" in self._bert.pooling
        found = encode(self._network, tokens, lengths, threads(), maxima=maxima)
        pooled = dict(zip(("cls", "mean", "max"), found, strict=False))
        vectors = np.concatenate([pooled[mode] for mode in self._bert.pooling], axis=1)
        return apply_head(self._bert.head, vectors)


def encode(
    network: CNetwork,
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    processors: int,
    level: int = 0,
    maxima: bool = False,
) -> tuple[NDArray[np.float32], ...]:
    """The first token's vector of each text, the means and, if asked for, the maxima of all tokens.

    (B, width) float32 each. tokens: of all texts, one behind another; each must be one of the
    network's. lengths: (B,), at least 1 and at most the network's positions. Raises MemoryError,
    and ValueError for digits that the level does not compute with.
    """
    pooled = tuple(np.empty((len(lengths), network.width), np.float32) for _ in range(2 + maxima))
    tokens, lengths = np.ascontiguousarray(tokens), np.ascontiguousarray(lengths)
    places = [rows.ctypes.data for rows in pooled]
    texts = CTexts(tokens.ctypes.data, lengths.ctypes.data, len(lengths), *places)
    problem = load().encoder_run(level, ctypes.byref(network), ctypes.byref(texts), processors)
    if problem == 2:  # see encoder_run in native/source/interface.cpp
        raise ValueError(f"{levels()[level]} does not compute with digits of {network.bits} bits")
    if problem:
        raise MemoryError("not enough memory for the texts of a batch")
    return pooled


def obstacle(bert: Bert, kept: "Kept") -> str:
    """Why the kernel cannot run a model; "" if it can, as far as is known before rounding it."""
    network = bert.network
    widths = network.width, network.inner, network.width // network.heads
    if network.width % network.heads or any(width % LANES for width in widths):
        return f"its widths are {', '.join(map(str, widths))}, not multiples of {LANES}"
    return str(kept.record.get("refused", ""))


def start(bert: Bert, tokens: TokenIds, kept: "Kept") -> NativeRuntime:
    """The runtime of a model, whose weights are rounded unless that was done before.

    One process at a time rounds them; the others wait, and take what it kept. Raises
    InaccurateError, and ModelError for damaged weights.
    """
    if (runtime := kept.runtime(bert)) is not None:
        return runtime
    with ExitStack() as stack:
        if kept.path is not None:
            with suppress(OSError):  # read-only, or full: the next process rounds again
                kept.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(kept.path.with_suffix(".lock")))
        return kept.runtime(bert) or _round(bert, tokens, kept)


def _round(bert: Bert, tokens: TokenIds, kept: "Kept") -> NativeRuntime:
    """Round the weights, compare with float32, and keep them, or why they are refused."""
    _log.info("Rounding the encoder to 8 bits%s…", "" if kept.path is None else ", once")
    ids = sample_ids(tokens)
    arrays, exact = quantize(bert, ids, digit_bits())
    runtime = NativeRuntime(bert, arrays)
    cosine, share = agreement(runtime.run(ids), exact)
    if cosine < MIN_COSINE or share < MIN_AGREEMENT:
        refused = (
            "8 bits are not accurate enough for it: the least cosine to float32 is "
            f"{cosine:.4f} (expected {MIN_COSINE}), and {share:.0%} of the nearest texts are the "
            f"same ({MIN_AGREEMENT:.0%})"
        )
        kept.write({}, bert, refused)
        raise InaccurateError(refused)
    kept.write(arrays, bert)
    return kept.runtime(bert) or runtime  # mapped, and shared by processes


class Kept:
    """Rounded weights in the user's cache: a safetensors file, whose record identifies the model.

    path: None where there is no home or no kernel. record: {} unless of the model's present files.
    """

    def __init__(self, source: Source, state: object):
        """state: of the source's files, from before they were read."""
        self._identity = json.loads(json.dumps([FORMAT, state]))
        self.path = None
        if levels() and (cache := user_cache()) is not None:
            place = (str(source.folder.resolve()), source.starter, source.layers, digit_bits())
            name = hashlib.sha256(repr(place).encode("utf-8", "surrogateescape")).hexdigest()[:16]
            self.path = cache / "native" / f"{name}.safetensors"
        self._read()

    def _read(self) -> None:
        self.record: dict[str, Any] = {}
        if self.path is not None and os.access(self.path, os.R_OK):
            with suppress(ModelError, ValueError, KeyError):  # damaged, or of another version
                self._tensors = Tensors(self.path)
                record = json.loads(self._tensors.metadata["record"])
                if record["identity"] == self._identity:
                    self.record = record

    def runtime(self, bert: Bert) -> NativeRuntime | None:
        """The runtime of the weights; None where there are none, or their bytes have changed."""
        self._read()  # another process may have written it
        if self.record.get("refused"):
            return None
        with suppress(KeyError, ValueError):
            if self.record["sha256"] == hashlib.sha256(self._tensors.data.data).hexdigest():
                arrays = {name: self._tensors[name] for name in self._tensors.shapes}
                return NativeRuntime(bert, arrays)
        return None

    def write(self, arrays: Arrays, bert: Bert, refused: str = "") -> None:
        """Keep the weights, or why there are none, unless the cache is read-only or full."""
        if self.path is None:
            return
        data = save(dict(arrays))  # for the checksum, which the record holds
        start = 8 + int.from_bytes(data[:8], "little")
        record = {
            "identity": self._identity,
            "fingerprint": fingerprint.of_folder(bert),
            "refused": refused,
            "sha256": hashlib.sha256(data[start:]).hexdigest(),
        }
        with suppress(OSError):
            write_at_once(self.path, aligned(save(dict(arrays), {"record": json.dumps(record)})))


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
    pooled = [{"cls": t[0], "max": t.max(axis=0), "mean": t.mean(axis=0)} for t in texts]
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


def apply_head(head: Head, vectors: Array) -> Array:
    """Unit rows (B, dim) float32 of the pooled vectors (B, H)."""
    for layer in (*head, None):
        if layer is None:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.float32(1e-12))
        else:
            vectors = vectors @ layer.weight.T
            if layer.bias is not None:
                vectors += layer.bias
            vectors = np.tanh(vectors) if layer.activation == TANH else vectors
    return np.asarray(vectors, np.float32)
