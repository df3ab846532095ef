"""searchengine evaluate retrieval: rankings measured by judgements."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.backends.mode import Mode
from searchengine.cli.console import counted
from searchengine.cli.options import (
    AS_JSON,
    ENCODER,
    PREFIXES,
    Address,
    named,
    runs,
    sectioned,
    several,
)

if TYPE_CHECKING:
    from searchengine.measure.comparison import RetrievalRow
    from searchengine.measure.judgements import Qrels


@click.command(
    cls=sectioned(
        {
            "Questions and judgements": "queries qrels beir split",
            "What is compared": "modes prefixes baseline",
            "What is written": "run_out",
            "The encoder": "encoder runtime",
        }
    )
)
@click.argument("collection", type=Address())
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
    type=several(Mode),
    metavar="MODE,MODE,…",
    help="Search modes to compare: auto (what users get), vector, text, hybrid "
    "[default: auto,vector].",
)
@PREFIXES
@click.option("--baseline", metavar="ROW", help="Row to compare the others with [default: exact].")
@click.option(
    "--run-out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for a TREC run file per row.",
)
@ENCODER
@runs
@AS_JSON
def retrieval(
    collection: Path | str,
    queries: Path | None,
    qrels: Path | None,
    beir: Path | None,
    split: str,
    encoder: str | None,
    modes: tuple[Mode, ...] | None,
    prefixes: tuple[int, ...] | None,
    baseline: str | None,
    run_out: Path | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure nDCG@10, recall@100, MRR@10, MAP and success@1 on judged questions.

    The first row is the search that users of the collection get: the mode that it
    stores (--mode auto), marked as the default. The rows of mode vector are exact
    search, every prefix length with a shortlist, and "configured", the collection's
    operating point. Modes text and hybrid are one row each. docs/measuring.md
    explains intervals and p-values.

    \b
    Examples:
        searchengine evaluate retrieval my.index --queries q.jsonl --qrels test.tsv
        searchengine evaluate retrieval my.index --beir scifact --mode vector,text,hybrid
    """
    from searchengine.cli.console import note, show_json, steps
    from searchengine.engine import SearchEngine
    from searchengine.measure import retrieval as evaluation
    from searchengine.measure.comparison import position, table
    from searchengine.measure.judgements import check_names, write_run

    questions, judgements = read_judged(queries, qrels, beir, split)
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine:
        if modes is None and prefixes:
            modes = Mode.AUTO, Mode.VECTOR
        modes = modes or evaluation.default_modes(engine)
        dims: tuple[int, ...] = ()  # without mode vector, which then loads no encoder
        if Mode.VECTOR in modes:
            dims = prefixes or evaluation.default_dims(engine)
        position(evaluation.names(engine, dims, modes), baseline)  # refused before measuring
        task = evaluation.task(engine, questions, judgements)
        if run_out is not None:  # refuse what a run file cannot hold before measuring
            check_names(run_out, question=task.queries, document=engine.keys())
        for sentence in task.notes:
            note(f"Note: {sentence}")
        with steps() as report:
            settings = list(evaluation.measure(engine, task, dims, modes=modes, progress=report))
    rows = table(settings, baseline)
    title = f"{named(collection)}, {counted(len(task.queries), 'question')}"
    if as_json:
        show_json([row.as_dict() for row in rows])
    else:
        _show(rows, title)
    if run_out is not None:
        for setting in settings:
            write_run(run_out / f"{setting.name}.run", setting.run, setting.name)
        note(f"Written: {counted(len(settings), 'run')} in {run_out}")


def read_judged(
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


def _show(rows: Sequence["RetrievalRow"], title: str) -> None:
    """Print the table and a legend."""
    from searchengine.cli.console import note, show_rows
    from searchengine.measure.comparison import cells
    from searchengine.measure.significance import MIN_QUESTIONS

    show_rows(cells(rows), title)
    if len(rows) > 1:
        note("mrr@10, map, success@1 and their intervals: --json")
    few = rows[0].questions < MIN_QUESTIONS
    if few:
        count = counted(rows[0].questions, "question")
        note(f"{count}: too few for intervals; at least {MIN_QUESTIONS} are needed")
    base = next((row.baseline for row in rows if row.baseline is not None), None)
    if base is not None:
        note(
            f"difference: in nDCG@10, to {base}; p: paired randomisation test, corrected for "
            f"{counted(len(rows) - 1, 'comparison')} (Holm)"
            + ("" if few else "; […]: 95 % interval")
        )
