"""The display of a training run: progress and scores."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from searchengine.cli.console import Pulse, Terminated, erase, note, print_line, stderr_console
from searchengine.cli.train_logs import LOGS, tensorboard_log
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, TrainingWarning
from searchengine.trainer.training.checkpoint import saved_step
from searchengine.trainer.training.judging import Measure
from searchengine.trainer.training.loop import OnReport, Report, train
from searchengine.trainer.training.processes import launched_rank
from searchengine.trainer.training.train_config import TrainConfig

if TYPE_CHECKING:
    from rich.console import Console


def train_with_progress(
    config: TrainConfig,
    *,
    resume: bool = False,
    tensorboard: Path | None = None,
    logs: Sequence[str] = (),
) -> Encoder:
    """Train, and show loss and scores on stderr.

    tensorboard: folder for logs; logs: services that they are sent to, of LOGS. Under torchrun only
    the first process shows and writes anything.
    """
    if tensorboard is not None and tensorboard.exists() and not tensorboard.is_dir():
        raise ConfigError(f"--tensorboard {tensorboard}: is a file, expected a folder")
    config, measure = judged_by_search(config)
    if launched_rank() > 0:
        return train(config, resume=resume, measure=measure)
    if (config.out / "modules.json").exists():
        note(f"{config.out} holds a model, which this training will replace when it ends")
    console = stderr_console()
    with ExitStack() as stack:
        stack.enter_context(_resumable(config, console))
        callbacks: list[OnReport] = [stack.enter_context(Display(console, resume))]
        if tensorboard is not None:
            callbacks.append(stack.enter_context(tensorboard_log(tensorboard)))
        callbacks += [stack.enter_context(LOGS[name](config)) for name in logs]

        def on_report(report: Report) -> None:
            for callback in callbacks:
                callback(report)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # the line below has the same text
            encoder = train(config, on_report, resume, measure)
    print_line(console, f"The model is in {config.out}. {encoder.recipe['verdict']}")
    return encoder


def judged_by_search(config: TrainConfig) -> tuple[TrainConfig, Measure | None]:
    """The configuration without judged questions among its dev files, and their measure.

    Raises ConfigError for several folders, and CorpusError.
    """
    from searchengine.measure.judged_folder import is_judged, retrieval

    folders = [path for path in config.dev if is_judged(path)]
    if len(folders) > 1:
        raise ConfigError(
            f"{' and '.join(map(str, folders))} hold judged questions: one folder chooses the step"
        )
    files = tuple(path for path in config.dev if path not in folders)
    return replace(config, dev=files), retrieval(folders[0]) if folders else None


@contextmanager
def _resumable(config: TrainConfig, console: "Console") -> Iterator[None]:
    """Where a run is interrupted, say how it goes on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        step = saved_step(config.out)
        if step is not None:
            advice = f"the same command with --resume goes on from update {step}"
        elif (config.out / "modules.json").exists():
            advice = f"{config.out} holds a model all the same"
        else:
            advice = "no checkpoint was written yet: begin again"
        print_line(console, f"Training was interrupted; {advice}")
        raise


class Display:
    """A progress bar with the loss, and a line for every evaluation."""

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
        self._before = console.status("Reading examples, and judging the base model")
        self._pulse = Pulse()
        self._started = False

    def __enter__(self) -> "Display":
        self._before.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._before.stop()
        if isinstance(error, Exception):
            erase(self._bar)
        self._bar.stop()

    def __call__(self, report: Report) -> None:
        self._before.stop()
        self._bar.start()  # at the first report: an error in the input is shown without a bar
        loss = "–" if report.loss is None else f"{report.loss:.3f}"
        self._bar.update(self._task, total=report.steps, completed=report.step, loss=loss)
        if report.step and not self._console.is_terminal:
            self._pulse("Training", report.step, report.steps, f", loss {loss}")
        if not self._started:
            left_out = f"; {report.excluded} left out, for they are in an exclude or dev file"
            print_line(
                self._console, f"{report.examples} examples{left_out if report.excluded else ''}"
            )
            if report.unjudged and not self._resume:
                last = f"No --dev file, and {report.unjudged}: the last step is kept"
                print_line(self._console, last)
            elif report.base:
                print_line(self._console, f"the base as shipped  {_by_prefix(report.base)}")
            self._started = True
        if report.scores is not None:
            best = "  (best)" if report.best_step == report.step else ""
            line = f"step {report.step:>6}          {_by_prefix(report.scores)}{best}"
            print_line(self._console, line)


def _by_prefix(scores: Mapping[int, float]) -> str:
    return "  ".join(f"{dim}: {score:.4f}" for dim, score in scores.items())
