"""Where an interrupted run goes on: OUT/checkpoint/step-N, safetensors and JSON only.

    weights.safetensors     the module after N updates
    optimizer.safetensors   AdamW's two moments and step count of every weight it moved
    best.safetensors        the module that judged best so far
    state.json              the rest: configuration, data digest, position, best scores

A folder is written under another name and renamed when complete, so a step-N is whole or absent.
Random numbers need no place: every update seeds them from (seed, N).
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trainer.config import TrainConfig
from trainer.errors import ConfigError, TrainingError
from trainer.network import read_object
from trainer.saving import remove_folder, write_json

Weights = dict[str, Tensor]
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run knows besides its weights.

    step: updates done. best_step: the update that judged best. untrained: the base model's scores
    by prefix length; scores: those of each judged update.
    """

    step: int
    best_step: int
    untrained: Mapping[int, float]
    scores: Mapping[int, Mapping[int, float]]


def folder_of(out: Path) -> Path:
    return out / "checkpoint"


def copy_weights(module: nn.Module) -> Weights:
    """The weights as they are now, safe from further training, on the CPU."""
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in module.state_dict().items()}


def save(
    config: TrainConfig,
    digest: str,
    progress: Progress,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    best: Weights,
) -> None:
    """Write the checkpoint of this step, then remove the older ones."""
    folder = folder_of(config.out)
    done = folder / f"step-{progress.step:07d}"
    scratch = folder / f".{done.name}"
    remove_folder(scratch)
    scratch.mkdir(parents=True)
    save_file(copy_weights(module), scratch / "weights.safetensors")
    save_file(_moments(module, optimizer), scratch / "optimizer.safetensors")
    save_file(best, scratch / "best.safetensors")
    state = {"config": config.to_dict(), "digest": digest, **asdict(progress)}
    write_json(scratch / "state.json", state)
    for file in scratch.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    remove_folder(done)
    scratch.rename(done)
    for old in folder.iterdir():
        if old != done:
            remove_folder(old)


def latest(out: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return max(folder_of(out).glob("step-*"), default=None)


def load(
    config: TrainConfig, digest: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Progress, Weights]:
    """Fill module and optimizer from the newest checkpoint; returns the rest and the best weights.

    Raises ConfigError where there is none, or it belongs to another configuration or other data.
    """
    found = latest(config.out)
    if found is None:
        raise ConfigError(
            f"no checkpoint in {folder_of(config.out)}: start this run without resume"
        )
    state = read_object(found / "state.json")
    saved, now = state["config"], config.to_dict()
    if different := sorted(k for k in now if saved.get(k) != now[k]):
        name = different[0]
        raise ConfigError(
            f"the checkpoint in {found} was made with {name} {saved.get(name)!r}, this run has "
            f"{now[name]!r}: resume with the same configuration, or start anew with another `out`"
        )
    if state["digest"] != digest:
        raise ConfigError(
            f"the training files changed since the checkpoint in {found}: restore them, or start "
            "anew with another `out`"
        )
    try:
        module.load_state_dict(load_file(found / "weights.safetensors"))
        _restore(module, optimizer, load_file(found / "optimizer.safetensors"))
        best = load_file(found / "best.safetensors")
    except Exception as error:
        raise TrainingError(f"the checkpoint in {found} cannot be read: {error}") from error
    scores = {int(step): _by_dim(row) for step, row in state["scores"].items()}
    untrained = _by_dim(state["untrained"])
    return Progress(state["step"], state["best_step"], untrained, scores), best


def _by_dim(row: Mapping[str, float]) -> dict[int, float]:
    """JSON made strings of the prefix lengths."""
    return {int(dim): value for dim, value in row.items()}


def _moments(module: nn.Module, optimizer: torch.optim.Optimizer) -> Weights:
    names: dict[Tensor, str] = {weight: name for name, weight in module.named_parameters()}
    return {
        f"{names[parameter]}:{moment}": values[moment].detach().cpu().contiguous()
        for parameter, values in optimizer.state.items()
        for moment in MOMENTS
    }


def _restore(module: nn.Module, optimizer: torch.optim.Optimizer, saved: Weights) -> None:
    state: dict[int, dict[str, Any]] = {}
    names = {parameter: name for name, parameter in module.named_parameters()}
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for i, parameter in enumerate(order):
        name = names[parameter]
        if f"{name}:step" in saved:
            state[i] = {moment: saved[f"{name}:{moment}"] for moment in MOMENTS}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
