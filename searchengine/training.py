"""A training run with a progress bar: what `train` and `demo` show of the trainer's reports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.config import TrainConfig
from trainer.encoder import Encoder
from trainer.errors import ConfigError
from trainer.loop import Report, train


def read_config(path: Path | None, given: Mapping[str, Any]) -> TrainConfig:
    """The settings of a JSON file, overridden by those given on the command line."""
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as JSON ({error})") from error
        if not isinstance(settings, dict):
            raise ConfigError(f"{path}: expected a JSON object of training settings")
    return TrainConfig.from_dict({**settings, **given})


def train_with_progress(config: TrainConfig, *, resume: bool = False) -> Encoder:
    """Train, with loss and scores on stderr."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        told = False
        task = bar.add_task("Training", total=None, loss="–")

        def show(report: Report) -> None:
            loss = "–" if report.loss is None else f"{report.loss:.3f}"
            bar.update(task, total=report.steps, completed=report.step, loss=loss)
            nonlocal told
            if not told:
                left_out = f"{report.excluded} left out for a sentence of the exclude files"
                console.print(
                    f"{report.examples} examples; {left_out}", markup=False, soft_wrap=True
                )
                if report.scores is None and not resume:
                    console.print("No --dev and too few pairs to hold out: the last step is kept")
                told = True
            if report.scores is not None:
                scores = "  ".join(f"{dim}: {score:.4f}" for dim, score in report.scores.items())
                best = "  (best)" if report.best_step == report.step else ""
                console.print(f"step {report.step:>6}  {scores}{best}", soft_wrap=True)

        encoder = train(config, show, resume)
    console.print(f"The model is in {config.out}", markup=False)
    return encoder
