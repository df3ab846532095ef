"""The runtime and precision of an encoder: the caller's request, and the choice.

Imports no runtime, and little else: it is read before it is known that anything is encoded.
"""

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TypeVar

from searchengine.trainer.errors import ModelError, install_line

Kind = TypeVar("Kind", bound=StrEnum)

# The environment variable that names the runtime where a caller leaves the choice.
VARIABLE = "SEARCHENGINE_RUNTIME"
# Files of GPU drivers: NVIDIA's, AMD's, and either one's under WSL.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class RuntimeKind(StrEnum):
    """What runs the network."""

    AUTO = "auto"
    NATIVE = "native"
    TORCH = "torch"


class Precision(StrEnum):
    """The arithmetic of the transformer in torch; pooling and head are always float32.

    FP16 is for CUDA. The native kernel has one of its own, which goes by INT8.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


INT8 = "int8"
"""Matrices are multiplied in 8 bits; what is not a matrix product stays as it is."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How to run an encoder.

    runtime: "auto" is what the variable SEARCHENGINE_RUNTIME names, or else as `choose` says.
    precision: of torch, which runs the network where one is named; "auto" is bf16 where the
    hardware computes it natively, else fp32. device: a torch device name; None: a GPU if torch sees
    one, else the processor.

    Raises ModelError for unknown names, and for combinations that no runtime supports.
    """

    runtime: RuntimeKind | str = RuntimeKind.AUTO
    precision: Precision | str = Precision.AUTO
    device: str | None = None

    def __post_init__(self) -> None:
        kind = _named("runtime", self.runtime, RuntimeKind)
        precision = _named("precision", self.precision, Precision)
        for_torch = precision is not Precision.AUTO or self.device not in (None, "cpu")
        if kind is RuntimeKind.NATIVE and for_torch:
            raise ModelError(
                "the native runtime computes in int8 on the processor: leave precision and device "
                f"out, got {precision} and {self.device}"
            )
        if kind is RuntimeKind.AUTO and (preferred := os.environ.get(VARIABLE)):
            preferred_kind = _named(VARIABLE, preferred, RuntimeKind)
            # The variable gives way to what this call asks for.
            if not (preferred_kind is RuntimeKind.NATIVE and for_torch):
                kind = preferred_kind
        object.__setattr__(self, "runtime", kind)
        object.__setattr__(self, "precision", precision)


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime of a model, its precision, "auto" until torch has started, and the reason."""

    kind: RuntimeKind
    precision: str
    reason: str


def choose(config: RuntimeConfig, obstacle: str, kernel: str) -> Choice:
    """The runtime of a model: native where it can run the model on a processor, else torch.

    obstacle: why the native kernel cannot run the model; "" if it can. kernel: the instructions
    that it computes with; "" without a compiled one.

    Raises ModelError where the native runtime was asked for and cannot run the model, or torch is
    needed and not installed.
    """
    if not obstacle and not kernel:
        obstacle = "the native kernel is not compiled: install searchengine with a C++ compiler"
    asked_for = config.runtime is RuntimeKind.NATIVE
    if asked_for and obstacle:
        raise ModelError(f"the native runtime cannot run this model: {obstacle}")
    if config.runtime is RuntimeKind.TORCH:
        reason = "the runtime torch was asked for"
    elif config.precision is not Precision.AUTO:
        reason = f"{config.precision} was asked for"
    elif config.device not in (None, "cpu"):
        reason = f"the device {config.device} was asked for"
    elif config.device is None and not asked_for and has_gpu():
        reason = "there is a GPU"
    elif obstacle:
        reason = obstacle
    else:
        reason = f"a BERT network on a processor, by {kernel}"
        return Choice(RuntimeKind.NATIVE, INT8, reason)
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        names = " and ".join(missing)
        raise ModelError(f"this encoder needs {names}, because {reason}: {install_line('train')}")
    return Choice(RuntimeKind.TORCH, config.precision, reason)


def _named(name: str, value: str, kinds: type[Kind]) -> Kind:
    if value not in list(kinds):
        raise ModelError(f"{name} is {value!r}: expected one of {', '.join(kinds)}")
    return kinds(value)


def has_gpu() -> bool:
    """Whether torch computes on a GPU. Imports torch only where there may be one."""
    no_driver = sys.platform == "linux" and not any(map(os.path.exists, GPU_DEVICES))
    if no_driver or find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()
