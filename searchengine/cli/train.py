"""Train: searchengine train, with its display and logs, and mine."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli import options as opt
from searchengine.cli.console import Terminated, counted, note, progress, show_result, steps
from searchengine.cli.options import command
from searchengine.trainer.errors import (
    TRAINING,
    ConfigError,
    TrainingWarning,
    install_line,
    pip_line,
    require,
)
from searchengine.trainer.training.train_config import PRESETS, preset

if TYPE_CHECKING:
    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.training.loop import OnReport, Report
    from searchengine.trainer.training.train_config import TrainConfig

_BEFORE = "Reading examples, and judging the base model"
_LOGGED = click.Choice(["wandb", "mlflow", "tensorboard"])


@command(
    click.argument("files", nargs=-1, type=opt.FILE),
    opt.file("--out", "Folder to write the model to.", required=True),
    click.option("--preset", type=click.Choice([*PRESETS]), help="Settings to start from."),
    click.option("--base", help="Model to start from [default: starter]."),
    opt.file("--dev", "File whose score chooses the best step; repeatable.", multiple=True),
    opt.file("--exclude", "Texts to leave out of training; repeatable.", multiple=True),
    click.option("--config", type=opt.PRESENT, help="JSON file of training settings."),
    opt.assignments("Setting, the value in JSON: epochs=1, prefixes=[384,64]; repeatable."),
    opt.flag("--resume", "Resume from the last checkpoint in --out."),
    click.option(
        "--log", "logs", multiple=True, type=_LOGGED, help="Where to log loss and scores."
    ),
    epilog="\n\n".join(
        f"Preset {name}: {'; '.join(filter(None, (each.summary, each.harm)))}."
        for name, each in PRESETS.items()
    ),
    example="train data/pairs.tsv --out my-model",
    collection=False,
    json=False,
)
def train(
    files: Any, preset: Any, config: Any, assignments: Any, resume: bool, logs: Any, **options: Any
) -> None:
    """Fine-tune an encoder on sentences, pairs, triplets, scores or labelled texts.

    FILES are CSV, TSV or JSONL, .gz too. The step that scores highest is kept, on the --dev files:
    pairs, scored or not; labelled texts for a classification; or a BEIR folder, which is searched.
    Without --dev, examples are held out. Training texts that occur in an --exclude file are left
    out, so that a later evaluation uses unseen texts. --config overrides --preset, --set overrides
    both, other options override all. --log tensorboard writes to runs/ in --out.
    docs/training-reference.md lists all settings.
    """
    from searchengine.trainer.sources.source import Source

    require("train", "training", *TRAINING)  # before the seconds that torch takes to start
    overrides = {name: value for name, value in options.items() if value not in (None, ())}
    if files:
        overrides["train"] = files
    elif config is None:
        raise click.UsageError("Missing argument 'FILES...': name them, or a --config with them.")
    settings = read_config(config, overrides, preset, assignments)
    if not resume:  # a missing base is refused before torch is loaded
        Source.find(settings.base)
    train_with_progress(settings, resume=resume, logs=logs)


def read_config(
    path: Path | None,
    overrides: Mapping[str, Any],
    preset_name: str | None = None,
    assignments: Iterable[tuple[str, Any]] = (),
) -> "TrainConfig":
    """A preset, overridden by a JSON file, then by NAME=VALUE, then by options.

    Labels have the preset of their name, if none is given.
    """
    from searchengine.trainer.files import read_object  # which imports numpy
    from searchengine.trainer.training.train_config import Objective, TrainConfig

    settings = {} if path is None else read_object(path)
    settings |= {**dict(assignments), **overrides}
    if preset_name is None and settings.get("objective") == Objective.CLASSIFICATION:
        preset_name = "labels"
    return TrainConfig.from_dict({**(preset(preset_name) if preset_name else {}), **settings})


def train_with_progress(
    config: "TrainConfig", *, resume: bool = False, logs: Sequence[str] = ()
) -> "Encoder":
    """Train, and show loss and scores on stderr. `logs`: where they go besides.

    Of the --dev files a folder in BEIR's layout is a search to judge by. Under torchrun only the
    first process shows and writes anything. Raises ConfigError for several folders.
    """
    from searchengine.measure.retrieval import is_judged, retrieval
    from searchengine.trainer.training import loop
    from searchengine.trainer.training.checkpoint import saved_step
    from searchengine.trainer.training.processes import launched_rank

    folders = [path for path in config.dev if is_judged(path)]
    if len(folders) > 1:
        raise ConfigError(f"one folder of judged questions chooses the step, got {len(folders)}")
    config = replace(config, dev=tuple(path for path in config.dev if path not in folders))
    measure = retrieval(folders[0]) if folders else None
    if launched_rank() > 0:
        return loop.train(config, resume=resume, measure=measure)
    if (config.out / "modules.json").exists():
        note(f"{config.out} holds a model, which this training will replace when it ends")
    with ExitStack() as stack:
        callbacks = [stack.enter_context(display(resume))]
        callbacks += [stack.enter_context(log_to(name, config)) for name in logs]

        def on_report(report: "Report") -> None:
            for callback in callbacks:
                callback(report)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)  # the line below has the same text
                encoder = loop.train(config, on_report, resume, measure)
        except (KeyboardInterrupt, Terminated):
            step = saved_step(config.out)
            how = "no checkpoint was written: begin again"
            how = how if step is None else f"with --resume the same command goes on from {step}"
            note(f"Training was interrupted; {how}")
            raise
    note(f"The model is in {config.out}. {encoder.recipe['verdict']}")
    return encoder


@contextmanager
def display(resume: bool) -> "Iterator[OnReport]":
    """Progress with the loss, and a line for every evaluation; yields the callback of `train`."""
    before: int | None = None
    with steps() as progress:
        progress(_BEFORE, 0, None)

        def on_report(report: "Report") -> None:
            nonlocal before
            if before is None:
                progress(_BEFORE, 1, 1)
                left_out = f"; {report.excluded} left out, for they are in an exclude or dev file"
                note(f"{report.examples} examples{left_out if report.excluded else ''}")
                if report.unjudged and not resume:
                    note(f"No --dev file, and {report.unjudged}: the last step is kept")
                elif report.base:
                    note(f"the base as shipped  {_by_prefix(report.base)}")
            loss = "" if report.loss is None else f"loss {report.loss:.3f}"
            progress("Training", report.step - (before or 0), report.steps, loss)
            before = report.step
            if report.scores is not None:
                best = "  (best)" if report.best_step == report.step else ""
                note(f"step {report.step:>6}          {_by_prefix(report.scores)}{best}")

        yield on_report


def _by_prefix(scores: Mapping[int, float]) -> str:
    return "  ".join(f"{dim}: {score:.4f}" for dim, score in scores.items())


@contextmanager
def log_to(service: str, config: "TrainConfig") -> "Iterator[OnReport]":
    """Send loss and scores of every update to a service; yields the callback of `train`.

    with log_to("tensorboard", config) as report:
        train(config, report)

    wandb and mlflow are set up as their documentation says: WANDB_PROJECT, MLFLOW_TRACKING_URI.
    TensorBoard's files are in `runs`, below the folder of the model; steps after the first report,
    of an interrupted or an earlier run, are hidden. Raises ConfigError for a missing package.
    """
    from searchengine.trainer.sources.source import RUNS

    if find_spec(service) is None:
        line = install_line(service) if service == "tensorboard" else pip_line(service)
        raise ConfigError(f"--log {service} needs the package {service}: {line}")
    with ExitStack() as stack:
        send: Callable[..., Any]
        if service == "wandb":
            import wandb

            send = stack.enter_context(wandb.init(config=config.to_dict())).log
        elif service == "mlflow":
            import mlflow

            stack.enter_context(mlflow.start_run())
            mlflow.log_params({name: str(value) for name, value in config.to_dict().items()})
            send = mlflow.log_metrics
        else:
            from torch.utils.tensorboard import SummaryWriter

            writers: list[Any] = []

            def send(values: Mapping[str, float], step: int) -> None:
                if not writers:
                    writer = SummaryWriter(str(config.out / RUNS), purge_step=step)
                    writers.append(stack.enter_context(writer))
                for tag, value in values.items():
                    writers[0].add_scalar(tag, value, step)

        yield lambda report: send(report.values(), step=report.step)


@command(
    click.argument("pairs", nargs=-1, required=True, type=opt.FILE),
    opt.file("--out", "New .jsonl file.", required=True),
    opt.MODEL,
    opt.file("--corpus", "Corpus of further candidates, as for index."),
    click.option("--negatives", type=click.IntRange(1, 100), default=1, help="Negatives per pair."),
    click.option(
        "--relative-margin", default=0.95, help="Maximum score of negatives, as share of positives."
    ),
    example="mine data/pairs.tsv --out triplets.jsonl",
    collection=False,
)
def mine(
    pairs: Any, out: Path, encoder: str, corpus: Any, runtime: Any, as_json: bool, **options: Any
) -> None:
    """Find hard negatives for the PAIRS (CSV, TSV or JSONL) and write triplets.

    Candidates are all positives and the documents of --corpus. A candidate that scores nearly as
    high as the positive may be a positive too: the margin leaves it out. `train` reads the file;
    docs/training.md has the details.
    """
    from searchengine.corpus.files import read_corpus
    from searchengine.measure import mining

    mining.check_output(out)  # before seconds of loading
    from searchengine.trainer.encoder import Encoder

    started = time.monotonic()
    documents = read_corpus(corpus) if corpus else ()
    loaded = Encoder.load(encoder, **asdict(runtime))
    examples = mining.read_pairs(pairs)
    texts = mining.candidates(examples, (document.full_text for document in documents))
    with progress("Mining", len(examples) + len(texts)) as advance:
        summary = mining.write_negatives(out, loaded, examples, texts, **options, progress=advance)
    seconds = round(time.monotonic() - started, 2)
    full = counted(options["negatives"], "negative")
    show_result(
        {"out": str(out), **asdict(summary), "seconds": seconds},
        f"{summary.complete} of {summary.pairs} pairs with {full}, {summary.none} with none, of "
        f"{summary.candidates} candidates in {seconds} s: {out}",
        as_json,
    )


COMMANDS = (train, mine)
