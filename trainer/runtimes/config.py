"""Which runtime runs an encoder, in which precision: the choices, and the best one on this machine.

Imports no runtime, and little else: it is read before it is known that anything is encoded.
"""

import importlib.util
import os
import sys
import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import ModelError, install_line

Choice = TypeVar("Choice", bound=StrEnum)

# Names the runtime where a caller leaves the choice; FORMER_VARIABLE is read for one more release.
VARIABLE, FORMER_VARIABLE = "SEARCHENGINE_RUNTIME", "SEARCHENGINE_ENGINE"
# Files of GPU drivers: NVIDIA's, AMD's, and either one's under WSL.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
# Values of ONEDNN_MAX_CPU_ISA with which oneDNN leaves bf16 instructions alone.
ONEDNN_WITHOUT_BF16 = frozenset(
    "SSE41 AVX AVX2 AVX2_VNNI AVX2_VNNI_2 AVX512_CORE AVX512_CORE_VNNI".split()
)


class RuntimeKind(StrEnum):
    """The runtimes, which run the network."""

    AUTO = "auto"
    TORCH = "torch"
    OPENVINO = "openvino"


class Precision(StrEnum):
    """The arithmetic of the transformer; pooling and head are always float32.

    FP16 is for CUDA. INT8 is for inference by OpenVINO: matrices are multiplied in 8 bits, scaled
    on sample texts; what is not a matrix product stays as it is.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


# The precisions that an encoder can be trained in.
TRAINING = (Precision.AUTO, Precision.FP32, Precision.BF16)


@dataclass(frozen=True, slots=True, init=False)
class RuntimeConfig:
    """How to run an encoder or a cross-encoder.

    Attributes:
        runtime: "auto" is what the variable SEARCHENGINE_RUNTIME names, if it is set; else OpenVINO
            where it is installed, accurate and the processor computes; else torch.
        precision: "auto" is the fastest of fp32 and, where the hardware multiplies it natively,
            bf16, of those that are accurate; as timed when the graph was compiled.
        device: a torch device name; None is the fastest one.
        trust_remote_code: Python code that comes with a model may be run, by torch alone. Otherwise
            it is never run.

    Raises ModelError for unknown names, and for combinations that no runtime supports.
    """

    runtime: RuntimeKind | str
    precision: Precision | str
    device: str | None
    trust_remote_code: bool

    def __init__(
        self,
        runtime: RuntimeKind | str = RuntimeKind.AUTO,
        precision: Precision | str = Precision.AUTO,
        device: str | None = None,
        trust_remote_code: bool = False,
        *,
        engine: RuntimeKind | str | None = None,
    ):
        """engine: the former name of `runtime`, for one more release."""
        if engine is not None:
            warn_renamed("engine", "runtime")
            runtime = engine
        kind = _named("runtime", runtime, RuntimeKind)
        precision = _named("precision", precision, Precision)
        if reason := _unsupported(kind, precision, device):
            raise ModelError(reason)
        if kind is RuntimeKind.AUTO and (preferred := _preferred()) is not None:
            # The variable gives way to what this call asks for.
            kind = kind if _unsupported(preferred, precision, device) else preferred
        object.__setattr__(self, "runtime", kind)
        object.__setattr__(self, "precision", precision)
        object.__setattr__(self, "device", device)
        object.__setattr__(self, "trust_remote_code", trust_remote_code)

    @property
    def engine(self) -> RuntimeKind | str:
        """The former name of `runtime`, for one more release."""
        warn_renamed("engine", "runtime")
        return self.runtime

    @property
    def requires_openvino(self) -> bool:
        """Whether nothing but OpenVINO is asked for."""
        return self.runtime is RuntimeKind.OPENVINO or self.precision is Precision.INT8

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


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Say that a name is deprecated. stacklevel: as of warnings.warn in the caller."""
    message = f"{old} is now {new}; the old name works for one more release"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def _preferred() -> RuntimeKind | None:
    """The runtime that the environment names. Raises ModelError for an unknown one."""
    if name := os.environ.get(VARIABLE):
        return _named(VARIABLE, name, RuntimeKind)
    if name := os.environ.get(FORMER_VARIABLE):
        warn_renamed(FORMER_VARIABLE, VARIABLE, stacklevel=3)
        return _named(FORMER_VARIABLE, name, RuntimeKind)
    return None


def _named(name: str, value: str, kinds: type[Choice]) -> Choice:
    if value not in list(kinds):
        raise ModelError(f"{name} is {value!r}: expected one of {', '.join(kinds)}")
    return kinds(value)


def _unsupported(runtime: RuntimeKind, precision: Precision, device: str | None) -> str:
    """Why no runtime supports this combination; "" if one does."""
    on_cpu = device in (None, "cpu")
    if runtime is RuntimeKind.OPENVINO and not on_cpu:
        return f"openvino computes on the processor, not on {device!r}"
    if runtime is RuntimeKind.OPENVINO and precision is Precision.FP16:
        return "openvino has no fp16 on a processor: choose fp32, bf16 or int8"
    if precision is Precision.INT8 and (runtime is RuntimeKind.TORCH or not on_cpu):
        return (
            "the precision int8 is computed by openvino on the processor: leave out the runtime "
            "and the device, or choose another precision"
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
        flags = cpuinfo.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # not Linux: ask torch if it is loaded
        torch: Any = sys.modules.get("torch")
        capabilities = {} if torch is None else torch.cpu.get_capabilities()
        flags = [name for name, has in capabilities.items() if has is True]
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def __getattr__(name: str) -> Any:
    if name == "Engine":  # for one more release
        warn_renamed("Engine", "RuntimeKind")
        return RuntimeKind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
