"""searchengine index, search, bench, info, verify and demo."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from indexer.config import Code, RotationKind, Structure
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    QUERIES,
    SHORTLIST,
    Numbers,
    Stages,
)
from searchengine.errors import CorpusError, DuplicateKey, EmptyCorpus


def _choice(kinds: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([str(kind) for kind in kinds])


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@COLLECTION
@click.option("--encoder", metavar="PATH", help="Model folder or hub name [default: starter].")
@click.option("--prefix", type=click.IntRange(1), help="Numbers of the shortlist [default: 64].")
@click.option("--structure", type=_choice(Structure), help="[default: flat]")
@click.option("--code", type=_choice(Code), help="Of the prefix [default: fp16].")
@click.option("--rotation", type=_choice(RotationKind), help="[default: pca]")
@SHORTLIST
@click.option(
    "--effort",
    type=click.IntRange(0),
    help="How widely a graph or IVF looks [default: by the shortlist].",
)
@click.option(
    "--links", "hnsw_m", type=click.IntRange(2), help="Of a row in a graph [default: 32]."
)
@click.option(
    "--bounds",
    type=click.IntRange(0),
    metavar="N",
    help="Numbers of every vector kept for exact search that reads few rows: 253 suits "
    "768-wide vectors. N + 11 bytes a row on the disk.",
)
@click.option(
    "--funnel",
    "stages",
    type=Stages(),
    help="Stages between prefix and full width: 256:50 re-scores the shortlist by 256 numbers "
    "and keeps 50.",
)
@click.option("--skip-bad", is_flag=True, help="Go on past bad lines and count them.")
@AS_JSON
def index(
    corpus: Path,
    collection: Path,
    encoder: str | None,
    skip_bad: bool,
    as_json: bool,
    **config: Any,
) -> None:
    """Add the documents of CORPUS to COLLECTION, made if it is not there.

    CORPUS is a .jsonl, .csv or .tsv file (.gz too), or a folder of .txt and .md
    files. Fields: _id, title, text; all others become metadata to filter by.

    \b
    Example:
        searchengine index notes/ notes.index
    """
    from searchengine.console import note, show_json, steps
    from searchengine.corpus import count_records, read_corpus
    from searchengine.engine import SearchEngine

    chosen = {name: value for name, value in config.items() if value is not None}
    bad: list[str] = []
    documents = read_corpus(corpus, on_bad=(lambda e: bad.append(str(e))) if skip_bad else None)
    total = count_records(corpus)
    started = time.monotonic()
    made_here = not collection.exists()
    with SearchEngine.open_or_create(collection, encoder, chosen) as engine:
        try:
            with steps() as heard:
                heard("Indexing", 0, total)
                summary = engine.add(
                    documents,
                    skip_bad=skip_bad,
                    progress=lambda done: heard("Indexing", done, total),
                    building=heard,
                )
        except BaseException as error:
            if made_here:
                engine.collection.remove_if_empty()
            bad_record = isinstance(error, CorpusError | DuplicateKey)
            if bad_record and not isinstance(error, EmptyCorpus) and not skip_bad:
                raise type(error)(f"{error} (--skip-bad goes on past what is bad)") from error
            raise
        documents_now = engine.stats().documents
    seconds = round(time.monotonic() - started, 2)
    left_out = {"without_text": summary.without_text, "bad": (*bad, *summary.bad)}
    if as_json:
        counts = {"added": summary.added, "documents": documents_now, "seconds": seconds}
        show_json({"collection": str(collection), **counts, **left_out})
        return
    note(f"{summary.added} documents added to {collection} in {seconds} s")
    for name, items in left_out.items():
        if items:
            note(f"{len(items)} {name.replace('_', ' ')}, left out:{_some(items)}")


def _some(items: Sequence[str], most: int = 10) -> str:
    """The first few of a list, a line each, and how many more there are."""
    lines = list(items[:most])
    if len(items) > most:
        lines.append(f"… and {len(items) - most} more; --json lists all")
    return "".join(f"\n  {line}" for line in lines)


@click.command()
@COLLECTION
@click.argument("question")
@click.option("-k", default=10, show_default=True, help="How many hits.")
@click.option("--where", help="Filter on metadata: year >= 2015 and lang in ('en', 'ko')")
@SHORTLIST
@click.option("--exact", is_flag=True, help="Prove that nothing is nearer; slower.")
@ENCODER
@AS_JSON
def search(
    collection: Path,
    question: str,
    k: int,
    where: str | None,
    shortlist: int | None,
    exact: bool,
    encoder: str | None,
    as_json: bool,
) -> None:
    """Print the documents nearest to QUESTION, best first.

    \b
    Example:
        searchengine search notes.index "when do whales sleep" -k 3
    """
    from searchengine.console import note, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, encoder) as engine:
        hits = engine.search(question, k, shortlist=shortlist, where=where, exact=exact)
    if as_json:
        show_json([{name: getattr(hit, name) for name in hit.__slots__} for hit in hits])
    else:
        for hit in hits:
            click.echo(str(hit))
    if exact:
        of = " that match" if where else ""
        read = 0 if hits.read is None else 100 * hits.read
        note(
            f"proven: these are the true {len(hits)} nearest{of}; "
            f"{read:.2f} % of the rows were read at full width"
        )


@click.command()
@COLLECTION
@QUERIES
@click.option("-k", default=10, show_default=True, type=click.IntRange(1))
@click.option("--prefixes", type=Numbers(), help="Prefix lengths [default: 32,64,128,256].")
@click.option("--shortlists", type=Numbers(), help="Sizes [default: 20,50,100,200,500].")
@ENCODER
@AS_JSON
def bench(
    collection: Path,
    queries: Path,
    k: int,
    prefixes: tuple[int, ...] | None,
    shortlists: tuple[int, ...] | None,
    encoder: str | None,
    as_json: bool,
) -> None:
    """Recall against latency: prefix lengths × shortlist sizes on your own questions.

    Recall is against exact full-width search (the first row); latency is that of
    one question at a time, without its encoding.

    \b
    Example:
        searchengine bench my.index --queries questions.txt
    """
    from searchengine import evaluation
    from searchengine.console import progress, show_json, show_rows
    from searchengine.engine import SearchEngine

    asked = evaluation.read_queries(queries)
    with SearchEngine.open(collection, encoder) as engine:
        grid = evaluation.bench_grid(engine, k, prefixes or (), shortlists or ())
        with progress("Measuring", len(grid)) as advance:
            rows = evaluation.bench(engine, list(asked.values()), grid, lambda _: advance(1))
    if as_json:
        show_json([row.as_dict() for row in rows])
    else:
        title = f"{collection}: {rows[0].rows} documents, {len(asked)} questions"
        show_rows(evaluation.bench_table(rows), title)


@click.command()
@COLLECTION
@AS_JSON
def info(collection: Path, as_json: bool) -> None:
    """What a collection holds and how it searches.

    \b
    Example:
        searchengine info my.index
    """
    from searchengine.console import show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        stats = engine.stats()
    if as_json:
        show_json(asdict(stats))
        return
    from searchengine.tuning import described

    for name, value in described(stats).items():
        click.echo(f"{name:12} {value}")


@click.command()
@COLLECTION
def verify(collection: Path) -> None:
    """Check every file of a collection against its checksum.

    \b
    Example:
        searchengine verify my.index
    """
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        engine.verify()
    click.echo(f"{collection} is whole")


@click.command()
@click.argument("folder", default="demo", type=click.Path(path_type=Path))
def demo(folder: Path) -> None:
    """Train, index, ask and measure on the sample data; leaves FOLDER to play with.

    \b
    Example:
        searchengine demo
    """
    from searchengine.demo import run_demo

    run_demo(folder)
