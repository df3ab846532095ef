"""The display of a training run: progress and scores."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from searchengine.cli.console import Terminated, note, steps
from searchengine.cli.train_logs import LOGS
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, TrainingWarning
from searchengine.trainer.training.checkpoint import saved_step
from searchengine.trainer.training.judging import Measure
from searchengine.trainer.training.loop import OnReport, Report, train
from searchengine.trainer.training.processes import launched_rank
from searchengine.trainer.training.train_config import TrainConfig


def train_with_progress(
    config: TrainConfig,
    *,
    resume: bool = False,
    logs: Sequence[str] = (),
) -> Encoder:
    """Train, and show loss and scores on stderr.

    logs: where they go besides, of LOGS. Under torchrun only the first process shows and writes
    anything.
    """
    config, measure = judged_by_search(config)
    if launched_rank() > 0:
        return train(config, resume=resume, measure=measure)
    if (config.out / "modules.json").exists():
        note(f"{config.out} holds a model, which this training will replace when it ends")
    with ExitStack() as stack:
        stack.enter_context(_resumable(config))
        callbacks: list[OnReport] = [stack.enter_context(display(resume))]
        callbacks += [stack.enter_context(LOGS[name](config)) for name in logs]

        def on_report(report: Report) -> None:
            for callback in callbacks:
                callback(report)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # the line below has the same text
            encoder = train(config, on_report, resume, measure)
    note(f"The model is in {config.out}. {encoder.recipe['verdict']}")
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
def _resumable(config: TrainConfig) -> Iterator[None]:
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
        note(f"Training was interrupted; {advice}")
        raise


@contextmanager
def display(resume: bool) -> Iterator[OnReport]:
    """Progress with the loss, and a line for every evaluation; yields the callback of `train`."""
    before: int | None = None
    with steps() as progress:
        progress(_BEFORE, 0, None)

        def on_report(report: Report) -> None:
            nonlocal before
            if before is None:
                progress(_BEFORE, 1, 1)
                _note_start(report, resume)
            loss = "" if report.loss is None else f"loss {report.loss:.3f}"
            progress("Training", report.step - (before or 0), report.steps, loss)
            before = report.step
            if report.scores is not None:
                best = "  (best)" if report.best_step == report.step else ""
                note(f"step {report.step:>6}          {_by_prefix(report.scores)}{best}")

        yield on_report


_BEFORE = "Reading examples, and judging the base model"


def _note_start(report: Report, resume: bool) -> None:
    left_out = f"; {report.excluded} left out, for they are in an exclude or dev file"
    note(f"{report.examples} examples{left_out if report.excluded else ''}")
    if report.unjudged and not resume:
        note(f"No --dev file, and {report.unjudged}: the last step is kept")
    elif report.base:
        note(f"the base as shipped  {_by_prefix(report.base)}")


def _by_prefix(scores: Mapping[int, float]) -> str:
    return "  ".join(f"{dim}: {score:.4f}" for dim, score in scores.items())
