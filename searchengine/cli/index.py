"""searchengine index, delete and update."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from indexer.config import BUILDABLE, Code, RotationKind
from searchengine.cli.console import Terminated
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    INDEXED,
    LAYERS,
    SHORTLIST,
    WAIT,
    Stages,
    choice,
    note_compiling,
    note_unknown_fields,
    runs,
)
from searchengine.corpus.documents import LeftOut
from searchengine.errors import (
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    QueryError,
    UnknownFields,
)
from searchengine.storage.documents.lexical import Tokenizer

COMMIT_EVERY = 5000


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@COLLECTION
@click.option("--encoder", metavar="PATH", help="Model folder or hub name [default: starter].")
@click.option("--prefix", type=click.IntRange(1), help="Dimensions of the prefix [default: 128].")
@click.option("--structure", type=choice(BUILDABLE), help="Index structure [default: flat].")
@click.option("--code", type=choice(Code), help="Number format of the prefix [default: fp16].")
@click.option(
    "--rotation", type=choice(RotationKind), help="Rotation of the vectors [default: pca]."
)
@SHORTLIST
@click.option(
    "--effort",
    type=click.IntRange(0),
    help="Search effort: ef_search of HNSW, nprobe of IVF [default: set by the shortlist].",
)
@click.option("--links", "hnsw_m", type=click.IntRange(2), help="HNSW links per row [default: 32].")
@click.option(
    "--bounds",
    type=click.IntRange(0),
    metavar="N",
    help="Dimensions stored as bounds, so that exact search reads few rows: 253 suits "
    "768-wide vectors. Takes N + 11 bytes per row on disk.",
)
@click.option(
    "--funnel",
    "stages",
    type=Stages(),
    help="Reranking stages between prefix and full width: 256:50 reranks the shortlist by "
    "256 dimensions and keeps 50.",
)
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Cut long documents into passages, or keep them whole [default: cut].",
)
@click.option(
    "--passage-tokens", type=click.IntRange(0), help="Tokens per passage [default: as many as fit]."
)
@click.option(
    "--overlap",
    type=click.IntRange(0),
    help="Tokens that passages share [default: an eighth of a passage].",
)
@click.option(
    "--tokenizer", type=choice(Tokenizer), help="Tokenizer for --mode text [default: porter]."
)
@INDEXED
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    default=COMMIT_EVERY,
    show_default=True,
    help="Documents per commit; a commit survives an interruption.",
)
@click.option(
    "--key-prefix",
    default="",
    metavar="TEXT",
    help="Text to put before generated keys: of files, and of records without a key.",
)
@click.option("--text-field", metavar="NAME", help="Name of the text field [default: text].")
@click.option("--title-field", metavar="NAME", help="Name of the title field [default: title].")
@click.option("--id-field", metavar="NAME", help="Name of the key field [default: _id or id].")
@click.option("--skip-bad", is_flag=True, help="Skip malformed records and count them.")
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
    """Add the documents of CORPUS to COLLECTION, which is created if needed.

    CORPUS is a .jsonl, .csv or .tsv file (.gz too), or a folder of .txt and .md
    files. Fields: _id, title, text; all others become metadata to filter by. The
    key of a text file is its path below CORPUS; the key of a record without _id is
    a hash of its content (docs/keys.md). A document replaces the stored one with
    the same key, and is encoded only if its text differs. After an interruption,
    the same command continues from the last commit.

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
    settings = {name: options.pop(name) for name in ("tokenizer", "runtime", "layers")}
    settings["passages"] = _passages(options)
    key_prefix = options.pop("key_prefix")
    columns = Columns(**{name: options.pop(f"{name}_field") for name in ("text", "title", "id")})
    config = {name: value for name, value in options.items() if value is not None}
    malformed = LeftOut()
    on_bad = (lambda error: malformed.add(str(error))) if skip_bad else None
    _check_apart(check_corpus(corpus), collection)
    started = time.monotonic()
    is_new = not collection.exists()
    with SearchEngine.open_or_create(collection, encoder, config, wait=wait, **settings) as engine:
        try:
            documents = read_corpus(
                corpus,
                on_bad,
                key_prefix=key_prefix,
                record_keys=engine.collection.settings.get("record_keys", "content"),
                columns=columns,
            )
            note_compiling(engine)
            engine.encoder.encode(
                ["start"]
            )  # loading takes seconds, which the rate of encoding leaves out
            if fields:
                engine.index_fields(*fields)
            with explaining(malformed), indexing(count_records(corpus)) as (on_read, on_step):
                summary = engine.add(
                    documents,
                    skip_bad=skip_bad,
                    commit_every=every,
                    progress=on_read,
                    building=on_step,
                )
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | Terminated)
            kept = _committed(engine) if stopped else 0
            if is_new:
                engine.collection.remove_if_empty()
            if stopped:
                note(_interrupted(collection, kept))
                status = error.status if isinstance(error, Terminated) else 1
                raise click.exceptions.Exit(status) from None
            bad_record = isinstance(error, CorpusError | DuplicateKey)
            concerns_all = isinstance(error, EmptyCorpus | UnknownFields)
            if bad_record and not concerns_all and not skip_bad:
                raise type(error)(f"{error} (--skip-bad skips malformed records)") from error
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
    counts = {
        "added": summary.added,
        "changed": summary.changed,
        "metadata_updated": summary.metadata_updated,
        "unchanged": summary.unchanged,
    }
    if as_json:
        show_json(
            {
                "collection": str(collection),
                **counts,
                "relabelled": summary.metadata_updated,  # the former name
                "documents": documents_now,
                "seconds": seconds,
                **{name: asdict(records) for name, records in left_out.items()},
            }
        )
        return
    done = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n)
    total = counted(documents_now, "document")
    note(f"{done or '0 added'} in {collection}, {total} now, in {seconds} s")
    for name, records in left_out.items():
        if records.count:
            note(f"{records.count} {name.replace('_', ' ')}, left out:{_first_lines(records)}")


def _check_apart(corpus: Path, collection: Path) -> None:
    """Refuse a collection at the path of its corpus or above it: creating it could destroy files.

    A collection inside the corpus does no harm: it has no file that is read as a document.
    """
    source, target = corpus.resolve(), collection.resolve()
    if source == target or (collection.exists() and corpus.samefile(collection)):
        raise CorpusError(
            f"corpus and collection are the same folder or file, {corpus}; name another folder "
            f"for the collection, for example: searchengine index {corpus} {corpus.name}.index"
        )
    if target in source.parents:
        raise CorpusError(
            f"the corpus {corpus} is inside the collection {collection}; name another folder "
            "for the collection"
        )


def _committed(engine: Any) -> int:
    """Return the number of documents of the last commit, which may not have been shown."""
    engine.refresh()
    return int(engine.stats().documents)


def _interrupted(collection: Path, kept: int) -> str:
    """Describe the state after Ctrl-C or a signal ended the run."""
    from searchengine.cli.console import counted

    if not kept:
        return (
            "Interrupted before the first commit; nothing was changed "
            "(--commit-every N commits sooner)"
        )
    are = "is" if kept == 1 else "are"
    return (
        f"Interrupted; {counted(kept, 'document')} {are} committed in {collection}, "
        "the same command continues from there"
    )


def _passages(options: dict[str, Any]) -> Any:
    """Return the passages that the options ask for; None: no preference."""
    from searchengine.ingest.passages import PassageConfig

    wanted = options.pop("passages")
    sizes = {"tokens": options.pop("passage_tokens"), "overlap": options.pop("overlap")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if sizes and wanted is False:
        raise click.UsageError(
            "--no-passages keeps documents whole; leave out --passage-tokens and --overlap"
        )
    return PassageConfig(**sizes) if sizes else wanted


def _first_lines(left_out: LeftOut, most: int = 10) -> str:
    """Return the first messages, one per line, and the number of further ones."""
    lines = left_out.first[:most]
    if left_out.count > most:
        lines.append(f"… and {left_out.count - most} more; --json lists the first 1000")
    return "".join(f"\n  {line}" for line in lines)


@click.command()
@COLLECTION
@click.argument("keys", nargs=-1)
@click.option("--where", help="Metadata filter of the documents to delete.")
@click.option("--dry-run", is_flag=True, help="Count the documents without deleting them.")
@WAIT
@AS_JSON
def delete(
    collection: Path,
    keys: tuple[str, ...],
    where: str | None,
    dry_run: bool,
    wait: float,
    as_json: bool,
) -> None:
    """Delete documents by key or by filter.

    \b
    Example:
        searchengine delete notes.index whales.txt
        searchengine delete notes.index --where "year < 2010"
    """
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    if bool(keys) == (where is not None):
        raise QueryError(
            f"delete takes either keys or --where, got {'both' if keys else 'neither'}; "
            "name the documents by key, or by a filter"
        )
    with SearchEngine.open(collection, wait=wait) as engine:
        with engine.collection.reading() as snapshot:
            missing = sorted(set(keys) - set(snapshot.store.ids_of(keys)))
        if dry_run:
            with engine.collection.reading() as snapshot:
                count = len(set(keys)) - len(missing)
                if where is not None:
                    count = snapshot.store.count(where)
        else:
            count = engine.delete(list(keys) if keys else None, where=where)
        if not count:
            note_unknown_fields(engine, where)
    if as_json:
        deleted = 0 if dry_run else count
        # "found" is the former name of "matched".
        show_json({"deleted": deleted, "matched": count, "found": count, "missing": missing})
        return
    would_be = "would be " if dry_run else ""
    note(f"{counted(count, 'document')} {would_be}deleted from {collection}")
    for key in missing:
        note(f"no document {key!r}")


@click.command()
@COLLECTION
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE…")
@WAIT
@AS_JSON
def update(collection: Path, key: str, values: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Update metadata of the document KEY without encoding it again.

    A VALUE is read as JSON if it is valid JSON, else as text; null removes the
    field.

    \b
    Example:
        searchengine update notes.index whales.txt year=2016 draft=null
    """
    from searchengine.cli.console import note, show_json
    from searchengine.engine import SearchEngine

    patch = dict(_field(value) for value in values)
    with SearchEngine.open(collection, wait=wait) as engine:
        engine.update({key: patch})
        with engine.collection.reading() as snapshot:
            store = snapshot.store
            (document,) = store.documents(store.ids_of([key]).values())
    if as_json:
        show_json({"collection": str(collection), "key": key, "metadata": document.metadata})
    else:
        note(f"{key} updated in {collection}")


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise QueryError(f"expected NAME=VALUE, such as year=2016, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return name, value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
