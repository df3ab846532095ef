"""searchengine evaluate …: encoders and collections against judgements."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.options import AS_JSON, PLOTS, TRUST, Names, Numbers, runs

if TYPE_CHECKING:
    from trainer.evaluation.sts import Setting, StsTask
    from trainer.evaluation.transfer import TransferRow

MODEL = click.option(
    "--encoder", default="starter", show_default=True, help="Model folder or hub name."
)
MODELS = click.option(
    "--encoder",
    "encoders",
    multiple=True,
    default=("starter",),
    show_default=True,
    help="Model folder or hub name; several are compared.",
)
PREFIXES = click.option(
    "--prefixes", type=Numbers(), help="Prefix lengths [default: the model's own]."
)
SETTINGS = ("all", "mean", "weighted")


class NamedFile(click.ParamType[tuple[str, Path]]):
    """FILE or NAME=FILE: a name and a path; without NAME that of the file, up to its first dot."""

    name = "[NAME=]FILE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Path]:
        """("", path) where no name is given; a file whose own name holds "=" is meant as it is."""
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
@click.option("--setting", type=click.Choice(SETTINGS), default="all", show_default=True)
@MODELS
@PREFIXES
@click.option("--layers", type=Numbers(), help="Use the first layers alone: 6,3.")
@runs
@PLOTS
@AS_JSON
def sts(
    files: tuple[tuple[str, Path], ...],
    setting: "Setting",
    encoders: tuple[str, ...],
    prefixes: tuple[int, ...] | None,
    layers: tuple[int, ...] | None,
    runtime: Any,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Spearman correlation with human similarity scores, one row a task and prefix length.

    Each FILE is a task: a TSV with the columns score, sentence1 and sentence2. Files
    given the same NAME are pooled into one task. Several tasks end in an average.

    --setting says what is correlated: all pairs of a task at once, or each subset (by
    the column subset) and then their mean, plain or weighted by the subsets' sizes.

    \b
    Example:
        searchengine evaluate sts sts12.tsv stsb_test.tsv sick=train.tsv sick=test.tsv
    """
    from searchengine.cli.console import note, progress, show_json, show_rows
    from trainer.evaluation.sts import averages, sentences, sts_tasks

    tasks = _sts_tasks(files)
    models, shown = _shallow(encoders, layers, runtime), _shown(encoders)
    dicts = []
    lines: dict[str, dict[int, float]] = {}
    with progress("Encoding", len(sentences(tasks)) * len(models)) as advance:
        for name, each in models:
            rows = sts_tasks(each, tasks, prefixes, setting, advance)
            if len(tasks) > 1:
                rows += averages(rows)
            dicts += [{"encoder": name, "layers": each.layers} | asdict(r) for r in rows]
            line = shown[name] + (f", {each.layers} layers" if layers else "")
            lines[line] = {row.dim: row.spearman for row in rows if row.task == rows[-1].task}
    pairs = sum(len(task.pairs) for task in tasks)
    show_json(dicts) if as_json else show_rows(dicts, f"{pairs} pairs, setting {setting}")
    if plots is not None:
        from searchengine.report.plots.style import save
        from searchengine.report.plots.vectors import prefix_scores

        note(f"Drawn: {save(prefix_scores(lines, 'Spearman correlation'), plots / 'prefixes.svg')}")


def _shown(encoders: tuple[str, ...]) -> dict[str, str]:
    """What a picture calls each encoder: the end of its path, where that tells them apart."""
    short = {name: Path(name).name for name in encoders}
    apart = len(set(short.values())) == len(short)
    return short if apart else {name: name for name in encoders}


def _shallow(
    encoders: tuple[str, ...], layers: tuple[int, ...] | None, runtime: Any
) -> list[tuple[str, Any]]:
    """Every encoder, or every one with each number of layers."""
    from searchengine.ingest.encoding import load

    return [(name, load(name, runtime, n)) for name in encoders for n in layers or (None,)]


def _sts_tasks(files: tuple[tuple[str, Path], ...]) -> list["StsTask"]:
    """One task a file, or a name; two files that would both be called the same need names."""
    from trainer.evaluation.sts import read_task

    named: dict[str, list[Path]] = {}
    for name, path in files:
        named.setdefault(name or path.name.split(".")[0], []).append(path)
    for name, path in files:
        own = path.name.split(".")[0]
        if not name and len(named[own]) > 1:
            raise click.UsageError(
                f"two tasks are called {own}: name {path} otherwise, or name both the same to pool "
                f"them (NAME={path})"
            )
    return [read_task(name, paths) for name, paths in named.items()]


@evaluate.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@MODEL
@click.option("--tasks", type=Names(), help="Some tasks alone: MR,CR,SUBJ,MPQA,SST2,TREC,MRPC.")
@PREFIXES
@TRUST
@AS_JSON
def transfer(
    folder: Path,
    encoder: str,
    tasks: tuple[str, ...] | None,
    prefixes: tuple[int, ...] | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Accuracy of a logistic regression on the vectors, one row a task and prefix length.

    FOLDER holds the tasks' TSV files (.gz too): mr, cr, subj, mpqa, sst2_train, sst2_dev,
    sst2_test, trec_train, trec_test, mrpc_train and mrpc_test. docs/evaluation.md says
    what is in them, and how the classifier is trained and its C chosen.

    \b
    Example:
        searchengine evaluate transfer clf --encoder my-model --tasks MR,TREC
    """
    from searchengine.cli.console import progress, show_json, show_rows
    from trainer.encoder import Encoder
    from trainer.evaluation.transfer import TASKS, averages, read_transfer
    from trainer.evaluation.transfer import transfer as evaluate_transfer

    chosen = dict.fromkeys(name.upper() for name in tasks or TASKS)
    read = [read_transfer(folder, name) for name in chosen]
    model = Encoder.load(encoder, trust_remote_code=trust_remote_code)
    rows: list[TransferRow] = []
    for data in read:
        with progress(f"Encoding {data.task.name}, then fitting", len(data.texts())) as advance:
            rows += evaluate_transfer(model, data, prefixes, advance)
    if len(read) > 1:
        rows += averages(rows)
    dicts = [asdict(row) for row in rows]
    show_json(dicts) if as_json else show_rows(dicts, f"{folder}, {encoder}")


@evaluate.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@MODELS
@PREFIXES
@click.option(
    "--positive-from",
    type=float,
    default=4.0,
    show_default=True,
    help="Score from which a pair counts as alike.",
)
@PLOTS
@TRUST
@AS_JSON
def geometry(
    pairs: tuple[Path, ...],
    encoders: tuple[str, ...],
    prefixes: tuple[int, ...] | None,
    positive_from: float,
    plots: Path | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Alignment, uniformity, isotropy and effective rank, one row a prefix length.

    PAIRS are TSV files with the columns score, sentence1 and sentence2, pooled: the
    pairs of a high score for alignment, all distinct sentences for the rest.
    --plots draws the singular values at full width, before and after training where
    two encoders are given.

    \b
    Example:
        searchengine evaluate geometry stsb_dev.tsv --encoder starter --encoder my-model
    """
    from searchengine.cli.console import note, progress, show_json, show_rows
    from trainer.encoder import Encoder
    from trainer.evaluation.geometry import geometry as measure
    from trainer.evaluation.geometry import spectrum
    from trainer.evaluation.sts import Remembered, StsTask, read_sts, sentences

    scored = read_sts(pairs)
    dicts, spectra, shown = [], {}, _shown(encoders)
    with progress("Encoding", len(sentences([StsTask("", scored)])) * len(encoders)) as advance:
        for name in encoders:
            model = Remembered(Encoder.load(name, trust_remote_code=trust_remote_code))
            rows = measure(model, scored, prefixes, positive_from=positive_from, on_batch=advance)
            dicts += [{"encoder": name} | asdict(row) for row in rows]
            spectra[shown[name]] = spectrum(model.rows)
    show_json(dicts) if as_json else show_rows(dicts, f"{len(scored)} pairs")
    if plots is not None:
        from searchengine.report.plots.style import save
        from searchengine.report.plots.vectors import spectra as draw

        note(f"Drawn: {save(draw(spectra), plots / 'spectrum.svg')}")


@evaluate.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--encoder", required=True, help="A model trained on labelled texts.")
@PREFIXES
@TRUST
@AS_JSON
def labels(
    files: tuple[Path, ...],
    encoder: str,
    prefixes: tuple[int, ...] | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Accuracy of a model's own labels, one row a prefix length.

    FILES are TSV or JSONL with the columns text and label, pooled. The model was
    trained with the objective classification (docs/training.md).

    \b
    Example:
        searchengine evaluate labels sst2_test.tsv --encoder my-model
    """
    from searchengine.cli.console import progress, show_json, show_rows
    from trainer.encoder import Encoder
    from trainer.evaluation.labels import accuracy
    from trainer.training.data.files import read_labelled

    texts = read_labelled(files)
    model = Encoder.load(encoder, trust_remote_code=trust_remote_code)
    with progress("Encoding", len(texts)) as advance:
        rows = [asdict(row) for row in accuracy(model, texts, prefixes, advance)]
    show_json(rows) if as_json else show_rows(rows, f"{len(texts)} texts, {encoder}")


@evaluate.command("map")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--plots",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder to write.",
)
@MODEL
@click.option("--projection", type=click.Choice(["pca", "tsne", "umap"]), default="pca")
@click.option("--most", default=1000, show_default=True, type=click.IntRange(2), help="Texts.")
@TRUST
def map_(
    files: tuple[Path, ...],
    plots: Path,
    encoder: str,
    projection: str,
    most: int,
    trust_remote_code: bool,
) -> None:
    """A picture of labelled texts in the plane, one colour a label.

    FILES are TSV or JSONL with the columns text and label; the first --most texts are
    drawn.

    \b
    Example:
        searchengine evaluate map trec_test.tsv --encoder my-model --plots pictures
    """
    from searchengine.cli.console import note, progress
    from searchengine.report.plots.style import save
    from searchengine.report.plots.vectors import sentence_map
    from trainer.encoder import Encoder
    from trainer.training.data.files import read_labelled

    texts = read_labelled(files)[:most]
    model = Encoder.load(encoder, trust_remote_code=trust_remote_code)
    with progress("Encoding", len(texts)) as advance:
        vectors = model.encode([text for text, _ in texts], on_batch=advance)
    title = f"{len(texts)} texts, {Path(encoder).name}"
    figure = sentence_map(vectors, [label for _, label in texts], projection, title=title)
    note(f"Drawn: {save(figure, plots / 'map.svg')}")
