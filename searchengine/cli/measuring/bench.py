"""searchengine bench: measure operating points, and write a report."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.backends.mode import Mode
from searchengine.cli.options import AS_JSON, ENCODER, Address, runs, sectioned
from searchengine.trainer.errors import install_line

if TYPE_CHECKING:
    from searchengine.measure.bench_data import Dataset
    from searchengine.measure.results import Results

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    cls=sectioned(
        {
            "What is searched": "queries qrels vectors query_vectors",
            "How it is measured": "target_recall k out",
            "The encoder": "encoder runtime",
        }
    )
)
@click.argument("collection", required=False, type=Address())
@click.option(
    "--queries", type=click.Path(path_type=Path), help="File of questions: .jsonl or .txt."
)
@click.option(
    "--qrels",
    type=FILE,
    help="File of judgements (TSV) for nDCG@10; only judged questions are searched.",
)
@click.option(
    "--vectors", type=FILE, help="File of rows (.npy, n × D) to search instead of a collection."
)
@click.option(
    "--query-vectors",
    type=FILE,
    help="File of queries (.npy, q × D) for --vectors [default: a sample of the rows].",
)
@click.option(
    "-k",
    default=10,
    type=click.IntRange(1),
    help="Number of nearest neighbours.",
)
@click.option("--target-recall", default=0.95, help="Minimum recall to recommend a point, 0–1.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for a report."
)
@ENCODER
@runs
@AS_JSON
def bench(
    collection: Path | str | None,
    queries: Path | None,
    vectors: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure recall, latency and memory of operating points on your own data.

    It recommends the point that `searchengine tune` would apply, and prints the command that
    applies it. The collection does not change. Recall and latency are those of searches by
    vectors, which mode hybrid makes too; nDCG@10 is that of the collection's default mode.

    --out writes a page, its plots and results.json, which is updated after every round; an
    interrupted bench keeps its results.

    \b
    Examples:
        searchengine bench my.index --queries questions.txt --out report
        searchengine bench --vectors vectors.npy
    """
    if (collection is None) == (vectors is None):
        raise click.UsageError("name either a collection, or a file of rows: --vectors FILE.npy")
    if collection is not None and queries is None:
        raise click.UsageError("a collection needs a file of questions: --queries questions.txt")
    source, excluded = "a collection", {"query-vectors": options["query_vectors"]}
    if vectors is not None:
        source, excluded = "--vectors", {"queries": queries}
        excluded |= {name: options[name] for name in ("qrels", "encoder")}
    for name in excluded:
        if excluded[name]:
            raise click.UsageError(f"--{name} does not go with {source}; leave it out")
    if options["qrels"] is not None and options["k"] < 10:
        raise click.UsageError(f"--qrels needs -k 10 or more for nDCG@10, got {options['k']}")
    path = vectors if collection is None else collection
    assert path is not None
    _measure(path, queries, as_json, options)


def _measure(
    path: Path | str, queries: Path | None, as_json: bool, options: dict[str, Any]
) -> None:
    from searchengine.cli.console import note, show_json, steps
    from searchengine.indexer.tuning.goal import Goal
    from searchengine.measure.points import bench as run_bench

    out = options["out"]
    goal = Goal(options["target_recall"], k=options["k"])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if find_spec("matplotlib") is None:
            note(f"Note: the page will have no plots; {install_line('plots')} adds them")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        dataset = stack.enter_context(_dataset(path, queries, scratch, options))
        for sentence in dataset.notes:
            note(f"Note: {sentence}")
        progress = stack.enter_context(steps())
        results = None
        try:
            for results in run_bench(dataset, goal, progress):
                if out is not None:
                    results.write(out)
        except (KeyboardInterrupt, SystemExit):
            if out is not None and results is not None:
                note(f"Interrupted; the results so far are in {_write(results, out)}")
            raise
    assert results is not None  # there is a round at least
    if out is not None:
        note(f"Written: {_write(results, out)}")
    if as_json:
        show_json(results.as_dict())
        return
    _show(results, out)


def _show(results: "Results", out: Path | None) -> None:
    """Print the points, the recommendation and the command that applies it."""
    from searchengine.cli.console import note, say, show_rows
    from searchengine.measure.report import command, sentence

    about = results.subject
    size = f"{about['rows']:,} rows × {about['dim']} dimensions"
    mode = f", nDCG@10 in mode {about['mode']}" if about["judged"] else ""
    title = f"{about['name']}: {size}, {about['queries']} queries by vectors{mode}"
    show_rows(results.table(), title)
    for text in filter(None, (sentence(results), command(results, out))):
        say(text)
    if out is None and results.recommended not in (None, results.now):
        note("Add --out DIR to write results.json, from which `searchengine tune` applies a point")
    if about["default_mode"] == Mode.TEXT:
        note(f"The default mode of {about['name']} is text, which uses no vectors")


def _write(results: "Results", out: Path) -> str:
    from searchengine.measure.report import write

    return ", ".join(map(str, write(results, out)))


@contextmanager
def _dataset(
    path: Path | str, queries: Path | None, scratch: Path, options: dict[str, Any]
) -> Iterator["Dataset"]:
    """Open the collection or the vectors for a block."""
    from searchengine.indexer.config import SegmentConfig
    from searchengine.measure.bench_data import collection_dataset, vectors_dataset

    if queries is None:
        with vectors_dataset(
            Path(path), options["query_vectors"], SegmentConfig(), scratch
        ) as dataset:
            yield dataset
        return
    from searchengine.engine import SearchEngine
    from searchengine.measure.judgements import read_qrels, read_queries

    questions = read_queries(queries)
    qrels = None if options["qrels"] is None else read_qrels(options["qrels"])
    with (
        SearchEngine.open(path, options["encoder"], runtime=options["runtime"]) as engine,
        collection_dataset(engine, questions, qrels) as dataset,
    ):
        yield dataset
