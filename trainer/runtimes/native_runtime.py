"""What the native kernel runs: described networks in 8 bits, without torch and without compiling.

The weights are quantized once, by what numpy computes of sample texts, and kept in the
user's cache.
"""

import logging
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from filelock import FileLock

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.disk import Checksums, write_at_once
from searchengine.trainer.model.numpy_models import Described
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import Padded, TokenIds
from searchengine.trainer.native import weights
from searchengine.trainer.native.library import WIDE, digit_bits, encode, levels, threads
from searchengine.trainer.native.weights import LANES, Arrays
from searchengine.trainer.runtimes.graph import Accuracy
from searchengine.trainer.runtimes.measure import accuracy, sample_vectors
from searchengine.trainer.runtimes.numpy_runtime import (
    Array,
    Head,
    Linear,
    NumpyRuntime,
    one_thread,
)
from searchengine.trainer.runtimes.runtime import Vectors
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeKind

_log = logging.getLogger(__name__)
FORMAT = 2
CHECKSUM = ".sha256"
# Bits of a digit → part → channels of its inputs for each further digit. Behind a norm, several
# channels are large.
_MORE = {
    7: {"attention": 4, "attended": 24, "inner": 12, "outer": 24},
    6: {"attention": 2, "attended": 12, "inner": 6, "outer": 8},
}


class NativeRuntime:
    """Runs a described network. Safe to use from several threads.

    Attributes:
        accuracy: of the sample texts' vectors, see measure.accuracy.
    """

    kind = RuntimeKind.NATIVE
    precision = Precision.INT8
    token_budget = 1 << 14  # the kernel takes a few texts at a time from it
    multiple = 1
    packs = True

    def __init__(self, model: Described, arrays: Arrays, accuracy: Accuracy | None = None):
        """Raises KeyError or ValueError for arrays that are not the network's."""
        described = model.network
        self._arrays = arrays  # the kernel reads them
        self._network = weights.network(
            arrays, described.layers, described.heads, described.epsilon, digit_bits()
        )
        self._head = Head(model)
        self.accuracy = accuracy

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32. Raises ModelError."""
        real = batch.mask.astype(bool)
        tokens, lengths = batch.ids[real].astype(np.int32), real.sum(axis=1, dtype=np.int32)
        words, longest = len(self._arrays["words"]), len(self._arrays["positions"])
        if tokens.min(initial=0) < 0 or tokens.max(initial=0) >= words:
            raise ModelError(f"a token must be below {words}, got {tokens.max()}")
        if lengths.min(initial=1) < 1 or lengths.max(initial=1) > longest:
            raise ModelError(f"a text must have 1 to {longest} tokens, got {lengths.max()}")
        return self._head(*encode(self._network, tokens, lengths, threads()))


def native_runtime(model: Described, source: Source) -> NativeRuntime:
    """The runtime of a described model, quantized unless that was done before.

    Raises ModelError where there is no kernel, or 8 bits are not accurate enough for the model.
    """
    return find_native(model, source) or _accurate(_quantized(model, source))


def find_native(model: Described, source: Source) -> NativeRuntime | None:
    """The runtime of a model that was quantized before, or None. Raises ModelError as above."""
    if not levels():
        raise ModelError(
            "the native runtime is not compiled: install searchengine again with a C++ compiler"
        )
    described = model.network
    _check_widths({described.width, described.width // described.heads})
    runtime = _find(model, source)
    return None if runtime is None else _accurate(runtime)


def _accurate(runtime: NativeRuntime) -> NativeRuntime:
    assert runtime.accuracy is not None
    if shortfall := runtime.accuracy.shortfall(Precision.INT8):
        raise ModelError(f"the native runtime is not accurate enough for this model: {shortfall}")
    return runtime


def _find(model: Described, source: Source) -> NativeRuntime | None:
    path = _place(source)
    if path is None or not path.is_file():
        return None
    try:
        with Checksums(source.user_cache) as checksums:  # flipped bits would give other vectors
            if checksums.of(path) != path.with_suffix(CHECKSUM).read_text():
                return None
        arrays, record = weights.read(path)
        if record["format"] != FORMAT or record["fingerprint"] != model.fingerprint:
            return None
        return NativeRuntime(model, arrays, Accuracy(**record["accuracy"]))
    except (OSError, ValueError, KeyError, TypeError):  # of another version, or damaged
        return None


def _place(source: Source) -> Path | None:
    cache = source.user_cache
    narrow = None if digit_bits() == WIDE else "narrow"
    parts = ("native", narrow, source.starter, source.layers, source.route)
    name = "-".join(str(part) for part in parts if part is not None)
    return None if cache is None else cache / f"{name}.safetensors"


def _quantized(model: Described, source: Source) -> NativeRuntime:
    """Quantize the weights, measure them, and keep them.

    One process at a time; the others wait, and take what it kept. Raises ModelError.
    """
    path = _place(source)
    with ExitStack() as held:
        if path is not None:
            with suppress(OSError):  # read-only, or full: the next process quantizes again
                path.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(FileLock(path.with_suffix(".lock")))
                if (present := _find(model, source)) is not None:
                    return present
        _log.info("Rounding the encoder to 8 bits%s…", "" if path is None else ", once")
        arrays, measured = _rounded(model)
        if path is not None:
            record = {
                "format": FORMAT,
                "fingerprint": model.fingerprint,
                "accuracy": asdict(measured),
            }
            with suppress(OSError):
                weights.write(path, arrays, record)
                digest = Checksums(None).of(path)
                write_at_once(path.with_suffix(CHECKSUM), digest.encode())
                if (kept := _find(model, source)) is not None:  # mapped, and shared by processes
                    return kept
        return NativeRuntime(model, arrays, measured)


def _check_widths(widths: set[int]) -> None:
    if any(width % LANES for width in widths):
        raise ModelError(f"the native runtime needs widths that are multiples of {LANES}")


def _rounded(model: Described) -> tuple[Arrays, Accuracy]:
    """The arrays of a network in 8 bits, and how near its vectors are. Raises ModelError."""
    exact = NumpyRuntime(model)
    _check_widths({len(layer.outer.weight) for layer in exact.layers})
    tokens = TokenIds(model.description.tokens)
    exact.layers = [
        layer._replace(
            attention=Recorded(*layer.attention),
            attended=Recorded(*layer.attended),
            inner=Recorded(*layer.inner),
            outer=Recorded(*layer.outer),
        )
        for layer in exact.layers
    ]
    vectors = sample_vectors(exact, tokens)
    with one_thread:
        arrays = _arrays(exact)
    outputs = sample_vectors(NativeRuntime(model, arrays), tokens)
    return arrays, accuracy(Precision.INT8, outputs, vectors, pairs=False)


def _arrays(exact: NumpyRuntime) -> Arrays:
    """The network's arrays in 8 bits, by name. Its linear parts have recorded their inputs."""
    arrays = weights.quantize_words(exact.words) | {
        "positions": np.ascontiguousarray(exact.positions),
        "norm.weight": exact.norm.weight,
        "norm.bias": exact.norm.bias,
    }
    for i, layer in enumerate(exact.layers):
        for name, share in _MORE[digit_bits()].items():
            part: Recorded = getattr(layer, name)
            more = len(part.largest) // share
            quantized = weights.quantize_linear(*part, part.largest, more, part.moments)
            arrays |= {f"{i}.{name}.{key}": values for key, values in quantized.items()}
        for name in ("first_norm", "second_norm"):
            arrays[f"{i}.{name}.weight"] = getattr(layer, name).weight
            arrays[f"{i}.{name}.bias"] = getattr(layer, name).bias
    return arrays


class Recorded(Linear):
    """A linear part, and of its inputs `largest` and `moments` of weights.quantize_linear."""

    largest: Array = np.zeros(1, np.float32)
    moments: Array = np.zeros((1, 1), np.float32)

    def __call__(self, x: Array) -> Array:
        """The linear part of x, which is recorded."""
        self.largest = np.maximum(self.largest, np.abs(x).max(axis=0))
        self.moments = self.moments + x.T @ x
        return super().__call__(x)
