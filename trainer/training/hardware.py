"""What a run asks of the hardware: its device, arithmetic and compiled layers."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from searchengine.trainer.errors import ConfigError, first_line
from searchengine.trainer.model.network import layer_list
from searchengine.trainer.runtimes.config import Precision
from searchengine.trainer.runtimes.torch_runtime import pick_device, pick_precision
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.processes import Processes, launched_count
from searchengine.trainer.training.training_model import TrainingModel

BACKEND = "inductor"  # torch's own: C++ on a processor, Triton on a GPU
TF32_FROM = (8, 0)  # compute capability of Ampere


def make_accelerator(config: TrainConfig) -> tuple[Any, Processes]:
    """Device, mixed precision and processes. BF16 keeps float32 weights."""
    import accelerate

    cpu = pick_device(None).type == "cpu"  # else accelerate would not see other processes
    device = accelerate.PartialState(cpu=cpu).device
    precision = pick_precision(config.precision, device)
    # accelerate keeps one precision per process; a second run may want another.
    accelerate.state.AcceleratorState._reset_state()
    mixed = "bf16" if precision is Precision.BF16 else "no"
    accelerator = accelerate.Accelerator(mixed_precision=mixed, cpu=cpu)
    processes = Processes(accelerator.process_index, accelerator.num_processes)
    if processes.count != launched_count():
        raise ConfigError(
            f"{launched_count()} processes were launched, but {processes.count} connected: "
            "start them with torchrun or accelerate launch"
        )
    if processes.count > 1 and config.head_only:
        raise ConfigError("head_only trains in one process: it takes seconds")
    return accelerator, processes


@contextmanager
def torch_settings(config: TrainConfig) -> Iterator[None]:
    """Set what torch has once for a process as the run asks; afterwards it is as before.

    Raises ConfigError for TF32 on a device without it.
    """
    if config.tf32 and not has_tf32(pick_device(None)):
        raise ConfigError(
            "tf32 needs a CUDA device of compute capability 8.0 (Ampere) or above, which is not "
            "here: leave it out"
        )
    # torch refuses to read it where `fp32_precision` was set for one backend.
    before = torch.get_float32_matmul_precision() if config.tf32 else None
    if config.tf32:
        torch.set_float32_matmul_precision("high")
    try:
        with warnings.catch_warnings():
            if config.compile:  # torch's own look at what it compiles
                message = "The .grad attribute of a Tensor that is not a leaf"
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)


def has_tf32(device: torch.device) -> bool:
    """Whether the device multiplies in TF32: float32 with 10 of its 23 fraction bits."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= TF32_FROM


def compile_layers(training_model: TrainingModel, config: TrainConfig) -> None:
    """Have torch compile the layers of every network in their first pass, if the run asks for it.

    One graph for batches of any shape, which equal layers share. Copies of a layer are not
    compiled. Raises ConfigError where torch cannot compile them.
    """
    if not config.compile:
        return
    if config.layers_per_step or training_model.sentence.mix is not None:
        raise ConfigError(
            "compile: transformers does not return the vectors after each compiled layer, which "
            "layers_per_step and the average of several layers need: leave one of them out"
        )
    _check_compiler(next(training_model.parameters()).device)
    encoders: list[Any] = [*training_model.towers]
    if training_model.momentum is not None:
        encoders.append(training_model.momentum)
    for encoder in encoders:
        for layer in layer_list(encoder.sentence.transformer):
            layer.compile(dynamic=True, backend=BACKEND)


def restore_layers(network: torch.nn.Module) -> None:
    """Undo `compile_layers` for one network."""
    for layer in layer_list(network):
        layer._compiled_call_impl = None  # torch has no other way back


def _check_compiler(device: torch.device) -> None:
    """Refuse in one sentence what would fail in the first update: no compiler, no Triton."""
    try:
        torch.compile(lambda x: x + 1, backend=BACKEND)(torch.ones(2, device=device))
    except Exception as error:
        reason = first_line(getattr(error, "inner_exception", error))  # torch wraps it
        raise ConfigError(
            f"compile: torch cannot compile for {device.type} here ({reason}); it needs "
            "a C++ compiler, on a GPU Triton as well: install them, or leave compile out"
        ) from error
