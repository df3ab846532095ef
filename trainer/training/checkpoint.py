"""The checkpoint of a run, from which it is resumed: OUT/checkpoint/state.safetensors.

The weights of the training model, the best ones so far, and the moments of AdamW, by names with a
prefix each; the rest as JSON in its metadata. It is written under another name and renamed when
complete. Random states are not stored: every update seeds them from (seed, N).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from searchengine.trainer.errors import ConfigError, TrainingError
from searchengine.trainer.files import sync_files
from searchengine.trainer.model.model_folder import check_replaceable
from searchengine.trainer.sources.source import CHECKPOINT
from searchengine.trainer.training.run import Run, State, Weights, copy_weights

# Raised when held-out examples, random choices or files change: older runs cannot be resumed.
FORMAT = 6


def file_of(out: Path) -> Path:
    """Where the checkpoint of a run is stored."""
    return out / CHECKPOINT / "state.safetensors"


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep other runs from writing to `out`: they would replace one another's checkpoint.

    The lock is a hidden file beside the folder; the system releases that of a killed process.
    Raises ConfigError if another run holds it, or nothing can be written there.
    """
    folder = out.resolve()  # by whatever name a run has it
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
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


def check_start(out: Path, resume: bool) -> None:
    """Refuse an `out` that is no model, and to begin a run where another one can be resumed."""
    check_replaceable(out)
    if not resume and (step := saved_step(out)) is not None:
        raise ConfigError(
            f"{out} holds the checkpoint of an unfinished run (update {step}): resume it, remove "
            f"{file_of(out).parent}, or choose another `out`"
        )


def save(run: Run) -> None:
    """Write the checkpoint of this update. Raises TrainingError; the one before it then stays."""
    file = file_of(run.config.out)
    scratch = file.with_name(f".{file.name}")
    parts: dict[str, Weights] = {"weights": copy_weights(run.training_model), "best": run.best}
    for number, moments in run.optimizer.state_dict()["state"].items():
        parts[str(number)] = {k: v.detach().cpu().contiguous() for k, v in moments.items()}
    tensors = {f"{part}:{name}": x for part, named in parts.items() for name, x in named.items()}
    saved = {"format": FORMAT, "origin": run.origin, "state": asdict(run.state)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, scratch, {"run": json.dumps(saved)})
        sync_files(file.parent)
        scratch.replace(file)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            scratch.unlink()
        raise TrainingError(
            f"the checkpoint of update {run.state.step} cannot be written to {file.parent}: "
            f"{error}; mend this: {kept(run.config.out)}"
        ) from error


def saved_step(out: Path) -> int | None:
    """The updates that the checkpoint of a run has done; None without one."""
    step: int | None = _read(out).get("state", {}).get("step")
    return step


def kept(out: Path) -> str:
    """What is left of a run that failed, in words."""
    step = saved_step(out)
    return "no checkpoint was written yet" if step is None else f"update {step} was kept"


def _read(out: Path) -> dict[str, Any]:
    """What the checkpoint says of its run; {} without one. Raises TrainingError."""
    file = file_of(out)
    try:
        with safe_open(file, "pt") as tensors:
            return dict(json.loads(tensors.metadata()["run"]))
    except FileNotFoundError:
        return {}
    except Exception as error:
        raise TrainingError(f"{file} cannot be read: {error}; remove it and start again") from error


def load(run: Run) -> None:
    """Give a run the state and the weights of its checkpoint.

    Files may have moved, and the run may be longer or shorter than before. Raises ConfigError if
    there is no checkpoint, or it belongs to another run, and TrainingError if it cannot be read.
    """
    file, saved = file_of(run.config.out), _read(run.config.out)
    alternative = "or start again with another `out`"
    if not saved:
        raise ConfigError(f"no checkpoint in {file.parent}: start this run without resume")
    if saved["format"] != FORMAT or saved["origin"].keys() != run.origin.keys():
        raise ConfigError(
            f"the checkpoint in {file.parent} was written by another version of this package: "
            f"resume it with that version, {alternative}"
        )
    for what, now in run.origin.items():
        if (before := saved["origin"][what]) != now:
            raise ConfigError(
                f"{what} changed since the checkpoint in {file.parent}, from {before!r} to "
                f"{now!r}: restore it, {alternative}"
            )
    run.state = State(**saved["state"])
    if run.plan.steps < run.state.step:
        raise ConfigError(
            f"the checkpoint in {file.parent} is at update {run.state.step}, and this run has only "
            f"{run.plan.steps}; raise max_steps or epochs"
        )
    parts: dict[str, Weights] = {}
    for key, tensor in load_file(file).items():
        part, _, name = key.partition(":")
        parts.setdefault(part, {})[name] = tensor
    run.training_model.load_state_dict(parts.pop("weights"))
    run.best = parts.pop("best")
    moments = {int(number): named for number, named in parts.items()}
    run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": moments})
