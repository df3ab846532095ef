"""searchengine bench: operating points measured, reported and compared."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indexer.config import BUILDABLE, Code
from searchengine.cli.options import AS_JSON, ENCODER, Numbers, Several, Stages, runs

if TYPE_CHECKING:
    from searchengine.bench.contestants import Contestant
    from searchengine.bench.results import Results
    from searchengine.bench.run import Settings
    from searchengine.bench.subject import Subject

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("collection", required=False, type=click.Path(path_type=Path))
@click.option("--queries", type=click.Path(path_type=Path), help="Questions: .jsonl or .txt.")
@click.option("--qrels", type=FILE, help="Judgements (TSV), for nDCG@10; asks the judged alone.")
@click.option("--vectors", type=FILE, help="Rows of a .npy file (n, D) instead of a collection.")
@click.option(
    "--query-vectors", type=FILE, help="Queries (q, D) for them [default: some of the rows]."
)
@click.option("-k", default=10, show_default=True, type=click.IntRange(1))
@click.option("--prefixes", type=Numbers(), help="Prefix lengths [default: 64,128,256].")
@click.option("--shortlists", type=Numbers(), help="Sizes [default: 20,50,100,200,500].")
@click.option(
    "--structures",
    type=Several(BUILDABLE),
    help="Some of flat, hnsw, ivf [default: all].",
)
@click.option(
    "--codes", type=Several(Code), help="Of the prefix: fp32, fp16, int8, … [default: int8]."
)
@click.option(
    "--efforts",
    type=Numbers(),
    help="efSearch of graphs, lists probed of IVFs [default: by the shortlist; 1/16 and 1/4].",
)
@click.option(
    "--funnel",
    "funnels",
    type=Stages(),
    multiple=True,
    help="Stages between prefix and full width, as WIDTH:KEEP; several funnels may be given.",
)
@click.option(
    "--no-baselines",
    is_flag=True,
    help="Leave out structures over the full width, and prefixes without rotation.",
)
@click.option(
    "--peers", type=click.Path(path_type=Path), metavar="DIR", help="Measure other engines too."
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option("--cold", default=5, show_default=True, type=click.IntRange(0), help="Cold queries.")
@click.option("--target", default=0.95, show_default=True, type=click.FloatRange(0, 1))
@click.option("--no-growth", is_flag=True, help="Do not measure on parts of the rows.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write a report.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    metavar="A B",
    help="Show what has changed from one report's results to another's.",
)
@ENCODER
@runs
@AS_JSON
def bench(
    collection: Path | None,
    queries: Path | None,
    vectors: Path | None,
    compare: tuple[Path, Path] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Recall, latency and cost of prefixes, shortlists and structures, on your own data.

    Every operating point is measured in turns with exact search over the full width.
    --out writes a page to read, the same in Markdown, and results.json, after every
    round; what is interrupted is kept.

    \b
    Examples:
        searchengine bench my.index --queries questions.txt --out report
        searchengine bench --vectors vectors.npy
        searchengine bench --compare before/results.json after/results.json
    """
    _check_together(collection, queries, vectors, compare, options)
    if compare:
        _compare(compare, as_json)
        return
    given = collection if collection is not None else vectors
    assert given is not None
    _measure(given, queries, as_json, options)


def _check_together(
    collection: Path | None,
    queries: Path | None,
    vectors: Path | None,
    compare: tuple[Path, Path] | None,
    options: dict[str, Any],
) -> None:
    """Refuse what does not go together, rather than leave some of it out."""
    if compare:
        if collection or queries or vectors or options["out"]:
            raise click.UsageError("--compare measures nothing: it goes with --json alone")
        return
    if (collection is None) == (vectors is None):
        raise click.UsageError("name a collection, or rows of a file: --vectors FILE.npy")
    if collection is not None and queries is None:
        raise click.UsageError("name a file of questions: --queries questions.txt")
    unfit = ("queries", "qrels", "encoder") if vectors is not None else ("query_vectors",)
    for name in unfit:
        if options.get(name) or (name == "queries" and queries):
            what = "vectors" if vectors is not None else "a collection"
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with {what}")
    if options["qrels"] is not None and options["k"] < 10:
        raise click.UsageError(f"nDCG@10 needs the first ten: -k 10 or more, got {options['k']}")


def _compare(compare: tuple[Path, Path], as_json: bool) -> None:
    from searchengine.bench.results import Results
    from searchengine.cli.console import note, show_json, show_rows
    from searchengine.report.compare import compare as changes
    from searchengine.report.compare import remarks, table

    before, after = map(Results.read_all, compare)
    both = [name for name in before if name in after]
    if not both:
        raise click.UsageError(
            f"the two have no bench in common: {', '.join(before)} and {', '.join(after)}"
        )
    found = {name: changes(before[name], after[name]) for name in both}
    if as_json:
        plain = {name: [each.as_dict() for each in some] for name, some in found.items()}
        show_json(plain if both != [""] else plain[""])
        return
    for name, some in found.items():
        show_rows(table(some), f"{name} {compare[0]} → {compare[1]}".strip())
        for remark in remarks(before[name], after[name]):
            note(remark)


def _measure(given: Path, queries: Path | None, as_json: bool, options: dict[str, Any]) -> None:
    from searchengine.bench.recommend import recommend
    from searchengine.bench.run import Bench
    from searchengine.cli.console import note, say, show_json, show_rows, steps
    from searchengine.report.table import table

    out, target = options["out"], options["target"]
    if out is not None:
        from searchengine.report.plots.style import check_installed

        check_installed()  # before minutes are spent
        out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        subject = stack.enter_context(_subject(given, queries, scratch, options))
        heard = stack.enter_context(steps())
        settings = _settings(subject, options)
        others: list[Contestant] = []
        missing: dict[str, str] = {}
        if options["peers"] is not None:
            from searchengine.bench.others import start

            others, missing = start(
                stack, options["peers"], subject, settings.grid.k, scratch, heard
            )
        running = Bench(subject, settings, scratch, heard, missing)
        try:
            results = running.run(others, (lambda so_far: so_far.write(out)) if out else None)
        except (KeyboardInterrupt, SystemExit):
            results = running.results(complete=False)
            if out is not None and results.rows:
                note(f"Interrupted; what was measured is in {_written(results, out, target)}")
            raise
    if out is not None:
        note(f"Written: {_written(results, out, target)}")
    if as_json:
        show_json(results.as_dict())
        return
    about = results.subject
    title = f"{about['name']}: {about['rows']:,} rows of {about['dim']}, {about['queries']} queries"
    show_rows(table(results), title)
    say("\n".join(recommend(results, target).why))
    for name, reason in results.missing.items():
        note(f"Left out: {name}: {reason}")


def _written(results: "Results", out: Path, target: float) -> str:
    from searchengine.report.page import write

    return ", ".join(map(str, write(results, out, target)))


@contextmanager
def _subject(
    given: Path, queries: Path | None, scratch: Path, options: dict[str, Any]
) -> Iterator["Subject"]:
    """The collection or the vectors, opened for a block."""
    from indexer.config import SegmentConfig
    from searchengine.bench.subject import of_collection, of_vectors

    if queries is None:
        with of_vectors(given, options["query_vectors"], SegmentConfig(), scratch) as subject:
            yield subject
        return
    from searchengine.engine import SearchEngine
    from searchengine.evaluate.judgements import read_qrels, read_queries

    asked = read_queries(queries)
    qrels = None if options["qrels"] is None else read_qrels(options["qrels"])
    with (
        SearchEngine.open(given, options["encoder"], runtime=options["runtime"]) as engine,
        of_collection(engine, asked, qrels) as subject,
    ):
        yield subject


def _settings(subject: "Subject", options: dict[str, Any]) -> "Settings":
    from searchengine.bench.grid import Grid
    from searchengine.bench.run import Settings

    grid = Grid.fitting(
        subject.rows,
        subject.segments[0].dim,
        options["k"],
        prefixes=options["prefixes"] or (),
        shortlists=options["shortlists"] or (),
        structures=options["structures"] or (),
        codes=options["codes"] or (),
        efforts=options["efforts"] or (),
        funnels=options["funnels"] or None,
        baselines=not options["no_baselines"],
    )
    return Settings(
        grid, options["repeats"], options["cold"], not options["no_growth"], options["target"]
    )
