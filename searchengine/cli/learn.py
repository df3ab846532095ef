"""searchengine learn."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from searchengine.cli.console import say, show_json, show_result, show_rows, steps
from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, named, open_engine, runs


@click.command()
@COLLECTION
@click.option(
    "--queries", type=click.Path(path_type=Path), help="File of questions: .jsonl or .txt."
)
@click.option(
    "--qrels",
    type=click.Path(path_type=Path),
    help="File of judgements of the --queries (TSV); without these, of clicks: question, tab, key.",
)
@click.option("--forget", is_flag=True, help="Remove the map that is stored.")
@ENCODER
@runs
@AS_JSON
def learn(
    collection: Path | str,
    queries: Path | None,
    qrels: Path | None,
    forget: bool,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Learn from judged questions a map of the question's vector, and search by it.

    No document is encoded again. In mode hybrid the weight of the vectors is chosen with the map.
    Both are stored if held-out questions find more, beyond doubt, in the default mode;
    docs/measuring.md shows what to expect.

    \b
    Examples:
        searchengine learn my.index --queries q.jsonl --qrels train.tsv
        searchengine learn my.index --qrels clicks.tsv
        searchengine learn my.index --forget
    """
    from searchengine.measure import learning
    from searchengine.measure.judgements import read_clicks, read_qrels, read_queries

    if forget:
        with open_engine(collection) as engine:
            removed = learning.forget(engine)
        text = f"{named(collection)}: {'the' if removed else 'no'} map of questions was removed"
        show_result({"collection": named(collection), "removed": removed}, text, as_json)
        return
    if qrels is None:
        raise click.UsageError("learn needs judgements; add --qrels FILE, or --forget")
    judged = (read_queries(queries), read_qrels(qrels)) if queries else read_clicks(qrels)
    with open_engine(collection, encoder, runtime=runtime) as engine, steps() as report:
        learnt = learning.learn(engine, *judged, progress=report)
    if as_json:
        show_json({"collection": named(collection), **asdict(learnt)})
        return
    show_rows([
        {"held-out questions": name, **{key: f"{value:.4g}" for key, value in means.items()}}
        for name, means in learnt.figures.items()
    ])  # fmt: skip
    outcome = "searches by the map from now on" if learnt.stored else "was not changed"
    say(f"{named(collection)} {outcome}: nDCG@10 in mode {learnt.mode}, {learnt.comparison}")
    before, after = learnt.weight.values()
    if learnt.stored and before != after:
        say(f"In mode hybrid vectors weigh {after:g} with the map, in place of {before:g}")
