"""Fill a collection: searchengine index."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.backends.mode import Mode
from searchengine.cli.console import (
    Pulse,
    Terminated,
    counted,
    indexing,
    note,
    show_json,
    show_json_line,
    stopped,
)
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    INDEXED,
    PASSAGES,
    PATH,
    WAIT,
    Assignment,
    choice,
    passages_of,
    runs,
    sectioned,
    suffixes,
)
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import LeftOut
from searchengine.corpus.text_files import STDIN, bad, read_jsonl, unreadable
from searchengine.errors import (
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    QueryError,
    UnknownFields,
    UnreadableFile,
)

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document
    from searchengine.corpus.files import Unread
    from searchengine.ingest.folder_sync import MirrorOptions

PATIENCE = 60.0
"""Seconds to wait for another writer while a folder is watched, unless --wait says more."""
_FILE = click.Path(path_type=Path)
_VECTORS = "numbers of shape (n, D), one row per document"


@click.command(
    cls=sectioned(
        {
            "What is read": "text_field title_field id_field key_prefix as_text ignore "
            "no_gitignore skip_bad",
            "A folder kept in step": "prune watch",
            "Vectors of your own": "vector_file passage_file",
            "Passages and words": "passages tokenizer mode synonyms fields",
            "The encoder": "encoder runtime",
            "The index": "prefix assignments",
        }
    )
)
@click.argument("corpus", type=PATH)
@COLLECTION
@click.option(
    "--encoder",
    metavar="PATH",
    type=PATH,
    help="Model folder, hub name, name of the table in docs/encoders.md, or URL#MODEL of an "
    "endpoint [default: starter if it is installed, else leaf; multilingual if it is "
    "installed, and the other does not read most documents].",
)
@click.option("--prefix", type=click.IntRange(1), help="Dimensions of the prefix [default: 128].")
@PASSAGES
@click.option(
    "--set",
    "assignments",
    multiple=True,
    type=Assignment("hnsw_m=32"),
    help="Another field of the index config: structure=hnsw, code=int8, shortlist=200, "
    "stages=[[256,50]]; repeatable.",
)
@click.option(
    "--tokenizer",
    metavar="[" + "|".join(Tokenizer) + "|stem:LANGUAGES]",
    help="Tokenizer for --mode text, such as stem:de,ru [default: by the language of the "
    "first documents].",
)
@click.option(
    "--mode",
    type=choice([Mode.VECTOR, Mode.TEXT, Mode.HYBRID]),
    help="Default mode of searches [default: hybrid; as it is, for an existing collection].",
)
@click.option(
    "--synonyms",
    type=_FILE,
    metavar="FILE",
    help="Synonyms for searches by words, a group on each line: car, automobile. They replace "
    "those that the collection has; an empty file removes them.",
)
@INDEXED
@click.option(
    "--key-prefix",
    metavar="TEXT",
    help="Text to put before generated keys: of files, of records without a key, and of the "
    "rows of a .npy file.",
)
@click.option("--text-field", metavar="NAME", help="Name of the text field [default: text].")
@click.option("--title-field", metavar="NAME", help="Name of the title field [default: title].")
@click.option("--id-field", metavar="NAME", help="Name of the key field [default: _id or id].")
@click.option("--skip-bad", is_flag=True, help="Skip malformed records and count them.")
@click.option("--no-gitignore", is_flag=True, help="Read what a .gitignore names too.")
@click.option(
    "--as-text",
    type=suffixes(),
    default=(),
    help="Suffixes or names of files to read as plain text: .foo,Makefile.",
)
@click.option(
    "--ignore",
    type=suffixes(),
    default=(),
    help="Suffixes or names of files, or names of folders, to leave out: .log,node_modules.",
)
@click.option(
    "--vectors",
    "vector_file",
    type=_FILE,
    metavar="FILE",
    help="Vectors of the documents, which are then not encoded: a .npy file (one row per "
    "document; without --encoder, a new collection has none).",
)
@click.option(
    "--passages-from",
    "passage_file",
    type=_FILE,
    metavar="FILE",
    help="Key, start and end of the passage of each row of --vectors (.jsonl, as `export` "
    "writes it).",
)
@click.option(
    "--prune",
    is_flag=True,
    help="Remove the documents of files that are gone from the folder CORPUS.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Do as --prune, and again whenever the folder changes, until Ctrl-C.",
)
@runs
@WAIT
@AS_JSON
def index(
    corpus: str, collection: Path | str, encoder: str | None, as_json: bool, **options: Any
) -> None:
    """Add the documents of CORPUS to COLLECTION, which is created if needed.

    CORPUS is a folder or a file: text, source, Markdown, HTML, PDF, .docx, .pptx,
    .xlsx, .epub, .eml or .ipynb; records in .jsonl, .json, .csv, .tsv or .parquet;
    or a .npy file of vectors. "sqlite:///FILE?table=NAME" reads a table,
    "-" JSON Lines from standard input. Fields of records: _id, title, text; all
    others become metadata to filter by. The key of a file is its path below CORPUS;
    the key of a record without _id is a hash of its content (docs/indexing.md); the key of a vector
    without a document is its row number, and --key-prefix keeps a second file of
    vectors apart. A document replaces the stored one
    with the same key, and is encoded only if its text differs. After an
    interruption, the same command continues from the last commit. --prune removes documents of
    deleted files, --watch keeps the collection in step with it.

    \b
    Examples:
        searchengine index notes/ notes.index
        searchengine index notes/ notes.index --watch
        searchengine index notes/ notes.index --prune --ignore .png,.zip
        searchengine index papers.csv papers.index --text-field abstract
        searchengine index "sqlite:///app.db?table=posts" posts.index --text-field body
        searchengine index papers.jsonl papers.index --vectors vectors.npy
    """
    from searchengine.corpus.files import Unread, check_corpus, count_records, read_corpus
    from searchengine.corpus.synonym_groups import read_synonyms
    from searchengine.engine import SearchEngine
    from searchengine.ingest.folder_sync import MirrorOptions

    prune, watch, wait, key_prefix = (
        options.pop(name) for name in "prune watch wait key_prefix".split()
    )
    vectors, passages = _supplied(corpus, options.pop("vector_file"), options.pop("passage_file"))
    is_array, has_vectors = _holds_vectors(corpus), vectors is not None
    _check_usage(corpus, prune, watch, has_vectors)
    settings = {name: options.pop(name) for name in ("tokenizer", "runtime")}
    settings |= {
        "passages": passages_of(options.pop("passages")),
        "wait": max(wait, PATIENCE) if watch else wait,
    }
    settings["dim"] = vectors.shape[1] if has_vectors else None
    mode, fields, synonyms = (options.pop(name) for name in ("mode", "fields", "synonyms"))
    groups = None if synonyms is None else read_synonyms(synonyms)
    skip_bad = options.pop("skip_bad")
    add: dict[str, Any] = {"skip_bad": skip_bad}
    reading = _reading(options, needs_text=not has_vectors) | {"key_prefix": key_prefix or ""}
    malformed, unread = LeftOut(), Unread()
    on_bad = (lambda error: malformed.add(str(error))) if skip_bad else None
    is_new = isinstance(collection, Path) and not collection.exists()
    if isinstance(collection, Path):
        _check_apart(check_corpus(corpus), collection)
    config = dict(options.pop("assignments"))
    config |= {name: value for name, value in options.items() if value is not None}
    started = time.monotonic()
    with SearchEngine.open_or_create(collection, encoder, config, **settings) as engine:
        path = engine.collection.path
        try:
            _configure(engine, has_vectors, mode, groups, fields)
            total = len(vectors) if is_array else count_records(corpus, reading["choice"])
            if (stored := len(engine)) and not as_json:
                note(f"{counted(stored, 'document')} stored already; unchanged ones are skipped")
            folder = partial(MirrorOptions, **add, **reading)
            if watch:
                _watch(engine, corpus, folder, as_json)
                return
            with indexing(total) as (on_read, on_step):
                add |= {"progress": on_read, "building": on_step}
                if prune:
                    mirroring = folder(progress=on_read, building=on_step)
                    summary = engine.mirror(corpus, mirroring, unread=unread, on_bad=on_bad)
                else:
                    if is_array:
                        documents = _numbered(engine, corpus, vectors, key_prefix)
                    else:
                        documents = read_corpus(corpus, on_bad, unread=unread, **reading)
                        documents = _noting_textless(documents) if has_vectors else documents
                    summary = engine.add(documents, vectors, passages=passages, **add)
        except BaseException as error:
            _clean_up(engine, error, is_new)
            may_skip = not (has_vectors or skip_bad)
            if (explained := _explained(error, malformed, unread, may_skip)) is not None:
                raise explained from error
            raise
        documents_now = engine.stats().documents
    seconds = round(time.monotonic() - started, 2)
    outcome = _outcome(path, documents_now, summary, malformed, unread, seconds)
    show_json(outcome) if as_json else _show(outcome, unread.sentence())


def _check_usage(corpus: str, prune: bool, watch: bool, has_vectors: bool) -> None:
    """Raise UsageError unless a corpus to be kept in step is a folder of files."""
    if (prune or watch) and (has_vectors or not Path(corpus).is_dir()):
        name = "--watch" if watch else "--prune"
        raise click.UsageError(
            f"{name} needs a folder of files, got {corpus}; leave {name} out, or name a folder"
        )


def _configure(
    engine: Any, has_vectors: bool, mode: str | None, synonyms: Any, fields: tuple[str, ...]
) -> None:
    """Set the default mode, store synonyms, and index fields. Raises QueryError: no encoder."""
    if not has_vectors and not engine.encodes:
        raise QueryError(
            f"{engine.collection.path} has no encoder; pass the vectors of the documents: "
            "--vectors FILE.npy"
        )
    if mode is not None:
        engine.set_default(mode)
    if synonyms is not None:
        engine.set_synonyms(synonyms)
    if fields:
        engine.index_fields(*fields)


def _clean_up(engine: Any, error: BaseException, is_new: bool) -> None:
    """Remove a new collection without documents. Raise Exit after Ctrl-C or a signal."""
    is_stop = isinstance(error, KeyboardInterrupt | Terminated)
    committed = len(engine) if is_stop else 0
    if is_new:
        engine.collection.remove_if_empty()
    if is_stop:
        message = "Interrupted before the first commit; nothing was changed"
        if committed:
            are = f"{counted(committed, 'document')} {'is' if committed == 1 else 'are'}"
            path = engine.collection.path
            message = f"Interrupted; {are} committed in {path}, "
            message += "the same command continues from there"
        raise stopped(error, message) from None


def _explained(
    error: BaseException, malformed: LeftOut, unread: "Unread", may_skip: bool
) -> BaseException | None:
    """An error with what was left out if there is nothing to index, or with a way out.

    None: as it is. `may_skip`: whether --skip-bad could be given.
    """
    if isinstance(error, EmptyCorpus):
        left_out, noun = (malformed, "record") if malformed.count else (unread.failed, "file")
        if left_out.count:
            bad = f"{noun} is" if left_out.count == 1 else f"{noun}s are"
            first = f"{left_out.count} {bad} bad, the first: {left_out.first[0]}"
            return EmptyCorpus(f"{error}; {first}")
    elif isinstance(error, CorpusError | DuplicateKey) and may_skip:
        if not isinstance(error, UnknownFields | UnreadableFile):
            return type(error)(f"{error} (--skip-bad skips malformed records)")
    return None


def _reading(options: dict[str, Any], *, needs_text: bool) -> dict[str, Any]:
    """Take `columns` and `choice` of read_corpus from the options of a command."""
    from searchengine.corpus.formats.kinds import FileChoice
    from searchengine.corpus.tabular import Columns

    names = {name: options.pop(f"{name}_field") for name in ("text", "title", "id")}
    as_text, ignored = (frozenset(options.pop(name)) for name in ("as_text", "ignore"))
    return {
        "columns": Columns(**names, needs_text=needs_text),
        "choice": FileChoice(as_text, ignored, gitignore=not options.pop("no_gitignore")),
    }


def _numbered(
    engine: Any, corpus: str, vectors: Any, key_prefix: str | None
) -> "Iterator[Document]":
    """A document without text for each row of a file of vectors."""
    from searchengine.corpus.documents import Document
    from searchengine.ingest.supplied import check_numbers

    if key_prefix is None:
        check_numbers(engine.collection, vectors, corpus)
    return (Document(f"{key_prefix or ''}{i}", "") for i in range(len(vectors)))


def _noting_textless(documents: "Iterable[Document]") -> "Iterator[Document]":
    """Yield the documents; at the end print how many have no text, though vectors came with them.

    Their text may be in a field of another name.
    """
    textless = 0
    for document in documents:
        textless += not document.full_text
        yield document
    if textless:
        note(f"{counted(textless, 'document')} without text; --text-field names another field")


def _check_apart(corpus: Path, collection: Path) -> None:
    """Refuse a collection at the path of its corpus or above it: creating it could destroy files.

    A collection inside the corpus does no harm: folders that hold a collection are not read.
    """
    if corpus == STDIN:
        return
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


def _holds_vectors(corpus: str) -> bool:
    """Whether a corpus is a file of vectors, without documents."""
    return Path(corpus).suffix == ".npy"


def _supplied(corpus: str, vectors: Path | None, passages: Path | None) -> tuple[Any, Any]:
    """Return an array of vectors and their passages; None without."""
    if _holds_vectors(corpus):
        if vectors is not None:
            raise click.UsageError(
                f"{corpus} holds vectors; leave --vectors out, or name the documents instead"
            )
        vectors = Path(corpus)
    if passages is not None and (vectors is None or _holds_vectors(corpus)):
        raise click.UsageError("--passages-from needs documents and --vectors FILE.npy")
    if vectors is None:
        return None, None
    lines = None if passages is None else (line for _, line in read_jsonl(passages))
    # The export of a collection without vectors has passages, and no rows.
    return _read_vectors(vectors, may_be_empty=passages is not None), lines


def _read_vectors(path: Path, *, may_be_empty: bool) -> Any:
    """The array (n, D) of a .npy file, mapped: its rows are read when they are used.

    Raises CorpusError for a missing, malformed or empty file, and for anything but numbers.
    """
    import numpy as np  # not at the top: the command line's help does not wait for it

    if path.is_dir():
        raise bad(path, "is a folder, expected a .npy file of vectors")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        raise bad(
            path, f"cannot be read as a .npy file ({error}); write it by numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise bad(path, f"expected {_VECTORS}, got several arrays (.npz); save one by numpy.save")
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise bad(path, f"expected {_VECTORS}, got {array.dtype} of shape {array.shape}")
    rows, dim = array.shape
    if not dim or not (rows or may_be_empty):
        raise bad(path, f"holds no vectors (shape {array.shape})")
    return array


_COUNTS = ("added", "changed", "metadata_updated", "removed", "unchanged")


def _outcome(
    collection: Path | str,
    documents: int,
    summary: Any,
    malformed: LeftOut,
    unread: "Unread",
    seconds: float | None = None,
    problem: str | None = None,
) -> dict[str, Any]:
    """The result of a run, or of a pass of --watch, with the same keys for every one.

    `summary`: an AddSummary; None if the pass failed. `seconds`: wall time; None for a pass.
    """
    added = LeftOut() if summary is None else summary.bad
    left_out = {
        "without_text": LeftOut() if summary is None else summary.without_text,
        "repeated": LeftOut() if summary is None else summary.repeated,
        "bad": LeftOut(malformed.count + added.count, [*malformed.first, *added.first][:1000]),
        "unreadable": unread.failed,
    }
    return {
        "collection": str(collection),
        **{name: getattr(summary, name, 0) for name in _COUNTS},
        "documents": documents,
        "seconds": seconds,
        "skipped": dict(unread.kinds),
        "encodings": dict(unread.encodings),
        **{name: asdict(records) for name, records in left_out.items()},
        "problem": problem,
    }


def _show(outcome: dict[str, Any], skipped: str, folder: str = "") -> None:
    """Print how many documents were added and left out, with the first messages.

    `folder`: the one that is watched.
    """
    most, names = 10, _COUNTS[:-1] if folder else _COUNTS  # a watcher reads what changed
    changes = ", ".join(f"{outcome[name]} {_words(name)}" for name in names if outcome[name])
    total, end = counted(outcome["documents"], "document"), f"in {outcome['seconds']} s"
    if folder:
        end = f"watching {folder}, Ctrl-C ends"
    note(f"{changes or '0 added'} in {outcome['collection']}, {total} now, {end}")
    for name in ("without_text", "repeated", "bad", "unreadable"):
        count, lines = outcome[name]["count"], outcome[name]["first"][:most]
        if count > most:
            lines.append(f"… and {count - most} more; --json lists the first 1000")
        if count:
            note("\n  ".join([f"{count} {_words(name)}, left out:", *lines]))
    if encodings := sorted(outcome["encodings"].items(), key=lambda item: -item[1]):
        note(f"not UTF-8 and converted: {', '.join(f'{n:,} in {name}' for name, n in encodings)}")
    if skipped:
        note(skipped)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _watch(
    engine: Any, folder: str, options: Callable[..., "MirrorOptions"], as_json: bool
) -> None:
    """Keep a collection equal to a folder, and print each pass, until Ctrl-C or SIGTERM."""
    collection, documents, shown, first = engine.collection.path, 0, "", Pulse()

    def on_read(count: int, _: int) -> None:
        if not documents:  # the first pass may take long
            first("Indexing", count, None)

    try:
        for update in engine.watch(folder, options(progress=on_read)):
            documents, problem, unread = update.documents, update.problem, update.unread
            parts = documents, update.summary, update.malformed, unread
            outcome = _outcome(collection, *parts, problem=problem or None)
            if as_json:
                show_json_line(outcome)
            elif problem:
                note(f"{problem}; trying again")
            else:
                skipped = unread.sentence()
                _show(outcome, "" if skipped == shown else skipped, folder)
                shown = skipped or shown
    except (KeyboardInterrupt, Terminated) as stop:
        held = f"{collection} has {counted(documents, 'document')}"
        message = f"Stopped watching {folder}; {held}, the same command continues from there"
        raise stopped(stop, message) from None
