"""searchengine evaluate retrieval and runs: what is found, against judgements."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import counted
from searchengine.cli.evaluate import PREFIXES
from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, PLOTS, Names, Several, runs
from searchengine.query.request import Mode

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine
    from searchengine.evaluate.differences import Worse
    from searchengine.evaluate.judgements import Qrels
    from searchengine.evaluate.metrics import RetrievalRow, Setting
    from searchengine.evaluate.retrieval import Task

    Lost = Mapping[str, Sequence[Worse]]

_LOST = "the questions that lost most nDCG@10, and the relevant documents that slipped"


@click.command()
@COLLECTION
@click.option("--queries", type=click.Path(path_type=Path), help="Questions: .jsonl or .txt.")
@click.option("--qrels", type=click.Path(path_type=Path), help="Judgements: TSV.")
@click.option(
    "--beir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Both from a BEIR folder: queries.jsonl, qrels/SPLIT.tsv.",
)
@click.option("--split", default="test", show_default=True, help="Of the BEIR folder.")
@click.option(
    "--mode",
    "modes",
    type=Several(Mode),
    metavar="MODE,MODE,…",
    default="vector",
    show_default=True,
    help="vector, text, hybrid; several are compared.",
)
@PREFIXES
@click.option("--shortlist", default=100, show_default=True, type=click.IntRange(1))
@click.option(
    "--baseline", metavar="ROW", help="What the other rows are compared with [default: exact]."
)
@click.option(
    "--worst", type=click.IntRange(1), metavar="N", help="Show the N questions that lost most."
)
@click.option("--of", metavar="ROW", help="Of this row alone [default: of each].")
@click.option(
    "--exclude-self/--no-exclude-self",
    default=None,
    help="Leave the document of a question's own key out [default: where questions are documents].",
)
@click.option(
    "--run-out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for a TREC run file of each row.",
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
    of: str | None,
    exclude_self: bool | None,
    run_out: Path | None,
    encoder: str | None,
    runtime: Any,
    plots: Path | None,
    as_json: bool,
) -> None:
    """nDCG@10, recall@100, MRR@10 and MAP on judged questions, row by row.

    By vectors the rows are exact search, every prefix length with a shortlist, and
    "configured", what users of the collection get; by words "text", by both "hybrid".
    docs/evaluation.md says what the intervals and p-values mean.

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

    if of is not None and worst is None:
        raise click.UsageError("--of names the row of --worst N; give both")
    if plots is not None and Mode.VECTOR not in modes:
        raise click.UsageError("--plots draws prefix lengths; measure them: --mode vector")
    asked, judged = _read(queries, qrels, beir, split)
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine:
        dims = _dims(engine, modes, prefixes)
        names = evaluation.names(engine, dims, modes)
        base = _row(engine, names, baseline)
        lost_by = _compared(engine, names, base, of) if worst is not None else []
        task = evaluation.task(engine, asked, judged, exclude_self)
        if run_out is not None:
            _check_runs(engine, task, run_out)
        for sentence in task.notes:
            note(f"Note: {sentence}")
        settings = []
        with progress("Evaluating", len(names)) as advance:
            for setting in evaluation.measure(engine, task, dims, shortlist, modes):
                settings.append(setting)
                advance(1)
        lost = _lost(engine, task, settings, base, lost_by, worst)
    rows = metrics.table(settings, base)
    title = f"{collection}, {counted(len(task.queries), 'question')}"
    _show(rows, lost, title) if not as_json else _show_json(rows, lost)
    if run_out is not None:
        _write_runs(run_out, settings)
    if plots is not None:
        _draw(plots, rows, shortlist)


@click.command("runs")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--qrels", required=True, type=click.Path(path_type=Path), help="Judgements: TSV.")
@click.option("--names", type=Names(), help="What to call the runs [default: their files' names].")
@click.option("--baseline", metavar="NAME", help="What is compared with [default: the first].")
@AS_JSON
def run_files(
    files: tuple[Path, ...],
    qrels: Path,
    names: tuple[str, ...] | None,
    baseline: str | None,
    as_json: bool,
) -> None:
    """The same metrics of TREC run files from anywhere, compared with the first.

    A RUN (.gz too) has lines of question, Q0, document, rank, score and tag. A judged
    question that a run lacks counts 0, as with trec_eval -c.

    \b
    Example:
        searchengine evaluate runs bm25.run mine.run --qrels qrels/test.tsv
    """
    from searchengine.cli.console import note
    from searchengine.evaluate import metrics
    from searchengine.evaluate.judgements import read_qrels
    from searchengine.evaluate.runs import read_run

    called = _called(files, names)
    base = called[metrics.position(called, baseline)] if baseline else called[0]
    judged = read_qrels(qrels)
    settings = []
    for name, file in zip(called, files, strict=True):
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
    """Questions and judgements from two files, or from a folder."""
    from searchengine.evaluate.judgements import read_beir, read_qrels, read_queries

    if beir is not None:
        if queries is not None or qrels is not None:
            raise click.UsageError("--beir stands for --queries and --qrels; leave those out")
        return read_beir(beir, split)
    if queries is None or qrels is None:
        raise click.UsageError("give --queries and --qrels, or a folder that has both: --beir")
    return read_queries(queries), read_qrels(qrels)


def _dims(
    engine: "SearchEngine", modes: Sequence[str], prefixes: tuple[int, ...] | None
) -> tuple[int, ...]:
    """The prefix lengths; without vectors none, and no encoder is loaded."""
    from searchengine.evaluate.retrieval import default_dims

    if Mode.VECTOR not in modes:
        return ()
    return prefixes or default_dims(engine)


def _row(engine: "SearchEngine", names: Sequence[str], row: str | None) -> str:
    """The name of a row; the full width is another one of exact search."""
    from searchengine.evaluate.metrics import EXACT, position

    full = str(engine.collection.settings["encoder"]["dim"])
    return names[position(names, EXACT if row == full else row)]


def _compared(engine: "SearchEngine", names: Sequence[str], base: str, of: str | None) -> list[str]:
    """The rows whose losses against the baseline --worst shows."""
    rows = names if of is None else [_row(engine, names, of)]
    if others := [name for name in rows if name != base]:
        return others
    if of is not None:
        raise click.UsageError(
            f"--of {of} is the row that the others are compared with; name another row, or another "
            "--baseline"
        )
    raise click.UsageError(
        f"--worst compares rows, and there is one alone: {base}; measure more: --mode vector,text"
    )


def _check_runs(engine: "SearchEngine", task: "Task", folder: Path) -> None:
    """Refuse names that no run file can hold before anything is measured."""
    from searchengine.evaluate.runs import check_names

    with engine.collection.reading() as snapshot:
        keys = [key for (key,) in snapshot.store.read("SELECT key FROM documents")]
    check_names(folder, task.queries, keys)


def _called(files: Sequence[Path], names: Sequence[str] | None) -> list[str]:
    """A name for every run."""
    called = list(names or (file.name.removesuffix(".gz").removesuffix(".run") for file in files))
    if len(called) != len(files):
        raise click.UsageError(f"--names has {len(called)} names for {len(files)} runs")
    if len(set(called)) < len(called) or not all(called):
        raise click.UsageError(
            f"every run needs a name of its own, got {', '.join(called)}; give them: --names a,b"
        )
    return called


def _lost(
    engine: "SearchEngine",
    task: "Task",
    settings: Sequence["Setting"],
    base: str,
    names: Sequence[str],
    count: int | None,
) -> "Lost":
    """What each of the named rows lost against the baseline."""
    from searchengine.evaluate.differences import worst

    by_name = {setting.name: setting for setting in settings}
    return {name: worst(engine, task, by_name[name], by_name[base], count or 0) for name in names}


def _show_json(rows: Sequence["RetrievalRow"], lost: "Lost") -> None:
    from searchengine.cli.console import show_json

    dicts = [row.as_dict() for row in rows]
    for told in dicts:
        if told["setting"] in lost:
            told["worst"] = [asdict(question) for question in lost[told["setting"]]]
    show_json(dicts)


def _show(rows: Sequence["RetrievalRow"], lost: "Lost", title: str) -> None:
    """The table, what it means, and the questions that lost."""
    from searchengine.cli.console import note, say, show_rows
    from searchengine.evaluate.metrics import cells

    show_rows(cells(rows), title)
    base = next((row.baseline for row in rows if row.baseline is not None), None)
    if base is not None:
        note(
            f"difference: in nDCG@10, to {base}; p: paired randomisation test, corrected for "
            f"{counted(len(rows) - 1, 'comparison')} (Holm); […]: 95 % interval"
        )
    for name, questions in lost.items():
        say(f"\n{name} against {base}: " + (_LOST if questions else "no question lost"))
        for each in questions:
            say(f"\n  {each.before:.3f} → {each.after:.3f}  {each.key}: {each.question:.200}")
            for one in each.documents:
                after = "–" if one.after is None else one.after
                ranks = f"rank {one.before} → {after}"
                say(f"      {ranks:<14} grade {one.grade}  {one.key}  {one.title:.80}")


def _write_runs(folder: Path, settings: Sequence["Setting"]) -> None:
    from searchengine.cli.console import note
    from searchengine.evaluate.runs import write_run

    for setting in settings:
        write_run(folder / f"{setting.name}.run", setting.run, setting.name)
    note(f"Written: {counted(len(settings), 'run')} in {folder}")


def _draw(folder: Path, rows: Sequence["RetrievalRow"], shortlist: int) -> None:
    """nDCG@10 by prefix length, of the rows that have one."""
    from searchengine.cli.console import note
    from searchengine.report.plots.style import save
    from searchengine.report.plots.vectors import prefix_scores

    dicts = [row.as_dict() for row in rows if row.setting.dim is not None]
    lines = {
        "prefix alone": {row["dim"]: row["prefix_ndcg@10"] for row in dicts},
        f"shortlist of {shortlist}, re-scored": {row["dim"]: row["ndcg@10"] for row in dicts},
    }
    note(f"Drawn: {save(prefix_scores(lines, 'nDCG@10'), folder / 'prefixes.svg')}")
