"""searchengine index, search, bench, info, verify and demo."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, QUERIES, SHORTLIST, Numbers
from searchengine.errors import CorpusError, DuplicateKey, EmptyCorpus


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@COLLECTION
@click.option("--encoder", metavar="PATH", help="Model folder or hub name [default: starter].")
@click.option("--prefix", type=click.IntRange(1), help="Numbers of the shortlist [default: 64].")
@click.option("--structure", type=click.Choice(["flat", "hnsw"]), help="[default: flat]")
@click.option("--code", type=click.Choice(["fp32", "fp16", "int8"]), help="Of the prefix.")
@click.option("--rotation", type=click.Choice(["pca", "identity"]), help="[default: pca]")
@SHORTLIST
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
    from searchengine.console import note, progress, show_json
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
            with progress("Indexing", total) as advance:
                summary = engine.add(documents, skip_bad=skip_bad, progress=advance)
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
@ENCODER
@AS_JSON
def search(
    collection: Path,
    question: str,
    k: int,
    where: str | None,
    shortlist: int | None,
    encoder: str | None,
    as_json: bool,
) -> None:
    """Print the documents nearest to QUESTION, best first.

    \b
    Example:
        searchengine search notes.index "when do whales sleep" -k 3
    """
    from searchengine.console import show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, encoder) as engine:
        hits = engine.search(question, k, shortlist=shortlist, where=where)
    if as_json:
        show_json([{name: getattr(hit, name) for name in hit.__slots__} for hit in hits])
    else:
        for hit in hits:
            click.echo(str(hit))


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
        stats = asdict(engine.stats())
    if as_json:
        show_json(stats)
    else:
        for name, value in stats.items():
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
