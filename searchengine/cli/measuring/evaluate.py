"""searchengine evaluate sts, labels and mteb."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.options import (
    AS_JSON,
    MODEL,
    MODELS,
    PATH,
    PREFIXES,
    numbers,
    runs,
)

if TYPE_CHECKING:
    from searchengine.trainer.evaluation.sts import StsTask


class NamedFile(click.ParamType[tuple[str, Path]]):
    """FILE or NAME=FILE; NAME is by default the file name up to its first dot."""

    name = "[NAME=]FILE"
    shell_complete = PATH.shell_complete

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Path]:
        """Return (name, path), the name "" by default; a file name may contain "="."""
        if isinstance(value, tuple):
            return value
        name, sign, path = str(value).partition("=")
        if not sign or Path(value).exists():
            return "", Path(value)
        if not name or not path:
            self.fail(f"expected FILE or NAME=FILE, got {value!r}", param, ctx)
        return name, Path(path)


@click.group()
def evaluate() -> None:
    """Measure an encoder or a collection against judgements."""


@evaluate.command()
@click.argument("files", nargs=-1, required=True, type=NamedFile(), metavar="[NAME=]FILE...")
@MODELS
@PREFIXES
@click.option("--layers", type=numbers(), help="Numbers of layers to run, from the first: 6,3.")
@runs
@AS_JSON
def sts(
    files: tuple[tuple[str, Path], ...],
    encoders: tuple[str, ...],
    prefixes: tuple[int, ...] | None,
    layers: tuple[int, ...] | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure Spearman correlation with human similarity scores, and the vectors' geometry.

    Prints one row per task and prefix length, with 95 % intervals; alignment, uniformity
    and effective rank show how the vectors are spread. Each FILE is a task, with
    the columns score, sentence1 and sentence2. Files with the same NAME are pooled.

    \b
    Example:
        searchengine evaluate sts sts12.tsv stsb_test.tsv sick=train.tsv sick=test.tsv
    """
    from searchengine.cli.console import counted, progress, show_json, show_rows
    from searchengine.trainer.evaluation.sts import averages, sentences, sts_tasks

    tasks = _sts_tasks(files)
    models = load_all(encoders, layers, runtime)
    dicts = []
    with progress("Encoding", len(sentences(tasks)) * len(models)) as advance:
        for name, model in models:
            rows = sts_tasks(model, tasks, prefixes, advance)
            if len(tasks) > 1:
                rows += averages(rows)
            dicts += [{"encoder": name, "layers": model.layers} | asdict(row) for row in rows]
    pairs = sum(len(task.pairs) for task in tasks)
    if as_json:
        show_json(dicts)
    else:
        show_rows([_with_interval(row) for row in dicts], counted(pairs, "pair"))


def _with_interval(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: Spearman's correlation, with its interval in the same cell."""
    columns = {name: value for name, value in row.items() if name != "spearman_interval"}
    ends = row["spearman_interval"]
    interval = "" if ends is None else f" [{ends[0]:.3f}–{ends[1]:.3f}]"
    return columns | {"spearman": f"{row['spearman']:.4f}{interval}"}


def load_all(
    encoders: tuple[str, ...], layers: tuple[int, ...] | None, runtime: Any
) -> list[tuple[str, Any]]:
    """Load every encoder, with every number of layers."""
    from searchengine.trainer.encoder import Encoder

    load, config = Encoder.load, asdict(runtime)
    return [(name, load(name, **config, layers=n)) for name in encoders for n in layers or (None,)]


def _sts_tasks(files: tuple[tuple[str, Path], ...]) -> list["StsTask"]:
    """Read one task per name. Files that share a default name need explicit ones."""
    from searchengine.trainer.evaluation.sts import StsTask
    from searchengine.trainer.training.examples import read_sts

    named: dict[str, list[Path]] = {}
    for name, path in files:
        named.setdefault(name or path.name.split(".")[0], []).append(path)
    for name, path in files:
        default = path.name.split(".")[0]
        if not name and len(named[default]) > 1:
            raise click.UsageError(
                f"two tasks are called {default}: give {path} another name, or give both the same "
                f"name to pool them (NAME={path})"
            )
    return [StsTask(name, read_sts(paths)) for name, paths in named.items()]


@evaluate.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--encoder",
    required=True,
    type=PATH,
    help="Model trained on labelled texts.",
)
@PREFIXES
@runs
@AS_JSON
def labels(
    files: tuple[Path, ...],
    encoder: str,
    prefixes: tuple[int, ...] | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure how accurately a model labels texts, one row per prefix length.

    An accuracy has its 95 % interval. FILES are CSV, TSV or JSONL with the columns text and
    label, pooled. The model must be trained with the objective classification
    (docs/training.md).

    \b
    Example:
        searchengine evaluate labels sst2_test.tsv --encoder my-model
    """
    from searchengine.cli.console import counted, note, progress, show_json, show_rows
    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.errors import TRAINING, require

    require("train", "evaluating labels", *TRAINING)
    from searchengine.measure.significance import wilson
    from searchengine.trainer.evaluation.labels import classify_by_prefix
    from searchengine.trainer.training.examples import read_labelled

    labelled = read_labelled(files)
    texts, expected = zip(*labelled, strict=True)
    model = Encoder.load(encoder, **asdict(runtime))
    dims = model.matryoshka_dims if prefixes is None else prefixes
    with progress("Encoding", len(texts)) as advance:
        predicted = classify_by_prefix(model, texts, dims, advance)
    known = () if model.model.classifier is None else model.model.classifier.labels
    if unknown := [label for label in expected if label not in known]:
        note(
            f"Note: {counted(len(unknown), 'text')} with labels that the model was not trained on, "
            f"such as {unknown[0]!r}, which count as wrong"
        )
    rows, cells, n = [], [], len(texts)
    for dim, found in zip(dims, predicted, strict=True):
        right = sum(a == b for a, b in zip(found, expected, strict=True))
        low, high = wilson(right, n)
        rows.append({"dim": dim, "accuracy": right / n, "n": n, "low": low, "high": high})
        cells.append({"dim": dim, "accuracy": f"{right / n:.4f} [{low:.3f}–{high:.3f}]", "n": n})
    show_json(rows) if as_json else show_rows(cells, f"{counted(n, 'text')}, {encoder}")


@evaluate.command()
@click.option(
    "--task",
    "names",
    required=True,
    multiple=True,
    metavar="NAME",
    help="Task of mteb, which downloads its data; repeatable.",
)
@MODEL
@PREFIXES
@runs
@AS_JSON
def mteb(
    names: tuple[str, ...],
    encoder: str,
    prefixes: tuple[int, ...] | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure an encoder with tasks of mteb, one row per task and prefix length.

    Prefixes are scaled to length one; every text is encoded once.

    \b
    Example:
        searchengine evaluate mteb --task SciFact --task STSBenchmark --prefixes 384,64
    """
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # datasets reads it on import

    from searchengine.cli.console import progress, show_json, show_rows
    from searchengine.engine import SearchEngine
    from searchengine.trainer.evaluation.mteb import evaluate, load_task

    tasks = [load_task(name) for name in names]  # all, before measuring any, which takes minutes
    model: Any = SearchEngine.load_encoder(encoder, runtime)
    with progress("Encoding") as advance:
        rows = [asdict(row) for row in evaluate(model, tasks, prefixes, advance)]
    show_json(rows) if as_json else show_rows(rows, encoder)
