"""searchengine index, bench, info, verify and demo."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from indexer.config import BUILDABLE, Code, RotationKind
from searchengine.cli.fields import INDEXED
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    LAYERS,
    SHORTLIST,
    WAIT,
    Stages,
    choice,
    runs,
    tell_compiling,
)
from searchengine.cli.signals import Terminated
from searchengine.corpus.documents import LeftOut
from searchengine.errors import CorpusError, DuplicateKey, EmptyCorpus, UnknownFields
from searchengine.storage.documents.lexical import Tokenizer

COMMIT_EVERY = 5000


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@COLLECTION
@click.option("--encoder", metavar="PATH", help="Model folder or hub name [default: starter].")
@click.option("--prefix", type=click.IntRange(1), help="Numbers of the shortlist [default: 64].")
@click.option("--structure", type=choice(BUILDABLE), help="[default: flat]")
@click.option("--code", type=choice(Code), help="Of the prefix [default: fp16].")
@click.option("--rotation", type=choice(RotationKind), help="[default: pca]")
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
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Cut long documents, or keep all whole [default: cut].",
)
@click.option(
    "--passage-tokens", type=click.IntRange(0), help="Of a passage [default: as many as fit]."
)
@click.option(
    "--overlap", type=click.IntRange(0), help="Tokens that passages share [default: an eighth]."
)
@click.option(
    "--tokenizer", type=choice(Tokenizer), help="Of words, for --mode text [default: porter]."
)
@INDEXED
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    default=COMMIT_EVERY,
    show_default=True,
    help="Documents to a commit; what is committed survives an interruption.",
)
@click.option(
    "--key-prefix",
    default="",
    metavar="TEXT",
    help="Text put before the key of every file or record that has no key of its own.",
)
@click.option("--text-field", metavar="NAME", help="Field that holds the text [default: text].")
@click.option("--title-field", metavar="NAME", help="Field that holds the title [default: title].")
@click.option("--id-field", metavar="NAME", help="Field that holds the key [default: _id or id].")
@click.option("--skip-bad", is_flag=True, help="Go on past bad lines and count them.")
@LAYERS
@runs
@WAIT
@AS_JSON
def index(
    corpus: Path,
    collection: Path,
    encoder: str | None,
    **options: Any,
) -> None:
    """Add the documents of CORPUS to COLLECTION, made if it is not there.

    CORPUS is a .jsonl, .csv or .tsv file (.gz too), or a folder of .txt and .md
    files. Fields: _id, title, text; all others become metadata to filter by. The
    key of a text file is its path below CORPUS, the key of a record without _id a
    hash of its content (docs/keys.md). What is stored under the same key is
    replaced, and not encoded again if it is the same: after an interruption the
    same command goes on after the last commit.

    \b
    Examples:
        searchengine index notes/ notes.index
        searchengine index papers.csv papers.index --text-field abstract
    """
    from searchengine.cli.console import counted, indexing, note, show_json
    from searchengine.corpus.columns import Columns
    from searchengine.corpus.documents import explaining
    from searchengine.corpus.files import check_corpus, count_records, read_corpus
    from searchengine.engine import SearchEngine

    as_json, skip_bad = options.pop("as_json"), options.pop("skip_bad")
    fields, every, wait = (options.pop(name) for name in ("fields", "commit_every", "wait"))
    built = {name: options.pop(name) for name in ("tokenizer", "runtime", "layers")}
    built["passages"] = _passages(options)
    key_prefix = options.pop("key_prefix")
    columns = Columns(**{name: options.pop(f"{name}_field") for name in ("text", "title", "id")})
    config = {name: value for name, value in options.items() if value is not None}
    malformed = LeftOut()
    on_bad = (lambda error: malformed.add(str(error))) if skip_bad else None
    _check_apart(check_corpus(corpus), collection)
    started = time.monotonic()
    made_here = not collection.exists()
    with SearchEngine.open_or_create(collection, encoder, config, wait=wait, **built) as engine:
        try:
            documents = read_corpus(
                corpus,
                on_bad,
                key_prefix=key_prefix,
                record_keys=engine.collection.settings.get("record_keys", "content"),
                columns=columns,
            )
            tell_compiling(engine)
            engine.encoder.encode(["start"])  # seconds that are no part of how fast it encodes
            if fields:
                engine.index_fields(*fields)
            with explaining(malformed), indexing(count_records(corpus)) as (read, building):
                summary = engine.add(
                    documents,
                    skip_bad=skip_bad,
                    commit_every=every,
                    progress=read,
                    building=building,
                )
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | Terminated)
            kept = _committed(engine) if stopped else 0
            if made_here:
                engine.collection.remove_if_empty()
            if stopped:
                note(_interrupted(collection, kept))
                status = error.status if isinstance(error, Terminated) else 1
                raise click.exceptions.Exit(status) from None
            bad_record = isinstance(error, CorpusError | DuplicateKey)
            whole = isinstance(error, EmptyCorpus | UnknownFields)  # not of one record
            if bad_record and not whole and not skip_bad:
                raise type(error)(f"{error} (--skip-bad goes on past what is bad)") from error
            raise
        documents_now = engine.stats().documents
    seconds = round(time.monotonic() - started, 2)
    for message in summary.bad.first:
        malformed.add(message)
    malformed.count += summary.bad.count - len(summary.bad.first)
    left_out = {
        "without_text": summary.without_text,
        "repeated": summary.repeated,
        "bad": malformed,
    }
    names = ("added", "changed", "metadata_updated", "unchanged")
    counts = {name: getattr(summary, name) for name in names}
    if as_json:
        left = {name: asdict(some) for name, some in left_out.items()}
        now = {"documents": documents_now, "seconds": seconds}
        former = {"relabelled": summary.metadata_updated}  # for one more release
        show_json({"collection": str(collection), **counts, **former, **now, **left})
        return
    did = (
        ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        or "0 added"
    )
    now_there = counted(documents_now, "document")
    note(f"{did} in {collection}, {now_there} now, in {seconds} s")
    for name, some in left_out.items():
        if some.count:
            note(f"{some.count} {name.replace('_', ' ')}, left out:{_some(some)}")


def _check_apart(corpus: Path, collection: Path) -> None:
    """Refuse a collection in the place of its corpus, or around it: making it would not be safe.

    A collection inside the corpus does no harm: it holds no file that is read as a document.
    """
    source, target = corpus.resolve(), collection.resolve()
    if source == target or (collection.exists() and corpus.samefile(collection)):
        raise CorpusError(
            f"corpus and collection are the same folder or file, {corpus}; name another folder "
            f"for the collection, for example: searchengine index {corpus} {corpus.name}.index"
        )
    if target in source.parents:
        raise CorpusError(
            f"the corpus {corpus} lies inside the collection {collection}; name another folder "
            "for the collection"
        )


def _committed(engine: Any) -> int:
    """Documents of the last commit; it may have been interrupted before it was shown."""
    engine.refresh()
    return int(engine.stats().documents)


def _interrupted(collection: Path, kept: int) -> str:
    """What is left of a run that Ctrl-C or a signal ended."""
    from searchengine.cli.console import counted

    if not kept:
        return (
            "Interrupted before the first commit; nothing was changed "
            "(--commit-every N commits sooner)"
        )
    are = "is" if kept == 1 else "are"
    return (
        f"Interrupted; {counted(kept, 'document')} {are} committed in {collection}, "
        "the same command goes on from there"
    )


def _passages(options: dict[str, Any]) -> Any:
    """What the options say of passages: PassageConfig, True, False, or None if nothing."""
    from searchengine.ingest.passages import PassageConfig

    wanted = options.pop("passages")
    given = {"tokens": options.pop("passage_tokens"), "overlap": options.pop("overlap")}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and wanted is False:
        raise click.UsageError("--no-passages keeps documents whole; leave the size out")
    return PassageConfig(**chosen) if chosen else wanted


def _some(left_out: LeftOut, most: int = 10) -> str:
    """The first few, a line each, and how many more there are."""
    lines = left_out.first[:most]
    if left_out.count > most:
        lines.append(f"… and {left_out.count - most} more; --json lists the first 1000")
    return "".join(f"\n  {line}" for line in lines)


@click.command()
@COLLECTION
@runs
@AS_JSON
def info(collection: Path, runtime: Any, as_json: bool) -> None:
    """What a collection holds and how it searches.

    \b
    Example:
        searchengine info my.index
    """
    from searchengine.cli.console import say, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, runtime=runtime) as engine:
        stats = engine.stats()
        runs_on = engine.runs_on()
    if as_json:
        former = {"recipe": stats.index_config}  # for one more release
        show_json(asdict(stats) | former | {"engine": runs_on})
        return
    from searchengine.maintenance.tuning import described

    for name, value in (described(stats) | {"engine": runs_on}).items():
        say(f"{name:12} {value}")


@click.command()
@COLLECTION
@AS_JSON
def verify(collection: Path, as_json: bool) -> None:
    """Check every file of a collection against its checksum.

    \b
    Example:
        searchengine verify my.index
    """
    from searchengine.cli.console import say, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        engine.verify()
    if as_json:
        show_json({"collection": str(collection), "whole": True})
    else:
        say(f"{collection} is whole")


@click.command()
@click.argument("folder", default="demo", type=click.Path(path_type=Path))
def demo(folder: Path) -> None:
    """Train, index, ask and measure on the sample data; leaves FOLDER to play with.

    \b
    Example:
        searchengine demo
    """
    from searchengine.cli.demo import run_demo

    run_demo(folder)
