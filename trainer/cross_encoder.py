"""The cross-encoder: one network reads a question and a text together, and scores the pair.

scorer = CrossEncoder.load("my-cross-encoder")
scores = scorer.score(["how do whales sleep"], ["A whale rests half of its brain."])    # (1,)

It is more accurate than comparing two vectors and some hundred times as slow, so it scores few
texts again that a search has found: Nogueira & Cho, arXiv 1901.04085.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from trainer.errors import ModelError, first_line
from trainer.model.layout import require_safetensors
from trainer.model.network import max_tokens, quiet
from trainer.model.source import Source, Starter
from trainer.model.tokens import without_surrogates
from trainer.runtimes.config import Precision, RuntimeConfig, RuntimeKind
from trainer.runtimes.runtime import token_budget_batches
from trainer.runtimes.torch_runtime import (
    DTYPES,
    pick_device,
    pick_precision,
    token_budget,
)

Scores = NDArray[np.float32]
# The greatest difference to float32's score of a sample pair that is accurate enough.
MAX_DIFFERENCE = 0.02
SAMPLES = (
    ("how do whales sleep", "A whale rests one half of its brain at a time."),
    ("how do whales sleep", "Dough rises while yeast turns sugar into gas."),
    ("what makes bread rise", "Dough rises while yeast turns sugar into gas."),
)
# What transformers raises for a folder that it cannot read.
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError
)  # fmt: skip
# Where a model's configuration names what is applied to its output; after sentence-transformers.
_SIGMOIDS = (None, "torch.nn.modules.activation.Sigmoid")
_IDENTITY = "torch.nn.modules.linear.Identity"
_CHUNK = 4096  # pairs tokenised at a time


class CrossEncoder:
    """Scores pairs of a question and a text; `load` gives one. Safe to use from several threads.

    Attributes:
        source: the name by which `load` finds it again; absolute for folders.
        precision: of the network.
        max_tokens: most tokens of a pair that are read; the longer text is cut.
    """

    def __init__(self, network: Any, tokenizer: Any, source: str, config: RuntimeConfig) -> None:
        """`network`: of transformers, with one output; float32. Raises ModelError."""
        self.source = source
        self._device = pick_device(config.device)
        self._tokenizer, self._lock = tokenizer, Lock()
        self._sigmoid = _activation(network.config) in _SIGMOIDS
        self.max_tokens = max_tokens({}, tokenizer, network.config)
        self._network = network.eval().to(self._device)
        self.precision = Precision.FP32
        wanted = pick_precision(Precision(config.precision), self._device)
        if wanted is not Precision.FP32:
            self._lower(wanted, required=config.precision is not Precision.AUTO)

    @classmethod
    def load(cls, source: str | Path, runtime: RuntimeConfig | None = None) -> "CrossEncoder":
        """The cross-encoder in a folder or on the model hub: a sequence classifier of transformers
        with one output, as sentence-transformers and `trainer` save it. torch runs it.

        `runtime`: device and precision; "auto" is bf16 where the hardware multiplies it natively
        and the scores of sample pairs stay within MAX_DIFFERENCE. Raises ModelError.
        """
        config = RuntimeConfig(RuntimeKind.TORCH) if runtime is None else runtime
        place = find(source, config)
        options = {"trust_remote_code": config.trust_remote_code}
        with _readable(place.name):
            tokenizer = AutoTokenizer.from_pretrained(str(place.folder), **options)
            network = AutoModelForSequenceClassification.from_pretrained(
                str(place.folder), dtype=torch.float32, **options
            )
        return cls(network, tokenizer, place.name, config)

    def score(self, questions: Sequence[str], texts: Sequence[str]) -> Scores:
        """The score of each question with its text, (n,) float32; higher is nearer.

        Between 0 and 1, unless the model's configuration says that its output is taken as it is.
        """
        return self._score(self._network, questions, texts)

    def _score(self, network: Any, questions: Sequence[str], texts: Sequence[str]) -> Scores:
        pairs = [
            (without_surrogates(question), without_surrogates(text))
            for question, text in zip(questions, texts, strict=True)
        ]
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(pairs), _CHUNK):
            scores[start : start + _CHUNK] = self._chunk(network, pairs[start : start + _CHUNK])
        return scores

    def _chunk(self, network: Any, pairs: Sequence[tuple[str, str]]) -> Scores:
        with self._lock:  # truncation is a state of the tokenizer
            encoded = self._tokenizer(pairs, truncation=True, max_length=self.max_tokens)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        scores = np.empty(len(pairs), np.float32)
        for rows in token_budget_batches(lengths, token_budget(self._device), 0.5):
            chosen = {name: [values[i] for i in rows] for name, values in encoded.items()}
            batch = self._tokenizer.pad(chosen, return_tensors="pt").to(self._device)
            with torch.inference_mode():
                logits = network(**batch).logits[:, 0].float()
            scores[rows] = (logits.sigmoid() if self._sigmoid else logits).cpu().numpy()
        return scores

    def _lower(self, precision: Precision, *, required: bool) -> None:
        """Run in a lower precision if that gives the same scores. Raises ModelError if required."""
        questions, texts = zip(*SAMPLES, strict=True)
        lower = copy.deepcopy(self._network).to(DTYPES[precision])
        differences = self._score(lower, questions, texts) - self.score(questions, texts)
        greatest = float(np.abs(differences).max())
        if greatest <= MAX_DIFFERENCE:
            self._network, self.precision = lower, precision
        elif required:
            raise ModelError(
                f"{precision} is not accurate enough for {self.source}: a score of a sample pair "
                f"differs by {greatest:.3f} from float32's; choose fp32"
            )


def find(source: str | Path, config: RuntimeConfig) -> Source:
    """Where `CrossEncoder.load` reads a model whose configuration is that of a cross-encoder.

    Raises ModelError, also for a runtime that cannot run it.
    """
    if config.runtime is RuntimeKind.OPENVINO or config.precision is Precision.INT8:
        raise ModelError("a cross-encoder is run by torch; leave runtime and int8 out")
    if isinstance(source, str) and source in list(Starter):
        raise ModelError(
            f"{source} encodes one text, and scores no pairs; train a cross-encoder first: "
            "searchengine train-cross-encoder"
        )
    place = Source.find(source, trust_remote_code=config.trust_remote_code)
    require_safetensors(place.folder)
    with _readable(place.name):
        configuration = AutoConfig.from_pretrained(
            str(place.folder), trust_remote_code=config.trust_remote_code
        )
    _check(configuration, place.name)
    return place


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """What transformers raises for a folder that it cannot read, as ModelError; no warnings."""
    try:
        with quiet():
            yield
    except UNREADABLE as error:
        raise ModelError(
            f"{name} cannot be read as a cross-encoder: {first_line(error)}"
        ) from error


def _check(described: Any, name: str) -> None:
    """Raise ModelError unless a configuration is that of a cross-encoder."""
    kind = next(iter(described.architectures or ()), "model of unknown kind")
    if "SequenceClassification" not in kind:
        raise ModelError(
            f"{name} is a {kind}, which scores no pairs; name a cross-encoder: a sequence "
            "classifier with one output"
        )
    if described.num_labels != 1:
        raise ModelError(
            f"{name} has {described.num_labels} outputs; name a cross-encoder with one output"
        )
    if (activation := _activation(described)) not in (*_SIGMOIDS, _IDENTITY):
        raise ModelError(
            f"{name} applies {activation} to its output, which is not known here; name a "
            "cross-encoder whose activation is Sigmoid or Identity"
        )


def _activation(described: Any) -> str | None:
    """What is applied to the output, as sentence-transformers names it; None: nothing is said."""
    named = getattr(described, "sentence_transformers", None) or {}
    former = getattr(described, "sbert_ce_default_activation_function", None)
    activation: str | None = named.get("activation_fn") or former
    return activation
