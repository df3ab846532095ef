"""Whether torch runs a model in bf16 or in float32: measured once, and remembered.

On a processor it takes seconds to encode the sample texts in both, which every process would spend
before its first text. So the measurement is stored in the user's cache.
"""

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch

from trainer.model.checksums import user_cache, write_at_once
from trainer.model.tokens import TokenIds
from trainer.runtimes import measure
from trainer.runtimes.graph import FP32_GAIN, Accuracy
from trainer.runtimes.runtime import PROBE_WIDTH, speeds
from trainer.runtimes.torch_runtime import TorchRuntime

FOLDER = "torch"  # in the user's cache


@dataclass(frozen=True, slots=True)
class Comparison:
    """A lower precision beside float32.

    Attributes:
        accuracy: of its outputs for the sample texts.
        gain: how many times as fast float32 is.
    """

    accuracy: Accuracy
    gain: float

    @property
    def float32_is_faster(self) -> bool:
        """Clearly, so that chance does not decide."""
        return self.gain > FP32_GAIN

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """Raises TypeError, KeyError or ValueError for a record of another form."""
        return cls(Accuracy(**record["accuracy"]), float(record["gain"]))


def compare(fast: TorchRuntime, exact: TorchRuntime, tokens: TokenIds) -> Comparison:
    """`fast` beside float32, measured now."""
    outputs, exact_outputs = (measure.sample_vectors(run, tokens) for run in (fast, exact))
    accuracy = measure.accuracy(fast.precision, outputs, exact_outputs, pairs=tokens.pairs)
    rates = speeds({"fast": fast, "exact": exact}, min(PROBE_WIDTH, tokens.max_tokens))
    return Comparison(accuracy, rates["exact"] / rates["fast"])


def compare_once(
    fast: TorchRuntime, exact: TorchRuntime, tokens: TokenIds, fingerprint: str
) -> Comparison:
    """The same on a processor, from the user's cache if it was measured before.

    fingerprint: of the model, see trainer.model.fingerprint.
    """
    key = {
        "attention": fast.attention,  # a teacher of a training has another
        "fingerprint": fingerprint,
        "precision": str(fast.precision),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "samples": hashlib.sha256(measure.TEXTS.read_bytes()).hexdigest(),
    }
    cache = user_cache()
    # A file for each key: computers that share a home folder keep one another's measurements.
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    path = None if cache is None else cache / FOLDER / f"{name}.json"
    if path is not None and (stored := _read(path)) is not None:
        return stored
    comparison = compare(fast, exact, tokens)
    if path is not None:
        with suppress(OSError):  # read-only, or full: the next process measures again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_at_once(path, json.dumps(key | asdict(comparison), indent=2).encode())
    return comparison


def _read(path: Path) -> Comparison | None:
    """The comparison in a file; None for a missing or damaged file."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return Comparison.from_dict(json.loads(path.read_bytes()))
    return None
