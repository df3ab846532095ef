"""searchengine evaluate retrieval and runs: search results measured by judgements."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.backends.folder.mode import Mode
from searchengine.cli.console import counted
from searchengine.cli.measuring import encoders as by_encoder
from searchengine.cli.measuring import judged
from searchengine.cli.measuring.evaluate import PREFIXES
from searchengine.cli.options import (
    AS_JSON,
    PLOTS,
    QUERY_ENCODER,
    Address,
    complete_path,
    name_list,
    runs,
    several,
)

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine
    from searchengine.measure.judgements import Qrels
    from searchengine.measure.metrics import RetrievalRow
    from searchengine.measure.retrieval import Task

_NO_PREFIXES = "--plots draws prefix lengths, which need --mode vector"


@click.command()
@click.argument("collection", type=Address(), required=False)
@click.option(
    "--queries", type=click.Path(path_type=Path), help="File of questions: .jsonl or .txt."
)
@click.option("--qrels", type=click.Path(path_type=Path), help="File of judgements: TSV.")
@click.option(
    "--beir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder with both: queries.jsonl and qrels/SPLIT.tsv (and corpus.jsonl, for --encoder "
    "without a collection).",
)
@click.option("--split", default="test", help="Split of the BEIR folder.")
@click.option(
    "--mode",
    "modes",
    type=several(Mode),
    metavar="MODE,MODE,…",
    help="Search modes to compare: auto (what users get), vector, text, hybrid "
    "[default: auto,vector].",
)
@PREFIXES
@click.option(
    "--shortlist",
    default=100,
    type=click.IntRange(1),
    help="Number of candidates of a prefix to rerank at full width.",
)
@click.option("--baseline", metavar="ROW", help="Row to compare the others with [default: exact].")
@click.option(
    "--worst",
    type=click.IntRange(1),
    metavar="N",
    help="Number of questions to show, those that lost most.",
)
@click.option("--of", "worst_of", metavar="ROW", help="Row for --worst [default: every row].")
@click.option(
    "--exclude-self/--no-exclude-self",
    default=None,
    help="Leave out the document with the question's key [default: if questions are documents].",
)
@click.option(
    "--run-out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for a TREC run file per row.",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    metavar="PATH",
    shell_complete=complete_path,
    help="Model folder, hub name, or URL#MODEL [default: the collection's encoder]; repeatable "
    "without a collection, to compare encoders.",
)
@QUERY_ENCODER
@runs
@PLOTS
@AS_JSON
def retrieval(
    collection: Path | str | None,
    queries: Path | None,
    qrels: Path | None,
    beir: Path | None,
    split: str,
    modes: tuple[Mode, ...] | None,
    prefixes: tuple[int, ...] | None,
    shortlist: int,
    baseline: str | None,
    worst: int | None,
    worst_of: str | None,
    exclude_self: bool | None,
    run_out: Path | None,
    encoders: tuple[str, ...],
    query_encoder: str | None,
    runtime: Any,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Measure nDCG@10, recall@100, MRR@10 and MAP on judged questions.

    The first row is the search that users of the collection get: the mode that it
    stores (--mode auto), marked as the default. The rows of mode vector are exact
    search, every prefix length with a shortlist, and "configured", the collection's
    operating point. Modes text and hybrid are one row each. docs/evaluation.md
    explains intervals and p-values.

    Without COLLECTION, each --encoder encodes the documents and questions of the
    BEIR folder, and one sentence says whether it is better than the first.

    \b
    Examples:
        searchengine evaluate retrieval my.index --queries q.jsonl --qrels test.tsv
        searchengine evaluate retrieval my.index --beir scifact --mode vector,text,hybrid
        searchengine evaluate retrieval my.index --beir scifact --worst 20 --of 64
        searchengine evaluate retrieval --beir scifact --encoder starter --encoder my-model
    """
    from searchengine.cli.console import note, show_json, steps
    from searchengine.engine import SearchEngine
    from searchengine.measure import metrics
    from searchengine.measure import retrieval as evaluation

    _check_needs(
        (worst_of, worst is not None, "--of needs --worst N; add it, or leave --of out"),
        (plots, modes is None or Mode.VECTOR in modes, _NO_PREFIXES),
        (query_encoder, collection is not None, "--query-encoder needs a COLLECTION; name one"),
    )
    if collection is None:
        folder = by_encoder.folder(encoders, beir)
        by_encoder.compare(
            by_encoder.Comparison(encoders, baseline, worst, worst_of, exclude_self, run_out),
            folder,
            *_read(queries, qrels, folder, split),
            runtime=runtime,
            as_json=as_json,
        )
        return
    encoder = by_encoder.only(encoders)
    questions, judgements = _read(queries, qrels, beir, split)
    options = {"query_encoder": query_encoder, "runtime": runtime}
    with SearchEngine.open(collection, encoder, **options) as engine:
        if modes is None and (prefixes or plots):
            modes = Mode.AUTO, Mode.VECTOR
        modes = modes or evaluation.default_modes(engine)
        dims = _dims(engine, modes, prefixes)
        names = evaluation.names(engine, dims, modes)
        base = _row(engine, names, baseline)
        row = None if worst_of is None else _row(engine, names, worst_of)
        compared = judged.compared(names, base, row) if worst is not None else []
        task = evaluation.task(engine, questions, judgements, exclude_self)
        if run_out is not None:
            _check_runs(engine, task, run_out)
        for sentence in task.notes:
            note(f"Note: {sentence}")
        with steps() as report:

            def progress(step: str, done: int) -> None:
                name = "Encoding" if step == evaluation.ENCODING else f"Evaluating {step}"
                report(name, done, len(task.queries))

            settings = list(evaluation.measure(engine, task, dims, shortlist, modes, progress))
        losses = judged.losses(engine, task, settings, base, compared, worst)
    rows = metrics.table(settings, base)
    title = f"{collection}, {counted(len(task.queries), 'question')}"
    if as_json:
        show_json(judged.as_dicts(rows, losses))
    else:
        judged.show(rows, judged.fitting(rows), losses, title)
    if run_out is not None:
        judged.write_runs(run_out, settings)
    if plots is not None:
        _draw(plots, rows, shortlist)


def _check_needs(*options: tuple[Any, bool, str]) -> None:
    """Raise UsageError for an option that is given without what it needs: value, need, message."""
    for value, present, message in options:
        if value is not None and not present:
            raise click.UsageError(message)


@click.command("runs")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--qrels", required=True, type=click.Path(path_type=Path), help="File of judgements: TSV."
)
@click.option("--names", type=name_list(), help="Names of the runs [default: their file names].")
@click.option(
    "--baseline", metavar="NAME", help="Run to compare the others with [default: the first]."
)
@AS_JSON
def run_files(
    files: tuple[Path, ...],
    qrels: Path,
    names: tuple[str, ...] | None,
    baseline: str | None,
    as_json: bool,
) -> None:
    """Measure TREC run files from any system, and compare them.

    A RUN (.gz too) has lines of question, Q0, document, rank, score and tag. The
    metrics are those of `retrieval`. A judged question that a run lacks counts 0, as
    with trec_eval -c.

    \b
    Example:
        searchengine evaluate runs bm25.run mine.run --qrels qrels/test.tsv
    """
    from searchengine.cli.console import note, show_json
    from searchengine.measure import metrics
    from searchengine.measure.judgements import read_qrels
    from searchengine.measure.runs import read_run

    run_names = _run_names(files, names)
    base = run_names[metrics.position(run_names, baseline)] if baseline else run_names[0]
    grades = read_qrels(qrels)
    settings = []
    for name, file in zip(run_names, files, strict=True):
        run = read_run(file)
        if missing := len(grades.keys() - run.keys()):
            note(
                f"Note: {name} lacks {missing:,} of {len(grades):,} judged questions: they count 0"
            )
        if unjudged := len(run.keys() - grades.keys()):
            note(f"Note: {name} answers questions without a judgement, left out: {unjudged:,}")
        settings.append(metrics.Setting.of(name, run, list(grades), grades))
    rows = metrics.table(settings, base)
    if as_json:
        show_json(judged.as_dicts(rows, {}))
    else:
        judged.show(rows, judged.fitting(rows), {}, f"{qrels}, {counted(len(grades), 'question')}")


def _read(
    queries: Path | None, qrels: Path | None, beir: Path | None, split: str
) -> tuple[dict[str, str], "Qrels"]:
    """Read questions and judgements from two files, or from a folder."""
    from searchengine.measure.judgements import read_beir, read_qrels, read_queries

    if beir is not None:
        if queries is not None or qrels is not None:
            raise click.UsageError("--beir replaces --queries and --qrels; leave them out")
        return read_beir(beir, split)
    if queries is None or qrels is None:
        raise click.UsageError(
            "questions and judgements are needed: --queries and --qrels, or --beir FOLDER"
        )
    return read_queries(queries), read_qrels(qrels)


def _dims(
    engine: "SearchEngine", modes: Sequence[str], prefixes: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return the prefix lengths; none without mode vector, which then loads no encoder."""
    from searchengine.measure.retrieval import default_dims

    if Mode.VECTOR not in modes:
        return ()
    return prefixes or default_dims(engine)


def _row(engine: "SearchEngine", names: Sequence[str], row: str | None) -> str:
    """Return the name of a row; the full width is an alias of exact search."""
    from searchengine.measure.metrics import EXACT, position

    full = str(engine.collection.settings["encoder"]["dim"])
    return names[position(names, EXACT if row == full else row)]


def _check_runs(engine: "SearchEngine", task: "Task", folder: Path) -> None:
    """Refuse names that a run file cannot contain before measuring."""
    from searchengine.backends.folder.documents import listing
    from searchengine.measure.runs import check_names

    with engine.collection.reading() as snapshot:
        keys = list(listing.keys(snapshot.store))
    check_names(folder, task.queries, keys)


def _run_names(files: Sequence[Path], names: Sequence[str] | None) -> list[str]:
    """Names of the runs."""
    result = list(names or (file.name.removesuffix(".gz").removesuffix(".run") for file in files))
    if len(result) != len(files):
        raise click.UsageError(f"--names must have {len(files)} names, got {len(result)}")
    if len(set(result)) < len(result) or not all(result):
        raise click.UsageError(
            f"names of runs must differ, got {', '.join(result)}; name them with --names a,b"
        )
    return result


def _draw(folder: Path, rows: Sequence["RetrievalRow"], shortlist: int) -> None:
    """Plot nDCG@10 by prefix length, of the rows that have one."""
    from searchengine.cli.console import note
    from searchengine.measure.plots.style import save
    from searchengine.measure.plots.vectors import prefix_scores

    dicts = [row.as_dict() for row in rows if row.setting.dim is not None]
    lines = {
        "prefix alone": {row["dim"]: row["prefix_ndcg@10"] for row in dicts},
        f"shortlist of {shortlist}, reranked": {row["dim"]: row["ndcg@10"] for row in dicts},
    }
    note(f"Written: {save(prefix_scores(lines, 'nDCG@10'), folder / 'prefixes.svg')}")
