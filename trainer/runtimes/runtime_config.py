"""Which runtime runs an encoder, in which precision: the choices, and the best one on this machine.

Imports no runtime, and little else: it is read before it is known that anything is encoded.
"""

import importlib.util
import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from searchengine.trainer.errors import ModelError, install_line

Choice = TypeVar("Choice", bound=StrEnum)

# The environment variable that names the runtime where a caller leaves the choice.
VARIABLE = "SEARCHENGINE_RUNTIME"
# Files of GPU drivers: NVIDIA's, AMD's, and either one's under WSL.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
# Values of ONEDNN_MAX_CPU_ISA with which oneDNN leaves bf16 instructions alone.
ONEDNN_WITHOUT_BF16 = frozenset(
    "SSE41 AVX AVX2 AVX2_VNNI AVX2_VNNI_2 AVX512_CORE AVX512_CORE_VNNI".split()
)
# The instructions that decide which precision is fast, as Linux names them.
INSTRUCTIONS = frozenset(
    "avx2 avx512f avx_vnni avx512_vnni avx512_bf16 amx_int8 amx_bf16 "
    "asimddp i8mm bf16 sve_bf16".split()
)


class RuntimeKind(StrEnum):
    """The runtimes, which run the network."""

    AUTO = "auto"
    TORCH = "torch"
    OPENVINO = "openvino"
    NATIVE = "native"


class Precision(StrEnum):
    """The arithmetic of the transformer; pooling and head are always float32.

    FP16 is for CUDA. INT8 is for inference by OpenVINO or the native kernel: matrices are
    multiplied in 8 bits, scaled on sample texts; what is not a matrix product stays as it is.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


# The precisions that an encoder can be trained in.
TRAINING = (Precision.AUTO, Precision.FP32, Precision.BF16, Precision.FP16)


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How to run an encoder or a cross-encoder.

    Attributes:
        runtime: "auto" is what the variable SEARCHENGINE_RUNTIME names, if it is set; else the
            fastest that is installed and accurate: torch on a GPU; OpenVINO where the processor has
            AMX; "native" where it has VNNI; OpenVINO; "native" where it has AVX2; torch. "native"
            is the compiled kernel, in int8: for networks of BERT's kind, without torch.
        precision: "auto" is int8 for "native"; else the fastest of fp32 and, where the hardware
            multiplies it natively, bf16, of those that are accurate; as timed on this processor.
        device: a torch device name; None is the fastest one.
        trust_remote_code: Python code that comes with a model may be run, by torch alone. Otherwise
            it is never run.

    Raises ModelError for unknown names, and for combinations that no runtime supports.
    """

    runtime: RuntimeKind | str = RuntimeKind.AUTO
    precision: Precision | str = Precision.AUTO
    device: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        kind = _named("runtime", self.runtime, RuntimeKind)
        precision = _named("precision", self.precision, Precision)
        if reason := _unsupported(kind, precision, self.device):
            raise ModelError(reason)
        if kind is RuntimeKind.AUTO and (preferred := os.environ.get(VARIABLE)):
            preferred_kind = _named(VARIABLE, preferred, RuntimeKind)
            # The variable gives way to what this call asks for.
            if not _unsupported(preferred_kind, precision, self.device):
                kind = preferred_kind
        object.__setattr__(self, "runtime", kind)
        object.__setattr__(self, "precision", precision)

    @property
    def requires_openvino(self) -> bool:
        """Whether nothing but OpenVINO is asked for."""
        is_int8 = self.precision is Precision.INT8 and self.runtime is not RuntimeKind.NATIVE
        return self.runtime is RuntimeKind.OPENVINO or is_int8

    @property
    def takes_numpy(self) -> bool:
        """Whether numpy may run the first texts: runtime and precision are left open, on a CPU."""
        is_open = self.runtime is RuntimeKind.AUTO and self.precision is Precision.AUTO
        return is_open and self._on_cpu

    @property
    def _on_cpu(self) -> bool:
        return self.device == "cpu" or (self.device is None and not gpu_here())

    @property
    def tries_openvino(self) -> bool:
        """Whether to try OpenVINO. Raises ModelError if it is required and not installed."""
        if self.runtime is RuntimeKind.NATIVE:
            return False
        missing = [name for name in ("openvino", "nncf") if importlib.util.find_spec(name) is None]
        if missing and self.precision is Precision.INT8:
            raise ModelError(
                f"the precision int8 needs {' and '.join(missing)}: {install_line('int8')}, or "
                "choose another precision"
            )
        if "openvino" in missing:
            if self.requires_openvino:
                raise ModelError(
                    f"openvino is not installed: {install_line('fast')}, or leave the choice to "
                    "auto"
                )
            return False
        if self.requires_openvino:
            return True
        if self.runtime is RuntimeKind.TORCH or self.precision is Precision.FP16:
            return False
        return self._on_cpu


def _named(name: str, value: str, kinds: type[Choice]) -> Choice:
    if value not in list(kinds):
        raise ModelError(f"{name} is {value!r}: expected one of {', '.join(kinds)}")
    return kinds(value)


def _unsupported(runtime: RuntimeKind, precision: Precision, device: str | None) -> str:
    """Why no runtime supports this combination; "" if one does."""
    on_cpu = device in (None, "cpu")
    if runtime in (RuntimeKind.OPENVINO, RuntimeKind.NATIVE) and not on_cpu:
        return f"{runtime} computes on the processor, not on {device!r}"
    if runtime is RuntimeKind.NATIVE and precision not in (Precision.AUTO, Precision.INT8):
        return f"the native runtime computes in int8: leave the precision out, got {precision}"
    if runtime is RuntimeKind.OPENVINO and precision is Precision.FP16:
        return "openvino has no fp16 on a processor: choose fp32, bf16 or int8"
    if precision is Precision.INT8 and (runtime is RuntimeKind.TORCH or not on_cpu):
        return (
            "the precision int8 is computed by openvino or the native kernel, on the processor: "
            "leave out the runtime and the device, or choose another precision"
        )
    return ""


def gpu_here() -> bool:
    """Whether torch computes on a GPU. Imports torch only where there may be one."""
    if sys.platform == "linux" and not any(os.path.exists(name) for name in GPU_DEVICES):
        return False
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()


def cpu_has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm's).

    False where ONEDNN_MAX_CPU_ISA forbids those instructions: both runtimes multiply with oneDNN.
    """
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in ONEDNN_WITHOUT_BF16:
        return False
    try:
        flags = _read(cpuinfo).split()
    except OSError:  # not Linux: ask torch if it is loaded
        torch: Any = sys.modules.get("torch")
        capabilities = {} if torch is None else torch.cpu.get_capabilities()
        flags = [name for name, has in capabilities.items() if has is True]
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def cpu_has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies matrices in hardware (AMX). False where it is not Linux."""
    with suppress(OSError):
        return "amx_tile" in _read(cpuinfo).split()
    return False


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    with suppress(OSError):  # not Linux
        for line in _read(cpuinfo).splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the speed of a precision depends on: name, cores for this process, instructions.

    Found once in a process: with many cores the system takes milliseconds to say it.
    """
    flags: list[str] = []
    with suppress(OSError):  # not Linux
        flags = _read(cpuinfo).split()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    parts = [f"{cores} cores", *sorted(INSTRUCTIONS.intersection(flags)), *limit.split()]
    return f"{processor_name(cpuinfo)} ({', '.join(parts)})"


def _read(cpuinfo: Path) -> str:
    return cpuinfo.read_text(encoding="utf-8", errors="replace")
