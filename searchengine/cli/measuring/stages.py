"""searchengine evaluate stages: what each stage of a search gives and costs."""

from pathlib import Path
from typing import Any

import click

from searchengine.cli.console import counted
from searchengine.cli.measuring.judged import judged, note_few, read_judged
from searchengine.cli.options import (
    AS_JSON,
    ENCODER,
    QUERY_ENCODER,
    RUNNING,
    Address,
    complete_path,
    runs,
    sectioned,
)


@click.command(
    cls=sectioned(
        {
            "Questions and judgements": "queries qrels beir split exclude_self",
            "Further stages": "boost cross_encoder candidates",
            "The encoder": f"encoder query_encoder {RUNNING}",
        }
    )
)
@click.argument("collection", type=Address())
@judged()
@click.option(
    "--boost", metavar="EXPRESSION", help="Boost to measure as a stage, as for `search --boost`."
)
@click.option(
    "--cross-encoder",
    metavar="MODEL",
    shell_complete=complete_path,
    help="Folder or hub name of a cross-encoder to measure as the last stage.",
)
@click.option(
    "--candidates",
    type=click.IntRange(1),
    help="Documents that the cross-encoder reads [default: as `search`].",
)
@ENCODER
@QUERY_ENCODER
@runs
@AS_JSON
def stages(
    collection: Path | str,
    queries: Path | None,
    qrels: Path | None,
    beir: Path | None,
    split: str,
    boost: str | None,
    cross_encoder: str | None,
    candidates: int | None,
    exclude_self: bool | None,
    encoder: str | None,
    query_encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure what each stage of a search gives and costs.

    Words and vectors alone, both, the replacement of typing errors, and if named a
    boost or a cross-encoder: each row has all stages before it. It shows nDCG@10
    with a 95 % interval, milliseconds of a question asked alone (median and
    quartiles), and the difference in nDCG@10 that the stage makes.

    \b
    Example:
        searchengine evaluate stages my.index --queries q.jsonl --qrels test.tsv
        searchengine evaluate stages my.index --beir scifact --cross-encoder my-model
    """
    from searchengine.cli.console import note, progress, show_json, show_rows
    from searchengine.engine import SearchEngine
    from searchengine.measure import retrieval
    from searchengine.measure.stages import BOTH, ladder, measure

    questions, judgements = read_judged(queries, qrels, beir, split)
    opening = {"query_encoder": query_encoder, "runtime": runtime}
    with SearchEngine.open(collection, encoder, **opening) as engine:
        asked = ladder(engine, boost, cross_encoder, candidates)
        task = retrieval.task(engine, questions, judgements, exclude_self)
        for sentence in task.notes:
            note(f"Note: {sentence}")
        with progress("Asking", len(task.queries)) as advance:
            rows = measure(engine, task, asked, advance)
    if as_json:
        show_json([row.as_dict() for row in rows])
        return
    title = f"{collection}, {counted(len(task.queries), 'question')}"
    show_rows([row.as_cells() for row in rows], title)
    note_few(len(task.queries))
    better = next((row.before for row in rows if row.stage == BOTH), None)
    note(
        "difference: in nDCG@10, to the row before"
        + (f" ({BOTH}: to {better})" if better else "")
        + "; p: paired randomisation test, corrected (Holm)"
    )
