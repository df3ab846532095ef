"""The command line: parse, call one function, print. Heavy imports wait for the command."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from indexer.errors import IndexerError
from searchengine.errors import CorpusError, DuplicateKey, EmptyCorpus, SearchEngineError
from trainer.errors import TrainerError


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero with commas between: 768,256,64."""

    name = "N,N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, in the order given."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected whole numbers with commas between, got {value!r}", param, ctx)
        if min(numbers) < 1:
            self.fail(f"expected numbers above zero, got {value!r}", param, ctx)
        return numbers


class BadInput(click.ClickException):
    """One sentence on stderr; the same exit code as click's own for wrong usage."""

    exit_code = 2


class OneSentence(click.Group):
    """A group whose commands end in one sentence and exit code 2 when the input is at fault."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its named errors become messages."""
        try:
            return super().invoke(ctx)
        except (SearchEngineError, IndexerError, TrainerError, ImportError) as error:
            raise BadInput(str(error)) from error
        except OSError as error:
            if error.filename is None:  # not about a file: a closed pipe, say, which click handles
                raise
            raise BadInput(f"{error.filename}: {error.strerror}") from error


COLLECTION = click.argument("collection", type=click.Path(path_type=Path))
ENCODER = click.option(
    "--encoder", metavar="PATH", help="Model folder or hub name [default: the collection's own]."
)
QUERIES = click.option(
    "--queries", required=True, type=click.Path(path_type=Path), help="Questions: .jsonl or .txt."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
SHORTLIST = click.option(
    "--shortlist", type=click.IntRange(1), help="Candidates scored at full width."
)


@click.group(cls=OneSentence, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="searchengine")
def cli() -> None:
    """Train, index, query and measure a coarse-to-fine semantic search engine."""


@cli.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--base", help="Model to start from [default: starter-768].")
@click.option("--prefixes", type=Numbers(), help="Prefix lengths, full width first.")
@click.option("--dev", multiple=True, type=click.Path(path_type=Path), help="STS file; see below.")
@click.option("--exclude", multiple=True, type=click.Path(path_type=Path), help="See below.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the pairs [default: 3].")
@click.option("--config", type=click.Path(path_type=Path), help="JSON file of other settings.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out.")
def train(pairs: tuple[Path, ...], config: Path | None, resume: bool, **options: Any) -> None:
    """Fine-tune an encoder on sentences, pairs or triplets (TSV or JSONL, .gz too).

    The best step is chosen by the --dev files, or by pairs held out. Training texts
    that occur in an --exclude file are left out, so that what is evaluated later
    was never seen. Prefixes are those of the base model, 768,512,256,128,64 for
    starter-768. docs/training.md lists the formats and the other settings.

    \b
    Example:
        searchengine train data/pairs.tsv --out my-model
    """
    from searchengine.training import read_config, train_with_progress

    given = {name: value for name, value in options.items() if value not in (None, ())}
    train_with_progress(read_config(config, {"train": pairs, **given}), resume=resume)


@cli.group()
def evaluate() -> None:
    """Measure an encoder or a collection against judgements."""


@evaluate.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--encoder", default="starter", show_default=True, help="Model folder or hub name.")
@click.option("--prefixes", type=Numbers(), help="Prefix lengths [default: the model's own].")
@AS_JSON
def sts(pairs: tuple[Path, ...], encoder: str, prefixes: tuple[int, ...], as_json: bool) -> None:
    """Spearman correlation with human similarity scores, one row a prefix length.

    PAIRS are TSV files with the columns score, sentence1 and sentence2; several
    files are pooled into one set.

    \b
    Example:
        searchengine evaluate sts stsb_test.tsv --encoder my-model
    """
    from searchengine.console import progress, show_json, show_rows
    from trainer.encoder import Encoder
    from trainer.evaluation import read_sts
    from trainer.evaluation import sts as evaluate_sts

    scored = read_sts(pairs)
    model = Encoder.load(encoder)
    sentences = len({text for _, *both in scored for text in both})
    with progress("Encoding", sentences) as advance:
        rows = evaluate_sts(model, scored, prefixes or None, on_batch=advance)
    dicts = [asdict(row) for row in rows]
    show_json(dicts) if as_json else show_rows(dicts, f"{len(scored)} pairs, {encoder}")


@evaluate.command()
@COLLECTION
@QUERIES
@click.option("--qrels", required=True, type=click.Path(path_type=Path), help="Judgements: TSV.")
@click.option("--prefixes", type=Numbers(), help="Prefix lengths [default: the model's own].")
@click.option("--shortlist", default=100, show_default=True, type=click.IntRange(1))
@ENCODER
@AS_JSON
def retrieval(
    collection: Path,
    queries: Path,
    qrels: Path,
    prefixes: tuple[int, ...] | None,
    shortlist: int,
    encoder: str | None,
    as_json: bool,
) -> None:
    """nDCG@10 and recall@100 on judged questions, one row a prefix length.

    \b
    Example:
        searchengine evaluate retrieval my.index --queries q.jsonl --qrels test.tsv
    """
    from searchengine import evaluation
    from searchengine.console import progress, show_json, show_rows
    from searchengine.engine import SearchEngine

    asked, judged = evaluation.read_queries(queries), evaluation.read_qrels(qrels)
    with SearchEngine.open(collection, encoder) as engine:
        dims = prefixes or evaluation.default_dims(engine)
        with progress("Evaluating", len(dims)) as advance:
            rows = []
            for row in evaluation.retrieval(engine, asked, judged, dims, shortlist):
                rows.append(row.as_dict())
                advance(1)
    show_json(rows) if as_json else show_rows(rows, f"{collection}")


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.command()
@click.argument("folder", default="demo", type=click.Path(path_type=Path))
def demo(folder: Path) -> None:
    """Train, index, ask and measure on the sample data; leaves FOLDER to play with.

    \b
    Example:
        searchengine demo
    """
    from searchengine.demo import run_demo

    run_demo(folder)
