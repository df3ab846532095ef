"""The network run by torch: on the processor, on CUDA, on Apple's GPU.

Measured on a 2-core Zen 4: bfloat16 weights roughly double the rate of float32 where the processor
multiplies bfloat16 natively, and cost accuracy nothing that a ranking sees (cosine ≥ 0.9998) as
long as pooling stays in float32.
"""

import platform
import sys
import warnings
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import takewhile
from threading import Lock
from typing import Any

import numpy as np
import torch

from searchengine.trainer.errors import MemoryWarning, ModelError
from searchengine.trainer.model.disk import recall, remember
from searchengine.trainer.model.modules import Batch, SentenceModule, lowered
from searchengine.trainer.model.pairs import PairModule
from searchengine.trainer.model.tokens import Padded, TokenIds
from searchengine.trainer.runtimes import measure
from searchengine.trainer.runtimes.graph import Accuracy
from searchengine.trainer.runtimes.runtime import (
    PROBE_WIDTH,
    Vectors,
    blank,
    fastest_budget,
    speeds,
)
from searchengine.trainer.runtimes.runtime_config import (
    Precision,
    RuntimeKind,
    cpu_has_native_bf16,
    processor,
)
from searchengine.trainer.runtimes.unpadded import unpadded

# Tokens of a padded batch: enough rows to fill the matrix units, few enough to fit the cache.
TOKEN_BUDGET = {"cpu": 1024, "cuda": 65536, "mps": 16384}
CUDA_BUDGETS = (16384, 32768, 65536, 131072)
DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
# A question of up to REPLAY_TOKENS is replayed as a CUDA graph, with widths in REPLAY_STEP steps.
REPLAY_TOKENS, REPLAY_STEP = 64, 16
FOLDER = "torch"  # in the user's cache
# One thread at a time records: a recording begins by waiting for the device, which CUDA refuses
# while another one is recording.
_recording = Lock()


def token_budget(device: torch.device) -> int:
    """Tokens of a padded batch on this device."""
    return TOKEN_BUDGET.get(device.type, TOKEN_BUDGET["cpu"])


def pick_device(device: str | None) -> torch.device:
    """The named device, or the fastest one that is there.

    A CUDA device by its number: which one "cuda" alone means differs from thread to thread.
    """
    if device is None:
        if not torch.cuda.is_available():
            return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
        device = "cuda"
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is None:
            chosen = torch.device("cuda", torch.cuda.current_device())
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"the device {device!r} cannot be used here: leave it out, or name cpu, cuda or mps"
        ) from error
    return chosen


def pick_precision(precision: Precision, device: torch.device) -> Precision:
    """AUTO becomes BF16 where the hardware computes it natively, FP32 elsewhere."""
    if precision is Precision.FP16 and device.type == "cpu":
        raise ModelError("fp16 is slow on a processor: choose fp32 or bf16, or a GPU")
    if precision is not Precision.AUTO:
        return precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device.type == "cpu" and cpu_has_native_bf16()
    return Precision.BF16 if native else Precision.FP32


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether torch failed for want of memory, also in what this error came after."""
    lacking = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")
    if isinstance(error, torch.OutOfMemoryError) or any(name in str(error) for name in lacking):
        return True
    return error.__context__ is not None and ran_out_of_memory(error.__context__)


class TorchRuntime:
    """Runs a SentenceModule or a PairModule for inference in one precision on one device.

    BF16 and FP16 compute with a copy on the device. `module` then stays as it is, where it is: the
    float32 weights are the ones that are saved and fingerprinted. FP32 moves it to the device.
    """

    kind = RuntimeKind.TORCH
    multiple = 1
    packs = False

    def __init__(
        self,
        module: SentenceModule | PairModule,
        precision: Precision,
        device: str | None = None,
        max_tokens: int = PROBE_WIDTH,
    ):
        self._max_tokens = max_tokens
        self.device = pick_device(device)
        self.precision = pick_precision(precision, self.device)
        self._module = module
        self._lock = Lock()
        self._replay = Replay(self.device)
        self._room = sys.maxsize  # tokens of a batch that memory has room for

    @property
    def token_budget(self) -> int:
        """Tokens of a padded batch; on CUDA, where chips differ most, it is measured."""
        return min(self._fastest_budget, self._room)

    @cached_property
    def _fastest_budget(self) -> int:
        if self.device.type != "cuda":
            return token_budget(self.device)
        width = min(PROBE_WIDTH, self._max_tokens)
        budgets = [*takewhile(lambda tokens: self._has_room(tokens, width), CUDA_BUDGETS)]
        return fastest_budget(self, budgets or CUDA_BUDGETS[:1], width)

    def _has_room(self, tokens: int, width: int) -> bool:
        """Whether a batch of this number of tokens fits into memory."""
        try:
            self._compute(blank(tokens, width))
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            return False
        return True

    @cached_property
    def _running(self) -> SentenceModule | PairModule:
        if self.precision is Precision.FP32:
            return self._module.to(self.device)
        module = lowered(self._module, DTYPES[self.precision], self.device)
        if self.device.type == "cuda" and isinstance(module, SentenceModule):
            return unpadded(module)
        return module

    def leave(self) -> None:
        """Free the device's memory, where the module itself was moved there."""
        self.__dict__.pop("_running", None)
        self._module.to("cpu")

    @property
    def attention(self) -> str:
        """What computes the network's attention, by its name in transformers."""
        network: Any = self._module.transformer
        return str(network.config._attn_implementation)

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32; of pairs, scores (B, 1).

        If memory runs out, half a batch is computed at a time from then on, and a MemoryWarning
        says so. Raises ModelError for a single row that does not fit.
        """
        rows = len(batch.ids)
        if batch.ids.size <= self._room or rows == 1:
            try:
                return self._compute(batch)
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                self._spare(batch, error)
        if rows == 1:
            return self.run(batch)
        halves = batch.part(slice(rows // 2)), batch.part(slice(rows // 2, None))
        return np.concatenate([self.run(half) for half in halves])

    def _spare(self, batch: Padded, error: RuntimeError) -> None:
        """Take less memory from now on."""
        rows, width = batch.ids.shape
        if self._replay.takes(batch):
            self._replay.stop()
            change = "questions are no longer replayed as graphs"
        elif rows == 1:
            raise ModelError(
                f"{self.device} has too little memory for a text of {width} tokens in "
                f"{self.precision}: free some, or choose another device"
            ) from error
        else:
            self._room = min(self._room, -(-rows // 2) * width)
            change = f"a batch has {self._room} tokens, padding included"
        warnings.warn(f"memory ran out on {self.device}: {change}", MemoryWarning, stacklevel=4)

    def _compute(self, batch: Padded) -> Vectors:
        with self._lock, torch.inference_mode():
            module = self._running
            if module.training or module.transformer.training:
                module.eval()
            if self._replay.takes(batch):
                vectors = self._replay.run(module, batch)
            else:
                vectors = module.output(Batch.of(batch, self.device))
            return np.asarray(vectors.cpu().numpy(), dtype=np.float32)


class Replay:
    """Single short questions on CUDA, as recorded graphs.

    Launching the kernels of a small network one by one takes longer than they run; a graph is
    launched at once. One is recorded for each width when it is first needed. After
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """

    def __init__(self, device: torch.device):
        """device: with its number, if it is a CUDA device."""
        self.device = device
        self._graphs: dict[tuple[int, int], tuple[Any, Batch, torch.Tensor]] = {}
        self._records = device.type == "cuda"

    def takes(self, batch: Padded) -> bool:
        """Whether this batch is one short question, on CUDA."""
        single = len(batch.ids) == 1 and batch.ids.size <= REPLAY_TOKENS and batch.types is None
        return self._records and single

    def stop(self) -> None:
        """Free the graphs, and take no question any more."""
        self._records = False
        self._graphs.clear()

    def run(self, module: SentenceModule | PairModule, batch: Padded) -> torch.Tensor:
        """Unit rows (1, dim) float32, on the device."""
        width = -(-batch.ids.shape[1] // REPLAY_STEP) * REPLAY_STEP
        wide = Batch.of(batch.widened(width), self.device)
        key = width, batch.prompt_tokens
        if key not in self._graphs:
            self._graphs[key] = self._recorded(module, wide)
        graph, inputs, vectors = self._graphs[key]
        inputs.ids.copy_(wide.ids)
        inputs.mask.copy_(wide.mask)
        graph.replay()
        return vectors

    def _recorded(
        self, module: SentenceModule | PairModule, batch: Batch
    ) -> tuple[Any, Batch, torch.Tensor]:
        inputs = Batch(batch.ids.clone(), batch.mask.clone(), batch.prompt_tokens)
        # Device and stream are named: a thread's own device may be another one, whose stream would
        # record nothing. What other threads do meanwhile does not end a recording of this thread.
        current = torch.cuda.current_stream(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        graph: Any = torch.cuda.CUDAGraph()
        with _recording, torch.cuda.device(self.device), torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their kernels before the recording
                module.output(inputs)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                vectors = module.output(inputs)
        current.wait_stream(stream)
        return graph, inputs, vectors


@dataclass(frozen=True, slots=True)
class Comparison:
    """A lower precision beside float32.

    Attributes:
        accuracy: of its outputs for the sample texts.
        gain: how many times as fast float32 is.
    """

    accuracy: Accuracy
    gain: float


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

    fingerprint: of the model, see searchengine.trainer.model.torch_model.
    """
    key = {
        "attention": fast.attention,  # a teacher of a training has another
        "fingerprint": fingerprint,
        "precision": str(fast.precision),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "processor": processor(),
        "capability": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "samples": measure.samples_checksum(),
    }

    def read(record: dict[str, Any]) -> Comparison:
        return Comparison(Accuracy(**record["accuracy"]), float(record["gain"]))

    comparison = recall(FOLDER, key, read)
    if comparison is None:
        comparison = compare(fast, exact, tokens)
        remember(FOLDER, key, asdict(comparison))
    return comparison
