"""Checkpoints, from which an interrupted run is resumed: OUT/checkpoint/step-N.

Safetensors and JSON only:

    weights.safetensors     the module after N updates
    optimizer.safetensors   the moments of AdamW
    best.safetensors        the model with the best scores so far
    state.json              the rest: configuration, digests of data and base, position, scores

A folder is written under another name and renamed when complete, so a step-N is whole or absent.
Random states are not stored: every update seeds them from (seed, N).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from searchengine.trainer.errors import ConfigError, TrainingError
from searchengine.trainer.files import read_object, remove_folder, sync_files, write_json
from searchengine.trainer.training.train_config import TrainConfig

Weights = dict[str, Tensor]
# Raised when held-out examples, random choices or files change: older runs cannot be resumed.
FORMAT = 3
# Settings that a resumed run may change: the places of files, whose content is compared instead,
# the length of the run, and the memory that it takes.
FREE_SETTINGS = {"train", "exclude", "dev", "out", "base", "max_steps", "epochs", "gradient_cache"}
KEPT = 2
"""Checkpoints of a run on the disk: the newest, and the one before it."""
Origin = Mapping[str, str]
"""The digest of what a run starts from, by what it is, in words."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state of a run besides its weights; what a checkpoint stores.

    step: updates done. best_step: the step with the best scores. losses: of every update. judged:
    evaluations in order, with step, learning_rate, and scores by prefix length (as text, for JSON).
    """

    step: int = 0
    best_step: int = 0
    losses: list[float] = field(default_factory=list)
    judged: list[dict[str, Any]] = field(default_factory=list)


def folder_of(out: Path) -> Path:
    return out / "checkpoint"


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep other runs from writing to `out`: they would remove one another's checkpoints.

    The lock is a hidden file beside the folder; the system releases that of a killed process.
    Raises ConfigError if another run holds it, or the file cannot be locked.
    """
    folder = out.resolve()  # by whatever name a run has it
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another run is training into {out}: wait for it, or choose another `out`"
        ) from None
    except (OSError, NotImplementedError) as error:  # of another user, or a disk without locks
        raise ConfigError(f"{path} cannot be locked ({error}): choose another `out`") from error
    try:
        yield
    finally:
        # While locked: a process that opened it meanwhile sees that it is gone.
        with suppress(OSError):
            path.unlink()
        lock.release()


def copy_weights(module: nn.Module) -> Weights:
    """The weights as they are now, safe from further training, on the CPU."""
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in module.state_dict().items()}


def save(
    config: TrainConfig,
    origin: Origin,
    progress: Progress,
    module: nn.Module,
    optimizer: Optimizer,
    best: Weights,
) -> None:
    """Write the checkpoint of this step, and keep the one before it.

    Raises TrainingError if it cannot be written; the one before it then stays.
    """
    folder = folder_of(config.out)
    done = folder / f"step-{progress.step:07d}"
    scratch = folder / f".{done.name}"
    try:
        remove_folder(scratch)
        scratch.mkdir(parents=True)
        save_file(copy_weights(module), scratch / "weights.safetensors")
        moments = {
            f"{number}:{name}": moment.detach().cpu().contiguous()
            for number, moments in optimizer.state_dict()["state"].items()
            for name, moment in moments.items()
        }
        save_file(moments, scratch / "optimizer.safetensors")
        save_file(best, scratch / "best.safetensors")
        values = {item.name: getattr(progress, item.name) for item in fields(Progress)}
        state = {"format": FORMAT, "config": config.to_dict(), "origin": dict(origin)}
        write_json(scratch / "state.json", state | {"progress": values})
        sync_files(scratch)
        remove_folder(done)
        scratch.rename(done)
    except (OSError, SafetensorError) as error:
        kept = latest(config.out)
        remove_folder(scratch)
        way = f"{kept.name} was kept: mend this and resume" if kept else "mend this and start again"
        raise TrainingError(
            f"the checkpoint of update {progress.step} cannot be written to {folder}: {error}; "
            f"{way}"
        ) from error
    newest = sorted(folder.glob("step-*"))[-KEPT:]
    for old in folder.iterdir():
        if old not in newest:
            remove_folder(old)


def latest(out: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return max(folder_of(out).glob("step-*"), default=None)


def load(
    config: TrainConfig, origin: Origin, steps: int, module: nn.Module, optimizer: Optimizer
) -> tuple[Progress, Weights]:
    """Fill module and optimizer from the newest checkpoint; returns the rest and the best weights.

    Files may have moved, and the run may be longer or shorter than before. Raises
    ConfigError if there is no checkpoint, or it belongs to another run.
    """
    newest = latest(config.out)
    if newest is None:
        raise ConfigError(
            f"no checkpoint in {folder_of(config.out)}: start this run without resume"
        )
    state = read_object(newest / "state.json")
    _check_same_run(newest, state, config, origin)
    done = Progress(**state["progress"])
    if steps < done.step:
        raise ConfigError(
            f"the checkpoint in {newest} has done {done.step} updates: expected at least as many, "
            f"got {steps}; raise max_steps or epochs"
        )
    try:
        module.load_state_dict(load_file(newest / "weights.safetensors"))
        moments: dict[int, Weights] = {}
        for key, moment in load_file(newest / "optimizer.safetensors").items():
            number, _, name = key.partition(":")
            moments.setdefault(int(number), {})[name] = moment
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        best = load_file(newest / "best.safetensors")
    except Exception as error:
        older = len(list(folder_of(config.out).glob("step-*"))) > 1
        way = "; remove it to resume from the one before it" if older else ""
        raise TrainingError(f"the checkpoint in {newest} cannot be read: {error}{way}") from error
    return done, best


def _check_same_run(
    folder: Path, state: dict[str, Any], config: TrainConfig, origin: Origin
) -> None:
    alternative = "or start again with another `out`"
    saved, now = state.get("config", {}), config.to_dict()
    if state.get("format") != FORMAT or now.keys() - saved.keys():
        raise ConfigError(
            f"the checkpoint in {folder} was written by another version of this package: resume it "
            f"with that version, {alternative}"
        )
    for name in sorted(now.keys() - FREE_SETTINGS):
        if saved[name] != now[name]:
            raise ConfigError(
                f"the checkpoint in {folder} was made with {name} {saved[name]!r}, this run has "
                f"{now[name]!r}: resume with the same configuration, {alternative}"
            )
    for what, digest in origin.items():
        if state["origin"].get(what) != digest:
            raise ConfigError(
                f"{what} changed since the checkpoint in {folder}: restore them, {alternative}"
            )
