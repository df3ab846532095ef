"""What the native kernel runs: networks of BERT's kind in 8 bits, without torch.

The weights are rounded once, which takes seconds, and kept in the user's cache.
"""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from filelock import FileLock
from safetensors.numpy import save

from searchengine.trainer import fingerprint
from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import Tensors, aligned, user_cache, write_at_once
from searchengine.trainer.model.bert import Bert
from searchengine.trainer.model.head import apply_head
from searchengine.trainer.model.tokens import Ids, TokenIds, Vectors
from searchengine.trainer.native import weights
from searchengine.trainer.native.library import digit_bits, encode, levels, threads
from searchengine.trainer.native.weights import LANES, Arrays
from searchengine.trainer.runtimes.calibration import agreement, quantize, sample_ids
from searchengine.trainer.runtimes.runtime_config import INT8, RuntimeKind
from searchengine.trainer.sources.source import Source

_log = logging.getLogger(__name__)
FORMAT = 3  # of the file, and of the sample texts
# Of the sample texts, beside float32: the least cosine, and the share of equal neighbours.
MIN_COSINE, MIN_AGREEMENT = 0.99, 0.9


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

    path: None where there is no home. record: {} unless it is of the present files of the model.
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
        self._read()
        with suppress(KeyError, ValueError):
            if self.record["sha256"] == hashlib.sha256(self._tensors.data.data).hexdigest():
                arrays = {name: self._tensors[name] for name in self._tensors.shapes}
                return NativeRuntime(bert, arrays)
        return None

    def write(self, arrays: Arrays, bert: Bert, refused: str = "") -> None:
        """Keep the weights, or why there are none, unless the cache is read-only or full."""
        if self.path is None:
            return
        data = save(dict(arrays))
        start = 8 + int.from_bytes(data[:8], "little")
        record = {
            "identity": self._identity,
            "fingerprint": fingerprint.of_folder(bert),
            "refused": refused,
            "sha256": hashlib.sha256(data[start:]).hexdigest(),
        }
        with suppress(OSError):
            write_at_once(self.path, aligned(save(dict(arrays), {"record": json.dumps(record)})))
