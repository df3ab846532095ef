"""The history of a training run, read from `training.json` in the model folder."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchengine.trainer.errors import DataError

TRAINING = "training.json"


@dataclass(frozen=True, slots=True)
class Judged:
    """An evaluation during training. scores: by prefix length, as fractions.

    alignment, uniformity: of the full-width vectors of the dev pairs; None without dev files.
    """

    step: int
    scores: Mapping[int, float]
    alignment: float | None = None
    uniformity: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A training run. losses: of update 1, 2, …; judged: evaluations, step 0 before training.

    A second evaluation of step 0 follows the rotation at the start of training.
    """

    losses: tuple[float, ...]
    judged: tuple[Judged, ...]
    best_step: int


def read_history(path: str | Path) -> History:
    """Read the history from a `training.json` or its model folder.

    Raises DataError if the file is missing or invalid, or a number is not finite.
    """
    path = Path(path)
    path = path / TRAINING if path.is_dir() else path
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; only a model trained with this package has a history"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    return as_history(value, str(path))


def as_history(value: Any, where: str = "the history") -> History:
    """A history from its JSON value, as in `training.json` and `Model.history`.

    where: its name for messages. Raises DataError if it is invalid, or a number is not finite.
    """
    try:
        losses = tuple(_number(loss) for loss in value["losses"])
        judged = tuple(_judged(entry) for entry in value["judged"])
        return History(losses, judged, int(value["best_step"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: expected finite `losses`, `judged` with step and scores, and `best_step` "
            f"({type(error).__name__}: {error})"
        ) from error


def _judged(entry: Mapping[str, Any]) -> Judged:
    scores = {int(dim): _number(score) for dim, score in entry["scores"].items()}
    alignment, uniformity = entry.get("alignment"), entry.get("uniformity")
    return Judged(
        int(entry["step"]),
        scores,
        None if alignment is None else _number(alignment),
        None if uniformity is None else _number(uniformity),
    )


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number
