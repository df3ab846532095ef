"""What a training run wrote of itself: `training.json` in the model's folder, read."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import DataError

TRAINING = "training.json"


@dataclass(frozen=True, slots=True)
class Judged:
    """A judgement under way. scores: by prefix length, fractions.

    alignment, uniformity: of the full-width vectors of the dev pairs; None without dev files.
    """

    step: int
    scores: Mapping[int, float]
    alignment: float | None = None
    uniformity: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A run's course. losses: of update 1, 2, …; judged: in order, step 0 the untrained model.

    A second judgement of step 0 is of the model after the turn at the start of training.
    """

    losses: tuple[float, ...]
    judged: tuple[Judged, ...]
    best_step: int


def read_history(path: str | Path) -> History:
    """The history in a `training.json`, or in the model folder that holds one.

    Raises DataError where there is none, it is no such file, or a number is not finite.
    """
    path = Path(path)
    path = path / TRAINING if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"no {path}: only a model trained here has its training's history"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    return as_history(found, str(path))


def as_history(told: Any, where: str = "the history") -> History:
    """A history from its JSON, as `training.json` or `Model.history` hold it.

    where: what to call it. Raises DataError where it is none, or a number is not finite.
    """
    try:
        losses = tuple(_number(loss) for loss in told["losses"])
        judged = tuple(_judged(entry) for entry in told["judged"])
        return History(losses, judged, int(told["best_step"]))
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
        raise ValueError(f"{value} among its numbers")
    return number
