"""Which engine is to run an encoder, in what arithmetic: what may be asked, and what is best here.

Imports no engine, and little else: it is asked before it is known that anything will be encoded.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import ModelError

Choice = TypeVar("Choice", bound=StrEnum)

# Names the engine where a caller leaves the choice.
VARIABLE = "SEARCHENGINE_ENGINE"
# What a GPU's driver puts there: NVIDIA's, AMD's, and either one's under WSL.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class Engine(StrEnum):
    """What computes the network."""

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


# What an encoder is trained in.
TRAINING = (Precision.AUTO, Precision.FP32, Precision.BF16)


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How an encoder is to be run.

    Attributes:
        engine: "auto" is what the variable SEARCHENGINE_ENGINE names, if it is set; else OpenVINO
            where it is installed, accurate and the processor is to compute; else torch.
        precision: "auto" is bf16 where the hardware multiplies it natively, else fp32.
        device: a torch device name; None is the fastest there is.
        trust_remote_code: Python code that comes with a model may be run, by torch alone. Else it
            never is, and nobody is asked.

    Raises ModelError for unknown names, and for what no engine does.
    """

    engine: Engine | str = Engine.AUTO
    precision: Precision | str = Precision.AUTO
    device: str | None = None
    trust_remote_code: bool = False

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
        if self.precision is Precision.INT8 and importlib.util.find_spec("nncf") is None:
            raise ModelError(
                "the precision int8 is made by nncf: install the extra `int8` "
                "(pip install 'searchengine[int8]'), or choose another precision"
            )
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
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()


def cpu_has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm's)."""
    try:
        flags = cpuinfo.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # away from Linux torch knows, where it is here anyway
        torch: Any = sys.modules.get("torch")
        found = {} if torch is None else torch.cpu.get_capabilities()
        flags = [name for name, has in found.items() if has is True]
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
