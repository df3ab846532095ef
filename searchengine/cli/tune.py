"""searchengine tune."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from searchengine.backends.folder.mode import Mode
from searchengine.cli.console import note, say, show_json, show_rows, steps
from searchengine.cli.measuring.fusing import tune_fusion
from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, Bytes, open_engine, runs


@click.command()
@COLLECTION
@click.option("--target-recall", default=0.95, help="Minimum recall to guarantee, 0–1.")
@click.option(
    "--confidence",
    default=0.95,
    help="Confidence that recall meets the target, 0–1.",
)
@click.option(
    "-k",
    default=10,
    type=click.IntRange(1),
    help="Number of nearest neighbours that recall counts.",
)
@click.option(
    "--for",
    "objective",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    help="Cost to minimize: time of one question, or of many at once.",
)
@click.option(
    "--max-ram", type=Bytes(), help="Memory limit of rotation and index structure: 500MB, 2GiB."
)
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="File of typical questions: .jsonl or .txt [default: generated from documents].",
)
@click.option(
    "--qrels",
    type=click.Path(path_type=Path),
    help="File of judgements of the --queries (TSV): choose mode and weight instead.",
)
@click.option(
    "--threads", type=click.IntRange(1), help="Maximum number of threads [default: all cores]."
)
@ENCODER
@runs
@AS_JSON
@click.pass_context
def tune(
    ctx: click.Context,
    collection: Path,
    target_recall: float,
    confidence: float,
    k: int,
    objective: str,
    max_ram: int | None,
    queries: Path | None,
    qrels: Path | None,
    threads: int | None,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Find and apply the cheapest index config that meets a recall target.

    Recall and time are those of searches by vectors (mode vector); mode hybrid makes
    such a search too, before it counts words. Half of the questions choose the config,
    the other half must confirm it. The collection is changed in one commit;
    docs/tuning.md explains the guarantee.

    With --qrels, choose how vectors and words are weighed instead, and whether the
    default mode is vector, text or hybrid: what has the highest nDCG@10 on half of the
    judged questions, unless it is worse than before on the other half.

    \b
    Examples:
        searchengine tune my.index --target-recall 0.97 --queries questions.txt
        searchengine tune my.index --queries questions.jsonl --qrels qrels.tsv
    """
    from searchengine.indexer.threads import threads as thread_budget
    from searchengine.indexer.tuning.tune import Goal, Objective
    from searchengine.upkeep.tuning import ladder, summary

    if threads is not None:
        thread_budget.limit = threads
    if qrels is not None:
        _check_alone(ctx)
        assert queries is not None
        tune_fusion(collection, queries, qrels, encoder, runtime, as_json)
        return
    goal = Goal(target_recall, confidence, k, Objective(objective), max_ram)
    questions = None
    if queries is not None:
        from searchengine.measure.judgements import read_queries

        questions = list(read_queries(queries).values())
    with open_engine(collection, encoder, runtime=runtime) as engine, steps() as progress:
        tuning = engine.tune(questions, goal, on_step=note, building=progress)
        dim, default = engine.stats().dim, engine.default_mode
    if default is not Mode.VECTOR:
        note(f"recall and time are those of mode vector; the default mode is {default}")
    if questions is None:
        note("the questions were generated from documents; --queries takes real ones")
    if as_json:
        config = {"config": tuning.config.as_dict()}
        show_json({"collection": str(collection), **config, **tuning.as_dict()})
    else:
        show_rows(
            ladder(tuning),
            f"{collection}: the efforts of the chosen config, of {tuning.tried} points measured "
            "by vectors (mode vector)",
        )
        say(summary(tuning, dim))


def _check_alone(ctx: click.Context) -> None:
    """Refuse --qrels without --queries, and with options of a recall target."""
    if ctx.params["queries"] is None:
        raise click.UsageError("--qrels needs the questions; add --queries FILE")
    options = {"target_recall": "--target-recall", "confidence": "--confidence", "k": "-k"}
    for name, flag in (options | {"objective": "--for", "max_ram": "--max-ram"}).items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{flag} belongs to a recall target; leave it or --qrels out")
