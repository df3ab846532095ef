"""searchengine tune."""

from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, Bytes, runs


@click.command()
@COLLECTION
@click.option(
    "--target-recall", default=0.95, show_default=True, help="Mean recall of the true k nearest."
)
@click.option("--confidence", default=0.95, show_default=True, help="That it is exceeded.")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1))
@click.option(
    "--for",
    "objective",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="What to make cheap: one question alone, or many at once.",
)
@click.option("--max-ram", type=Bytes(), help="Of rotation and shortlist structure: 500MB, 2GiB.")
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="Questions like those to be asked: .jsonl or .txt [default: made of documents].",
)
@click.option("--threads", type=click.IntRange(1), help="At most at once [default: all cores].")
@ENCODER
@runs
@AS_JSON
def tune(
    collection: Path,
    target_recall: float,
    confidence: float,
    k: int,
    objective: str,
    max_ram: int | None,
    queries: Path | None,
    threads: int | None,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Find the cheapest recipe that holds a recall target, and search by it from now on.

    Half of the questions choose, the other half must confirm. The collection is changed
    in one commit; docs/tuning.md says what the result promises and what it does not.

    \b
    Example:
        searchengine tune my.index --target-recall 0.97 --queries questions.txt
    """
    from indexer.threads import threads as budget
    from indexer.tuning.tune import Goal, Objective
    from searchengine.cli.console import note, say, show_json, show_rows, steps
    from searchengine.engine import SearchEngine
    from searchengine.maintenance.tuning import ladder, summary

    goal = Goal(target_recall, confidence, k, Objective(objective), max_ram)
    asked = None
    if queries is not None:
        from searchengine.evaluate.judgements import read_queries

        asked = list(read_queries(queries).values())
    if threads is not None:
        budget.limit = threads
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine, steps() as heard:
        tuning = engine.tune(asked, goal, on_step=note, building=heard)
        dim = engine.stats().dim
    if asked is None:
        note(
            "the questions were made of documents, a stand-in for real ones: --queries takes those"
        )
    if as_json:
        found = {"config": tuning.config.as_dict(), **tuning.as_dict()}
        show_json({"collection": str(collection), **found})
    else:
        show_rows(ladder(tuning), f"{collection}: {tuning.tried} operating points measured")
        say(summary(tuning, dim))
