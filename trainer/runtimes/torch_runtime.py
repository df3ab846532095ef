"""The network run by torch: on the processor, on CUDA, on Apple's GPU.

bfloat16 roughly doubles the rate of float32 where the processor multiplies it natively, and costs
accuracy nothing that a ranking sees (cosine ≥ 0.9998) as long as pooling stays in float32.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import torch

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.modules import Batch, SentenceModule, lowered
from searchengine.trainer.model.tokens import Ids, TokenIds, Vectors
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeKind

# Tokens of a padded batch: enough rows to fill the matrix units, few enough to fit the cache.
TOKEN_BUDGET = {"cpu": 1024, "cuda": 65536, "mps": 16384}
CPUINFO = Path("/proc/cpuinfo")  # of Linux
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "sve_bf16"}
DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


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


def cpu_has_native_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm's)."""
    return cpuinfo.exists() and not BF16_FLAGS.isdisjoint(cpuinfo.read_text().split())


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether torch failed for want of memory, also in what this error came after."""
    lacking = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")
    if isinstance(error, torch.OutOfMemoryError) or any(name in str(error) for name in lacking):
        return True
    return error.__context__ is not None and ran_out_of_memory(error.__context__)


class TorchRuntime:
    """Runs a SentenceModule for inference in one precision on one device.

    BF16 and FP16 compute with a copy on the device. `module` then stays as it is, where it is: the
    float32 weights are the ones that are saved and fingerprinted. FP32 moves it to the device.
    """

    kind: str = RuntimeKind.TORCH
    min_ratio = 0.5  # at worst half of a batch is padding

    def __init__(
        self,
        module: SentenceModule,
        tokens: TokenIds,
        precision: Precision,
        device: str | None = None,
    ):
        self.device = pick_device(device)
        self.precision: str = pick_precision(precision, self.device)
        self.token_budget = token_budget(self.device)
        self._module, self._pad_id = module, tokens.pad_id
        self._lock = Lock()

    @cached_property
    def _running(self) -> SentenceModule:
        if self.precision is Precision.FP32:
            return self._module.to(self.device)
        return lowered(self._module, DTYPES[Precision(self.precision)], self.device)

    def run(self, rows: Sequence[Ids]) -> Vectors:
        """Unit rows (B, dim) float32. Raises ModelError where the device lacks memory."""
        try:
            batch = Batch.of(rows, self._pad_id, self.device)
            with self._lock, torch.inference_mode():
                module = self._running
                if module.training or module.transformer.training:
                    module.eval()
                return np.asarray(module.output(batch).cpu().numpy(), dtype=np.float32)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            raise ModelError(
                f"{self.device} has too little memory for a batch of {len(rows)} texts of "
                f"{max(map(len, rows))} tokens in {self.precision}: free some, or choose another "
                "device"
            ) from error
