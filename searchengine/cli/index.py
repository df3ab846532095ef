"""Fill a collection: searchengine index."""

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli import options as opt
from searchengine.cli.console import INTERRUPTED, Terminated, counted, note, show_json, steps
from searchengine.cli.options import command
from searchengine.errors import (
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    SearchEngineError,
    UnknownFields,
    UnreadableFile,
)

if TYPE_CHECKING:
    from searchengine.corpus.files import Unread
    from searchengine.ingest.folder_sync import MirrorOptions


@command(
    click.argument("corpus", type=opt.PATH),
    opt.COLLECTION,
    click.option(
        "--key-prefix", default="", metavar="TEXT", help="Text to put before generated keys."
    ),
    click.option("--text-field", metavar="NAME", help="Name of the text field [default: text]."),
    click.option("--title-field", metavar="NAME", help="Name of the title field [default: title]."),
    click.option("--id-field", metavar="NAME", help="Name of the key field [default: _id or id]."),
    opt.flag("--skip-bad", "Skip malformed records and count them."),
    opt.flag("--no-gitignore", "Also read files that a .gitignore names."),
    opt.flag("--prune", "Delete documents of files that are no longer in the folder CORPUS."),
    opt.flag("--watch", "--prune again whenever the folder changes, until Ctrl-C."),
    opt.file("--vectors", "Vectors of the documents: a .npy file, one row per document."),
    opt.file("--passages-from", "Passages of the rows (.jsonl, as `export` has it)."),
    opt.PASSAGES,
    click.option("--tokenizer", help="unicode, stem, stem:de,ru or none [default: by language]."),
    click.option(
        "--field", "fields", multiple=True, help="Metadata field to index for filters; repeatable."
    ),
    opt.encoder(
        "Model folder, hub name, name in docs/encoders.md, or URL#MODEL [default: starter if it is "
        "installed, else leaf; multilingual, if installed, where that reads few of the documents]."
    ),
    opt.assignments("Field of the index config: prefix=64, structure=hnsw; repeatable."),
    example=(
        "index notes/ notes.index",
        "index notes/ notes.index --watch",
        "index papers.csv papers.index --text-field abstract",
        "index papers.jsonl papers.index --vectors vectors.npy",
    ),
    collection=False,
)
def index(corpus: str, collection: str, as_json: bool, **options: Any) -> None:
    """Add the documents of CORPUS to COLLECTION, which is created if needed.

    CORPUS is a folder or a file: text, source, Markdown, HTML, PDF, .docx, .pptx, .xlsx, .epub,
    .eml or .ipynb; or records in .jsonl, .json, .csv, .tsv or .parquet. "-" reads JSON Lines from
    standard input. Fields of records: _id, title, text; all others become metadata to filter by.
    The key of a file is its path below CORPUS; the key of a record without _id is a hash of its
    content (docs/indexing.md). A document replaces the stored one with the same key, and is encoded
    only if its text differs. After an interruption, the same command continues from the last
    commit. --prune removes documents of deleted files, --watch keeps the collection in step with
    it.
    """
    from searchengine.backends.opening import is_url
    from searchengine.corpus.files import Unread, check_corpus, count_records, read_corpus
    from searchengine.engine import SearchEngine
    from searchengine.ingest.folder_sync import MirrorOptions

    watch, prune, skip_bad = (options[name] for name in ("watch", "prune", "skip_bad"))
    if (prune or watch) and (options["vectors"] or not Path(corpus).is_dir()):
        name = "--watch" if watch else "--prune"
        raise click.UsageError(f"{name} needs a folder of files, got {corpus}; leave {name} out")
    rows, passages = _supplied(options["vectors"], options["passages_from"])
    reading = _reading(options, needs_text=rows is None)
    unread = Unread(skip_bad)
    check_corpus(corpus)  # before a collection is made
    is_new = not is_url(collection) and not Path(collection).exists()
    config = dict(options["assignments"])
    settings = {name: options[name] for name in ("tokenizer", "runtime")}
    settings["passages"] = opt.passages_of(options["passages"])
    settings["dim"] = None if rows is None else rows.shape[1]
    settings["wait"], started = opt.WAIT, time.monotonic()
    with SearchEngine.open_or_create(collection, options["encoder"], config, **settings) as engine:
        try:
            if options["fields"]:
                engine.index_fields(*options["fields"])
            if (stored := len(engine)) and not as_json:
                note(f"{counted(stored, 'document')} stored already; unchanged ones are skipped")
            if watch:
                _watch(
                    engine, collection, corpus, MirrorOptions(**reading, skip_bad=skip_bad), as_json
                )
                return
            total = count_records(corpus, reading["gitignore"]) if rows is None else len(rows)
            with steps() as report:
                report("Indexing", 0, total)
                add: dict[str, Any] = {"skip_bad": skip_bad, "building": report}
                add["progress"] = lambda documents, _: report("Indexing", documents, total)
                if prune:
                    mirroring = MirrorOptions(**add, **reading)
                    summary = engine.mirror(corpus, mirroring, unread)
                else:
                    documents = read_corpus(corpus, unread, **reading)
                    summary = engine.add(documents, rows, passages=passages, **add)
        except BaseException as error:
            _clean_up(engine, collection, error, is_new)
            if isinstance(error, CorpusError | DuplicateKey):
                may_skip = rows is None and not skip_bad
                raise _explained(error, unread, may_skip) from None
            raise
        more = {"documents": len(engine), "seconds": round(time.monotonic() - started, 2)}
    outcome = _outcome(collection, summary, unread, **more)
    show_json(outcome) if as_json else _show(outcome, unread.sentence())


def _supplied(vectors: Path | None, passages: Path | None) -> tuple[Any, Any]:
    """Return an array of vectors and their passages; None without."""
    from searchengine.corpus.contents import read_jsonl
    from searchengine.ingest.supplied import read_vectors

    if vectors is None:
        if passages is not None:
            raise click.UsageError("--passages-from needs --vectors FILE.npy")
        return None, None
    # The export of a collection without vectors has passages, and no rows.
    rows = read_vectors(vectors, may_be_empty=passages is not None)
    return rows, None if passages is None else (line for _, line in read_jsonl(passages))


def _reading(options: dict[str, Any], *, needs_text: bool) -> dict[str, Any]:
    """The keywords of read_corpus."""
    from searchengine.corpus.contents import Columns

    names = {name: options[f"{name}_field"] for name in ("text", "title", "id")}
    return {
        "columns": Columns(**names, needs_text=needs_text),
        "gitignore": not options["no_gitignore"],
        "key_prefix": options["key_prefix"],
    }


def _clean_up(engine: Any, collection: str, error: BaseException, is_new: bool) -> None:
    """Remove a new collection without documents. Raise Exit after Ctrl-C or a signal."""
    is_stop = isinstance(error, KeyboardInterrupt | Terminated)
    committed = len(engine) if is_stop else 0
    if is_new:
        engine.collection.remove_if_empty()
    if is_stop:
        message = "Interrupted before the first commit; nothing was changed"
        if committed:
            stored = f"{opt.named(collection)} has {counted(committed, 'document')}"
            message = f"Interrupted; {stored}, the same command continues from there"
        note(message)
        raise click.exceptions.Exit(getattr(error, "code", INTERRUPTED)) from None


def _explained(
    error: CorpusError | DuplicateKey, unread: "Unread", may_skip: bool
) -> SearchEngineError:
    """An error with what was left out if there is nothing to index, or with a way out.

    `may_skip`: whether --skip-bad could be given.
    """
    if isinstance(error, EmptyCorpus):
        left_out, noun = (unread.bad, "record") if unread.bad.count else (unread.failed, "file")
        if left_out.count:
            bad = f"{counted(left_out.count, f'bad {noun}')}, the first: {left_out.first[0]}"
            return EmptyCorpus(f"{error}; {bad}")
    elif may_skip and not isinstance(error, UnknownFields | UnreadableFile):
        return type(error)(f"{error} (--skip-bad skips malformed records)")
    return error


_COUNTS = ("added", "changed", "metadata_updated", "removed", "unchanged")


def _outcome(collection: str, summary: Any, unread: Any, **more: Any) -> dict[str, Any]:
    """The result of a run, or of a pass of --watch, with the same keys for every one.

    `summary`: None if the pass failed. `more`: seconds of a run; documents and problem of a pass.
    """
    from searchengine.corpus.documents import LeftOut
    from searchengine.ingest.ingestion import AddSummary

    result = asdict(summary or AddSummary(0, 0, 0, 0, LeftOut(), LeftOut(), LeftOut()))
    result["bad"]["count"] += unread.bad.count
    result["bad"]["first"] = [*unread.bad.first, *result["bad"]["first"]][:1000]
    result |= {"collection": opt.named(collection)}
    result |= {"unreadable": asdict(unread.failed), "skipped": dict(unread.kinds)}
    return result | {"seconds": None, "problem": None} | more


def _show(outcome: dict[str, Any], skipped: str) -> None:
    """Print how many documents were added and left out, with the first messages."""
    most, seconds = 10, outcome["seconds"]
    changes = ", ".join(
        f"{outcome[name]} {name.replace('_', ' ')}" for name in _COUNTS if outcome[name]
    )
    end = "" if seconds is None else f", in {seconds} s"
    total = counted(outcome["documents"], "document")
    note(f"{changes or '0 added'} in {outcome['collection']}, {total} now{end}")
    for name in ("without_text", "repeated", "bad", "unreadable"):
        count, lines = outcome[name]["count"], outcome[name]["first"][:most]
        if count > most:
            lines.append(f"… and {count - most} more; --json lists the first 1000")
        if count:
            note("\n  ".join([f"{count} {name.replace('_', ' ')}, left out:", *lines]))
    if skipped:
        note(skipped)


def _watch(
    engine: Any, collection: str, folder: str, options: "MirrorOptions", as_json: bool
) -> None:
    """Keep a collection equal to a folder, and print each pass, until Ctrl-C or SIGTERM."""
    note(f"Watching {folder}, Ctrl-C ends")
    shown = ""  # of the files without documents
    with ExitStack() as first:
        report = first.enter_context(steps())  # the first pass may take long
        options = replace(options, progress=lambda count, _: report("Indexing", count, None))
        for update in engine.watch(folder, options):
            first.close()
            more = {"documents": update.documents, "problem": update.problem or None}
            outcome = _outcome(collection, update.summary, update.unread, **more)
            if as_json:
                show_json(outcome, indent=None)
            elif update.problem:
                note(f"{update.problem}; trying again")
            else:
                skipped = update.unread.sentence()
                _show(outcome, "" if skipped == shown else skipped)
                shown = skipped
