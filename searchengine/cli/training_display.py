"""A training run as the command line shows it: settings put together, progress, logs, pictures."""

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from searchengine.cli.console import print_line, stderr_console
from searchengine.report.plots.style import check_installed
from trainer.encoder import Encoder
from trainer.errors import ConfigError, TrainingWarning
from trainer.training.config import TrainConfig
from trainer.training.loop import Report, train
from trainer.training.presets import preset
from trainer.training.processes import launched_rank

if TYPE_CHECKING:
    from rich.console import Console

Listener = Callable[[Report], None]


def read_config(
    path: Path | None,
    given: Mapping[str, Any],
    preset_name: str | None = None,
    assignments: Sequence[str] = (),
) -> TrainConfig:
    """A preset, overridden by the settings of a JSON file, by NAME=VALUE, by options."""
    settings: dict[str, Any] = {} if preset_name is None else preset(preset_name)
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as JSON ({error})") from error
        if not isinstance(read, dict):
            raise ConfigError(f"{path}: expected a JSON object of training settings")
        settings |= read
    return TrainConfig.from_dict({**settings, **dict(map(assignment, assignments)), **given})


def assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON or else as it stands: temperature=0.1, pooling=cls."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text!r}: expected NAME=VALUE, such as temperature=0.1")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def train_with_progress(
    config: TrainConfig,
    *,
    resume: bool = False,
    tensorboard: Path | None = None,
    plots: Path | None = None,
) -> Encoder:
    """Train, with loss and scores on stderr.

    tensorboard, plots: folders for logs under way and for pictures at the end. Under torchrun only
    the first process shows and writes anything.
    """
    if plots is not None:
        check_installed()  # now, and not when hours have passed
    for option, folder in (("--plots", plots), ("--tensorboard", tensorboard)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ConfigError(f"{option} {folder}: is a file, expected a folder")
    if launched_rank() > 0:
        return train(config, resume=resume)
    console = stderr_console()
    with ExitStack() as stack:
        listeners: list[Listener] = [stack.enter_context(Shown(console, resume))]
        if tensorboard is not None:
            listeners.append(stack.enter_context(TensorBoard(tensorboard)))

        def tell(report: Report) -> None:
            for listener in listeners:
                listener(report)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # the line below says the same
            encoder = train(config, tell, resume)
    print_line(console, f"The model is in {config.out}: {encoder.recipe['chosen']}")
    if plots is not None:
        from searchengine.report.plots.training import draw_training

        measure = str(encoder.recipe["judged_by"])

        for path in draw_training(encoder.model.history, plots, measure):
            print_line(console, f"Drawn: {path}")
    return encoder


class Shown:
    """A progress bar with the loss, and a line for every judgement."""

    def __init__(self, console: "Console", resume: bool):
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        self._console = console
        self._resume = resume
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("Training", total=None, loss="–")
        self._told = self._turned = False

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, report: Report) -> None:
        self._bar.start()  # not before the first report: what is wrong with the input comes alone
        loss = "–" if report.loss is None else f"{report.loss:.3f}"
        self._bar.update(self._task, total=report.steps, completed=report.step, loss=loss)
        if not self._told:
            left_out = f"{report.excluded} left out for a sentence of the exclude files"
            print_line(self._console, f"{report.examples} examples; {left_out}")
            if report.scores is None and not self._resume:
                last = "No --dev and too few examples to hold out: the last step is kept"
                print_line(self._console, last)
            self._told = True
        if report.scores is not None:
            scores = "  ".join(f"{dim}: {score:.4f}" for dim, score in report.scores.items())
            if report.alignment is not None and report.uniformity is not None:
                scores += f"  alignment {report.alignment:.3f} uniformity {report.uniformity:.3f}"
            best = "  (best)" if report.best_step == report.step else ""
            if report.step == 0 and self._turned:
                best = "  (turned)"
            self._turned = True
            print_line(self._console, f"step {report.step:>6}  {scores}{best}")


class TensorBoard:
    """A callback for `loop.train` that writes event files to a folder, until it is left.

    Scalars by step: loss, learning_rate, and of judged steps score/DIM, alignment and uniformity.
    Step 0 is written twice where training begins with a turn: before it and after. The first report
    decides where the run goes on: what an interrupted run wrote from that step on is hidden, and so
    is all of an earlier run in the same folder when a new one begins. Raises ConfigError where
    TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "writing for TensorBoard needs the package of that name: install the extra "
                "`tensorboard` (pip install 'searchengine[tensorboard]')"
            ) from None
        self._open = functools.partial(SummaryWriter, str(folder))
        self._writer: SummaryWriter | None = None

    def __call__(self, told: Report) -> None:
        """Write the numbers of one report."""
        if self._writer is None:
            self._writer = self._open(purge_step=told.step)
        for tag, value in scalars(told).items():
            self._writer.add_scalar(tag, value, told.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Everything told is in the files from here on."""
        if self._writer is not None:
            self._writer.close()


def scalars(told: Report) -> dict[str, float]:
    """The numbers of a report by their tags in TensorBoard; those it does not have are left out."""
    found = {
        "loss": told.loss,
        "learning_rate": told.learning_rate,
        "alignment": told.alignment,
        "uniformity": told.uniformity,
        **{f"score/{dim}": score for dim, score in (told.scores or {}).items()},
    }
    return {tag: value for tag, value in found.items() if value is not None}
