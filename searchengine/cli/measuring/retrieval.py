"""searchengine evaluate retrieval and runs: search results measured by judgements."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import counted
from searchengine.cli.measuring.evaluate import PREFIXES
from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, PLOTS, name_list, runs, several
from searchengine.storage.mode import Mode

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine
    from searchengine.evaluate.differences import Worse
    from searchengine.evaluate.judgements import Qrels
    from searchengine.evaluate.metrics import RetrievalRow, Setting
    from searchengine.evaluate.retrieval import Task

    Losses = Mapping[str, Sequence[Worse]]

_LOSSES = "the questions that lost most nDCG@10, and the relevant documents that fell"


@click.command()
@COLLECTION
@click.option(
    "--queries", type=click.Path(path_type=Path), help="File of questions: .jsonl or .txt."
)
@click.option("--qrels", type=click.Path(path_type=Path), help="File of judgements: TSV.")
@click.option(
    "--beir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder with both: queries.jsonl and qrels/SPLIT.tsv.",
)
@click.option("--split", default="test", help="Split of the BEIR folder.")
@click.option(
    "--mode",
    "modes",
    type=several(mode for mode in Mode if mode is not Mode.AUTO),
    metavar="MODE,MODE,…",
    default="vector",
    help="Search modes to compare: vector, text, hybrid.",
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
@ENCODER
@runs
@PLOTS
@AS_JSON
def retrieval(
    collection: Path,
    queries: Path | None,
    qrels: Path | None,
    beir: Path | None,
    split: str,
    modes: tuple[str, ...],
    prefixes: tuple[int, ...] | None,
    shortlist: int,
    baseline: str | None,
    worst: int | None,
    worst_of: str | None,
    exclude_self: bool | None,
    run_out: Path | None,
    encoder: str | None,
    runtime: Any,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Measure nDCG@10, recall@100, MRR@10 and MAP on judged questions.

    The rows of mode vector are exact search, every prefix length with a shortlist,
    and "configured", the search that users of the collection get. Modes text and
    hybrid are one row each. docs/evaluation.md explains intervals and p-values.

    \b
    Examples:
        searchengine evaluate retrieval my.index --queries q.jsonl --qrels test.tsv
        searchengine evaluate retrieval my.index --beir scifact --mode vector,text,hybrid
        searchengine evaluate retrieval my.index --beir scifact --worst 20 --of 64
    """
    from searchengine.cli.console import note, progress
    from searchengine.engine import SearchEngine
    from searchengine.evaluate import metrics
    from searchengine.evaluate import retrieval as evaluation

    if worst_of is not None and worst is None:
        raise click.UsageError("--of needs --worst N; add it, or leave --of out")
    if plots is not None and Mode.VECTOR not in modes:
        raise click.UsageError("--plots draws prefix lengths, which need --mode vector")
    questions, judgements = _read(queries, qrels, beir, split)
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine:
        dims = _dims(engine, modes, prefixes)
        names = evaluation.names(engine, dims, modes)
        base = _row(engine, names, baseline)
        compared = _compared(engine, names, base, worst_of) if worst is not None else []
        task = evaluation.task(engine, questions, judgements, exclude_self)
        if run_out is not None:
            _check_runs(engine, task, run_out)
        for sentence in task.notes:
            note(f"Note: {sentence}")
        settings = []
        with progress("Evaluating", len(names)) as advance:
            for setting in evaluation.measure(engine, task, dims, shortlist, modes):
                settings.append(setting)
                advance(1)
        losses = _losses(engine, task, settings, base, compared, worst)
    rows = metrics.table(settings, base)
    title = f"{collection}, {counted(len(task.queries), 'question')}"
    _show(rows, losses, title) if not as_json else _show_json(rows, losses)
    if run_out is not None:
        _write_runs(run_out, settings)
    if plots is not None:
        _draw(plots, rows, shortlist)


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
    from searchengine.cli.console import note
    from searchengine.evaluate import metrics
    from searchengine.evaluate.judgements import read_qrels
    from searchengine.evaluate.runs import read_run

    run_names = _run_names(files, names)
    base = run_names[metrics.position(run_names, baseline)] if baseline else run_names[0]
    judged = read_qrels(qrels)
    settings = []
    for name, file in zip(run_names, files, strict=True):
        run = read_run(file)
        if missing := len(judged.keys() - run.keys()):
            note(
                f"Note: {name} lacks {missing:,} of {len(judged):,} judged questions: they count 0"
            )
        if unjudged := len(run.keys() - judged.keys()):
            note(f"Note: {name} answers questions without a judgement, left out: {unjudged:,}")
        settings.append(metrics.Setting.of(name, run, list(judged), judged))
    rows = metrics.table(settings, base)
    _show(rows, {}, f"{qrels}, {len(judged)} questions") if not as_json else _show_json(rows, {})


def _read(
    queries: Path | None, qrels: Path | None, beir: Path | None, split: str
) -> tuple[dict[str, str], "Qrels"]:
    """Read questions and judgements from two files, or from a folder."""
    from searchengine.evaluate.judgements import read_beir, read_qrels, read_queries

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
    from searchengine.evaluate.retrieval import default_dims

    if Mode.VECTOR not in modes:
        return ()
    return prefixes or default_dims(engine)


def _row(engine: "SearchEngine", names: Sequence[str], row: str | None) -> str:
    """Return the name of a row; the full width is an alias of exact search."""
    from searchengine.evaluate.metrics import EXACT, position

    full = str(engine.collection.settings["encoder"]["dim"])
    return names[position(names, EXACT if row == full else row)]


def _compared(
    engine: "SearchEngine", names: Sequence[str], base: str, row: str | None
) -> list[str]:
    """Return the rows whose losses against the baseline --worst shows."""
    rows = names if row is None else [_row(engine, names, row)]
    if compared := [name for name in rows if name != base]:
        return compared
    if row is not None:
        raise click.UsageError(
            f"--of {row} is the baseline itself; name another row, or another --baseline"
        )
    raise click.UsageError(
        f"--worst needs a second row to compare with {base}; add one, such as --mode vector,text"
    )


def _check_runs(engine: "SearchEngine", task: "Task", folder: Path) -> None:
    """Refuse names that a run file cannot contain before measuring."""
    from searchengine.evaluate.runs import check_names
    from searchengine.storage.documents import listing

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


def _losses(
    engine: "SearchEngine",
    task: "Task",
    settings: Sequence["Setting"],
    base: str,
    names: Sequence[str],
    count: int | None,
) -> "Losses":
    """Return the questions that each of the named rows lost against the baseline."""
    from searchengine.evaluate.differences import worst

    by_name = {setting.name: setting for setting in settings}
    return {name: worst(engine, task, by_name[name], by_name[base], count or 0) for name in names}


def _show_json(rows: Sequence["RetrievalRow"], losses: "Losses") -> None:
    from searchengine.cli.console import show_json

    dicts = [row.as_dict() for row in rows]
    for row in dicts:
        if row["setting"] in losses:
            row["worst"] = [asdict(question) for question in losses[row["setting"]]]
    show_json(dicts)


def _show(rows: Sequence["RetrievalRow"], losses: "Losses", title: str) -> None:
    """Print the table, a legend, and the questions that lost."""
    from searchengine.cli.console import note, say, show_rows
    from searchengine.evaluate.metrics import cells

    show_rows(cells(rows), title)
    base = next((row.baseline for row in rows if row.baseline is not None), None)
    if base is not None:
        note(
            f"difference: in nDCG@10, to {base}; p: paired randomisation test, corrected for "
            f"{counted(len(rows) - 1, 'comparison')} (Holm); […]: 95 % interval"
        )
    for name, questions in losses.items():
        say(f"\n{name} against {base}: " + (_LOSSES if questions else "no question lost"))
        for question in questions:
            scores = f"{question.before:.3f} → {question.after:.3f}"
            say(f"\n  {scores}  {question.key}: {question.question:.200}")
            for document in question.documents:
                after = "–" if document.after is None else document.after
                ranks = f"rank {document.before} → {after}"
                label = f"{document.key}  {document.title:.80}"
                say(f"      {ranks:<14} grade {document.grade}  {label}")


def _write_runs(folder: Path, settings: Sequence["Setting"]) -> None:
    from searchengine.cli.console import note
    from searchengine.evaluate.runs import write_run

    for setting in settings:
        write_run(folder / f"{setting.name}.run", setting.run, setting.name)
    note(f"Written: {counted(len(settings), 'run')} in {folder}")


def _draw(folder: Path, rows: Sequence["RetrievalRow"], shortlist: int) -> None:
    """Plot nDCG@10 by prefix length, of the rows that have one."""
    from searchengine.cli.console import note
    from searchengine.report.plots.style import save
    from searchengine.report.plots.vectors import prefix_scores

    dicts = [row.as_dict() for row in rows if row.setting.dim is not None]
    lines = {
        "prefix alone": {row["dim"]: row["prefix_ndcg@10"] for row in dicts},
        f"shortlist of {shortlist}, reranked": {row["dim"]: row["ndcg@10"] for row in dicts},
    }
    note(f"Written: {save(prefix_scores(lines, 'nDCG@10'), folder / 'prefixes.svg')}")
