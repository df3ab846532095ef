"""searchengine adapt."""

from pathlib import Path
from typing import Any, Literal

import click

from searchengine.cli.options import AS_JSON, COLLECTION, WAIT, runs

FILES = click.Path(path_type=Path)


@click.command()
@COLLECTION
@click.option(
    "--out",
    type=FILES,
    help="New folder for the adapted encoder [default: COLLECTION with the ending .adapted].",
)
@click.option(
    "--log",
    type=FILES,
    metavar="FILE",
    help="Logged questions, with the keys of the documents chosen for them (.jsonl).",
)
@click.option(
    "--documents",
    type=click.IntRange(1),
    help="Number of documents to make questions of [default: 10,000].",
)
@click.option(
    "--only",
    type=click.Choice(["rotation"]),
    help="Learn only which dimensions come first: scores stay, shortlists find more of the nearest "
    "passages.",
)
@click.option("--apply", is_flag=True, help="Change to the adapted encoder if it is better.")
@click.option("--seed", default=0, help="Seed of all random choices.")
@runs
@WAIT
@AS_JSON
def adapt(
    collection: Path | str,
    out: Path | None,
    log: Path | None,
    documents: int | None,
    only: Literal["rotation"] | None,
    apply: bool,
    seed: int,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Adapt the encoder of a collection to its documents, if that helps.

    Titles and sentences of the documents become questions, and so do logged ones. A
    linear layer is trained on some documents and judged on others, by searching the
    collection before and after. Only if it is better beyond doubt, the adapted encoder
    is written. The collection changes only with --apply. docs/adapting.md has details.

    \b
    Example:
        searchengine adapt notes.index --log clicks.jsonl
        searchengine reindex notes.index --encoder notes.adapted
    """
    from searchengine.cli.console import note, say, show_json, show_rows, steps
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, wait=wait, runtime=runtime) as engine:
        from searchengine.adapt.adapting import DOCUMENTS
        from searchengine.adapt.adapting import adapt as adapt_encoder

        path = engine.folder.path
        with steps() as progress:
            result = adapt_encoder(
                engine,
                path.with_name(f"{path.stem}.adapted") if out is None else out,
                log=log,
                documents=documents or DOCUMENTS,
                only=only,
                apply=apply,
                seed=seed,
                progress=progress,
            )
    if as_json:
        show_json({"collection": str(collection), **result.as_dict()})
        return
    if result.pairs:
        learnt = "pairs" if only is None else "questions"
        note(f"{result.documents:,} documents, {result.pairs:,} {learnt} of training")
    if result.rows:
        show_rows([row.as_cells() for row in (*result.rows, *result.others)])
    say(result.sentence)
    if result.applied:
        note(f"{collection} is encoded by {result.out} now")
    elif result.offered:
        note(f"Change to it: searchengine reindex {collection} --encoder {result.out}")
