"""How a forward pass is run: by which engine, in what arithmetic, in what batches.

The seam between the encoder and its engines. Nothing here imports one: torch alone takes seconds,
and an encoder whose graph is compiled does without it.
"""

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ModelError
from trainer.precision import Precision
from trainer.tokens import Padded

Vectors = NDArray[np.float32]
Choice = TypeVar("Choice", bound=StrEnum)

# Names the engine where a caller leaves the choice.
VARIABLE = "SEARCHENGINE_ENGINE"
# What a GPU's driver puts there: NVIDIA's, AMD's, and either one's under WSL.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
# The size of a batch is chosen on rows of so many tokens, in so many rounds.
PROBE_WIDTH, PROBE_ROUNDS = 128, 3


class Engine(StrEnum):
    """What computes the network."""

    AUTO = "auto"
    TORCH = "torch"
    OPENVINO = "openvino"


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How an encoder is to be run.

    Attributes:
        engine: "auto" is what the variable SEARCHENGINE_ENGINE names, if it is set; else OpenVINO
            where it is installed, accurate and the processor is to compute; else torch.
        precision: "auto" is bf16 where the hardware multiplies it natively, else fp32.
        device: a torch device name; None is the fastest there is.

    Raises ModelError for unknown names, and for what no engine does.
    """

    engine: Engine | str = Engine.AUTO
    precision: Precision | str = Precision.AUTO
    device: str | None = None

    def __post_init__(self) -> None:
        engine = _named("engine", self.engine, Engine)
        precision = _named("precision", self.precision, Precision)
        if refused := _impossible(engine, precision, self.device):
            raise ModelError(refused)
        if engine is Engine.AUTO and os.environ.get(VARIABLE):
            wish = _named(VARIABLE, os.environ[VARIABLE], Engine)
            # What is said for all gives way to what is said here.
            engine = engine if _impossible(wish, precision, self.device) else wish
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "precision", precision)

    @property
    def openvino(self) -> bool:
        """Whether OpenVINO is to be tried. Raises ModelError: asked for, and not installed."""
        asked = self.engine is Engine.OPENVINO or self.precision is Precision.INT8
        if importlib.util.find_spec("openvino") is None:
            if asked:
                raise ModelError(
                    "openvino is not installed: install the extra `fast` "
                    "(pip install 'searchengine[fast]'), or leave the choice to auto"
                )
            return False
        if asked:
            return True
        if self.engine is Engine.TORCH or self.precision is Precision.FP16:
            return False
        return self.device == "cpu" or (self.device is None and not gpu_here())


def _named(name: str, given: str, kind: type[Choice]) -> Choice:
    if given not in list(kind):
        raise ModelError(f"{name} is {given!r}: expected one of {', '.join(kind)}")
    return kind(given)


def _impossible(engine: Engine, precision: Precision, device: str | None) -> str:
    """Why no engine does what is asked; "" if one does."""
    on_cpu = device in (None, "cpu")
    if engine is Engine.OPENVINO and not on_cpu:
        return f"openvino computes on the processor, not on {device!r}"
    if engine is Engine.OPENVINO and precision is Precision.FP16:
        return "openvino has no fp16 on a processor: choose fp32, bf16 or int8"
    if precision is Precision.INT8 and (engine is Engine.TORCH or not on_cpu):
        return (
            "the precision int8 is computed by openvino on the processor: leave out the engine "
            "and the device, or choose another precision"
        )
    return ""


def gpu_here() -> bool:
    """Whether torch computes on a GPU. Asks torch only where something speaks for one."""
    if sys.platform == "linux" and not any(os.path.exists(name) for name in GPU_DEVICES):
        return False
    from trainer.torch_runtime import pick_device

    return pick_device(None).type != "cpu"


def cpu_has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm's)."""
    try:
        flags = cpuinfo.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # away from Linux torch knows, where it is here anyway
        torch: Any = sys.modules.get("torch")
        found = {} if torch is None else torch.cpu.get_capabilities()
        flags = [name for name, has in found.items() if has is True]
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


class Runtime(Protocol):
    """Runs one model in one arithmetic. Safe to use from several threads."""

    @property
    def engine(self) -> Engine:
        """Which engine this is."""

    @property
    def precision(self) -> Precision:
        """What it computes in, never AUTO."""

    @property
    def token_budget(self) -> int:
        """Tokens of a padded batch that it runs fastest."""

    @property
    def multiple(self) -> int:
        """What the width of a batch is best a multiple of."""

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32."""


def token_budget_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions grouped by similar length, so that width · rows of a batch stays within `budget`.

    Longest first: if memory runs out, it does at once. A row longer than the budget goes alone.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # The first row of a batch is its longest.
        if batch and max(1, lengths[batch[0]]) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def fastest_budget(runtime: Runtime, budgets: Sequence[int], width: int) -> int:
    """Which of `budgets` (tokens of a batch, ascending) runs most tokens in a second.

    Each is tried in turn on rows of `width` tokens, some rounds; of equals (within 3 %) the
    smallest.
    """
    seconds: dict[int, list[float]] = {budget: [] for budget in budgets}
    for repeat in range(PROBE_ROUNDS + 1):
        for budget in budgets:
            ids = np.zeros((max(1, budget // width), width), np.int64)
            start = time.perf_counter()
            runtime.run(Padded(ids, np.ones_like(ids)))
            if repeat:  # the first round prepares
                seconds[budget].append((time.perf_counter() - start) / ids.size)
    best = {budget: statistics.median(found) for budget, found in seconds.items()}
    return min(budget for budget in budgets if best[budget] <= 1.03 * min(best.values()))
