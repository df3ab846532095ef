"""The cross-encoder: one network reads a question and a text together, and scores the pair.

scorer = CrossEncoder.load("my-cross-encoder")
scores = scorer.score(["how do whales sleep"], ["A whale rests half of its brain."])    # (1,)

It is more accurate than comparing two vectors and some hundred times as slow, so it scores few
texts again that a search has found: Nogueira & Cho, arXiv 1901.04085.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes.handle import ModelHandle, share_handle
from searchengine.trainer.runtimes.runtime import run_batches
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

Scores = NDArray[np.float32]
_CHUNK = 4096  # pairs tokenised at a time


class CrossEncoder:
    """Scores pairs of a question and a text; `load` gives one. Safe to use from several threads."""

    def __init__(self, handle: ModelHandle, source: str) -> None:
        """`handle`: of a source of pairs. `source`: the name by which `load` finds it again."""
        self._handle, self._source = handle, source
        self._tokens = handle.tokens

    @classmethod
    def load(cls, source: str | Path, runtime: RuntimeConfig | None = None) -> "CrossEncoder":
        """The cross-encoder in a folder or on the model hub: a sequence classifier of transformers
        with one output, as sentence-transformers and `trainer` save it.

        Cross-encoders of one process with the same source and runtime share one model.

        As for encoders, OpenVINO compiles it before the first pair, which takes torch and some
        seconds; the next process needs neither. `runtime`: what runs it, see RuntimeConfig; None
        leaves all open. Raises ModelError.
        """
        config = RuntimeConfig() if runtime is None else runtime
        place = find(source, config)
        return cls(cast(ModelHandle, share_handle(config, place)), place.name)

    @property
    def source(self) -> str:
        """The name by which `load` finds it again; absolute for folders."""
        return self._source

    @property
    def max_tokens(self) -> int:
        """Most tokens of a pair that are read; the longer text is cut."""
        return self._tokens.max_tokens

    @property
    def runs_on(self) -> str:
        """Runtime and precision, as "openvino bf16"; known without starting them."""
        return self._handle.runs_on

    @property
    def fingerprint(self) -> str:
        """Fingerprint of weights and tokenizer; see searchengine.trainer.model.torch_model."""
        return self._handle.fingerprint

    @property
    def runtime(self) -> str:
        """The runtime, "openvino" or "torch"; started if need be. Raises ModelError."""
        return self._handle.runtime.kind.value

    @property
    def precision(self) -> str:
        """The arithmetic in use: "fp32", "bf16", "fp16" or "int8"."""
        return self._handle.runtime.precision.value

    def start(self) -> None:
        """Start the runtime, compile the model if need be: `score` does it otherwise.

        Raises ModelError where nothing runs the model as `runtime` demands.
        """
        self._handle.runtime  # noqa: B018

    def score(self, questions: Sequence[str], texts: Sequence[str]) -> Scores:
        """The score of each question with its text, (n,) float32; higher is nearer.

        Between 0 and 1, unless the model's configuration says that its output is taken as it is.
        Raises ModelError as `start` does.
        """
        pairs = list(zip(questions, texts, strict=True))
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(pairs), _CHUNK):
            ids = self._tokens(pairs[start : start + _CHUNK])
            for batch, rows in run_batches(self._handle.runtime, self._tokens, ids):
                scores[start + np.array(batch)] = rows[:, 0]
        return scores


def find(source: str | Path, config: RuntimeConfig) -> Source:
    """Where `CrossEncoder.load` reads a model, which is not read. Raises ModelError."""
    place = Source.find(source, trust_remote_code=config.trust_remote_code)
    return replace(place, pairs=True)


def check(source: str | Path, config: RuntimeConfig) -> None:
    """Raise ModelError unless `source` is a cross-encoder; reads its configuration only."""
    from searchengine.trainer.model import pairs  # torch, which takes seconds

    pairs.check(find(source, config))
