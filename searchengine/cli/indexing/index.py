"""searchengine index."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.backends.folder.mode import Mode
from searchengine.cli.console import Terminated, note
from searchengine.cli.indexing.indexed import show_summary
from searchengine.cli.indexing.mirroring import mirrors, patience, watch
from searchengine.cli.indexing.reading import columns_of, cuts, passages_of, reads
from searchengine.cli.indexing.vectors import encoder_of, holds_vectors, supplied
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    INDEXED,
    LAYERS,
    SHORTLIST,
    WAIT,
    choice,
    complete_path,
    runs,
    stages,
)
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import LeftOut
from searchengine.corpus.lines import STDIN
from searchengine.errors import (
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    QueryError,
    UnknownFields,
    UnreadableFile,
)
from searchengine.indexer.config import Code, RotationKind, Structure

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document

COMMIT_EVERY = 5000


@click.command()
@click.argument("corpus", shell_complete=complete_path)
@COLLECTION
@click.option(
    "--encoder",
    metavar="PATH",
    shell_complete=complete_path,
    help="Model folder, hub name, or URL#MODEL of an endpoint [default: starter].",
)
@click.option("--prefix", type=click.IntRange(1), help="Dimensions of the prefix [default: 128].")
@click.option("--structure", type=choice(Structure), help="Index structure [default: flat].")
@click.option("--code", type=choice(Code), help="Number format of the prefix [default: fp16].")
@click.option(
    "--rotation",
    type=choice(RotationKind),
    help="Rotation of the vectors [default: pca, or blocks if the encoder learnt one].",
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
    type=stages(),
    help="Reranking stages between prefix and full width: 256:50 reranks the shortlist by "
    "256 dimensions and keeps 50.",
)
@cuts
@click.option(
    "--tokenizer",
    metavar="[" + "|".join(Tokenizer) + "|stem:LANGUAGES]",
    help="Tokenizer for --mode text, such as stem:de,ru [default: by the language of the first "
    "documents].",
)
@click.option(
    "--mode",
    type=choice([Mode.VECTOR, Mode.TEXT, Mode.HYBRID]),
    help="Default mode of searches [default: hybrid; as it is, for an existing collection].",
)
@INDEXED
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    help=f"Documents per commit; a commit survives an interruption [default: {COMMIT_EVERY}; "
    "with --vectors all at once].",
)
@click.option(
    "--key-prefix",
    metavar="TEXT",
    help="Text to put before generated keys: of files, of records without a key, and of the rows "
    "of a .npy file.",
)
@reads
@click.option(
    "--vectors",
    "vector_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Vectors of the documents, which are then not encoded: a .npy file (one row per "
    "document; without --encoder, a new collection has none), or the folder that "
    "`searchengine encode` wrote.",
)
@click.option(
    "--passages-from",
    "passage_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Key, start and end of the passage of each row of --vectors (.jsonl, as `export` "
    "writes it).",
)
@mirrors
@LAYERS
@runs
@WAIT
@AS_JSON
def index(
    corpus: str,
    collection: Path | str,
    encoder: str | None,
    **options: Any,
) -> None:
    """Add the documents of CORPUS to COLLECTION, which is created if needed.

    CORPUS is a folder or a file: text, Markdown, HTML, PDF, .docx or .epub;
    records in .jsonl, .json, .csv, .tsv, .parquet or .arrow; or a .npy file of
    vectors. "sqlite:///FILE?table=NAME" reads a table, "-" JSON Lines from standard
    input. Fields of records: _id, title, text; all others become metadata to
    filter by. The key of a file is its path below CORPUS; the key of a record
    without _id is a hash of its content (docs/indexing.md); the key of a vector
    without a document is its row number, and --key-prefix keeps a second file of
    vectors apart. A document replaces the stored one
    with the same key, and is encoded only if its text differs. After an
    interruption, the same command continues from the last commit. --prune removes
    what is gone from a folder, --watch keeps the collection in step with it.

    \b
    Examples:
        searchengine index notes/ notes.index
        searchengine index notes/ notes.index --watch
        searchengine index papers.csv papers.index --text-field abstract
        searchengine index "sqlite:///app.db?table=posts" posts.index --text-field body
        searchengine index papers.jsonl papers.index --vectors vectors.npy
        searchengine index papers.jsonl papers.index --vectors encoded/
    """
    from searchengine.cli.console import indexing
    from searchengine.corpus.documents import explaining
    from searchengine.corpus.files import check_corpus
    from searchengine.corpus.folder import Unread
    from searchengine.engine import SearchEngine

    as_json, skip_bad = options.pop("as_json"), options.pop("skip_bad")
    fields, every, wait = (options.pop(name) for name in ("fields", "commit_every", "wait"))
    vectors, passages, encoded = supplied(
        corpus, options.pop("vector_file"), options.pop("passage_file")
    )
    if vectors is None:
        every = every or COMMIT_EVERY
    settings = {name: options.pop(name) for name in ("tokenizer", "runtime", "layers")}
    settings["passages"] = passages_of(options)
    mode = options.pop("mode")
    key_prefix, columns = options.pop("key_prefix"), columns_of(options, vectors is None)
    mirror, malformed, unread = options.pop("mirror"), LeftOut(), Unread()
    on_bad = (lambda error: malformed.add(str(error))) if skip_bad else None
    config = {name: value for name, value in options.items() if value is not None}
    if isinstance(collection, Path):
        _check_apart(check_corpus(corpus), collection)
    wait = patience(mirror, corpus, vectors if encoded is None else encoded, wait)
    started = time.monotonic()
    is_new = isinstance(collection, Path) and not collection.exists()
    settings["dim"] = None if vectors is None else vectors.shape[1]
    encoder = encoder_of(encoded, collection, encoder, settings)
    total = None
    with SearchEngine.open_or_create(collection, encoder, config, wait=wait, **settings) as engine:
        try:
            total = _total(corpus, vectors)
            if vectors is None and encoded is None:
                _check_encodes(engine)
            _configure(engine, fields, mode)
            if mirror is not None and mirror.watch:
                watch(engine, corpus, mirror.options(key_prefix or "", columns, every), as_json)
                return
            with (
                explaining(malformed, unread.failed),
                indexing(total) as (on_read, on_step),
            ):
                how = {"skip_bad": skip_bad, "progress": on_read, "building": on_step}
                if mirror is not None:
                    mirrored = mirror.options(key_prefix or "", columns, every, **how)
                    summary = engine.mirror(corpus, mirrored, unread=unread, on_bad=on_bad)
                else:
                    documents = _documents(
                        engine, corpus, vectors, on_bad, key_prefix, columns, unread
                    )
                    summary = engine.add(
                        documents, encoded or vectors, passages=passages, commit_every=every, **how
                    )
        except BaseException as error:
            _clean_up(engine, error, is_new, total)
            if vectors is None and not skip_bad and _skippable(error):
                raise type(error)(f"{error} (--skip-bad skips malformed records)") from error
            raise
        documents_now = engine.stats().documents
    seconds = round(time.monotonic() - started, 2)
    for message in summary.bad.first:
        malformed.add(message)
    malformed.count += summary.bad.count - len(summary.bad.first)
    show_summary(
        engine.collection.path, summary, malformed, unread, documents_now, seconds, as_json
    )


def _configure(engine: Any, fields: tuple[str, ...], mode: str | None) -> None:
    """Index fields, and set the default mode."""
    if mode is not None:
        engine.set_default(mode)
    if fields:
        engine.index_fields(*fields)


def _documents(
    engine: Any,
    corpus: str,
    vectors: Any,
    on_bad: Any,
    key_prefix: str | None,
    columns: Any,
    unread: Any,
) -> Iterable["Document"]:
    """The documents of a corpus; of a file of vectors, their numbers."""
    from searchengine.corpus.documents import numbered
    from searchengine.corpus.files import read_corpus
    from searchengine.ingest.supplied import check_numbers

    if holds_vectors(corpus):
        if key_prefix is None:
            check_numbers(engine.collection, vectors, corpus)
        return numbered(len(vectors), key_prefix or "")
    documents = read_corpus(
        corpus,
        on_bad,
        key_prefix=key_prefix or "",
        record_keys=engine.collection.settings.get("record_keys", "content"),
        columns=columns,
        unread=unread,
    )
    return documents if columns.needs_text else _noting_textless(documents)


def _noting_textless(documents: Iterable["Document"]) -> Iterator["Document"]:
    """Yield the documents; at the end print how many have no text, though vectors came with them.

    Their text may be in a field of another name.
    """
    from searchengine.cli.console import counted

    textless = 0
    for document in documents:
        textless += not document.full_text
        yield document
    if textless:
        note(f"{counted(textless, 'document')} without text; --text-field names another field")


def _skippable(error: BaseException) -> bool:
    """Return whether --skip-bad would leave out the record that the error is about."""
    bad_record = isinstance(error, CorpusError | DuplicateKey)
    return bad_record and not isinstance(error, EmptyCorpus | UnknownFields | UnreadableFile)


def _total(corpus: str, vectors: Any) -> int | None:
    """Return the number of documents, for the progress bar; None if counting takes long."""
    from searchengine.corpus.files import count_records

    return len(vectors) if holds_vectors(corpus) else count_records(corpus)


def _check_encodes(engine: Any) -> None:
    """Raise QueryError if the collection has no encoder."""
    from searchengine.encoders.protocol import NoEncoder

    if isinstance(engine.encoder, NoEncoder):
        raise QueryError(
            f"{engine.collection.path} has no encoder; pass the vectors of the documents: "
            "--vectors FILE.npy"
        )


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


def _clean_up(engine: Any, error: BaseException, is_new: bool, total: int | None) -> None:
    """Remove a new collection without documents. Raise Exit after Ctrl-C or a signal.

    `total`: the number of documents to add, if it is known.
    """
    stopped = isinstance(error, KeyboardInterrupt | Terminated)
    kept = _committed(engine) if stopped else 0
    if is_new:
        engine.collection.remove_if_empty()
    if stopped:
        note(_interrupted(engine.collection.path, kept, total))
        status = error.status if isinstance(error, Terminated) else 1
        raise click.exceptions.Exit(status) from None


def _committed(engine: Any) -> int:
    """Return the number of documents of the last commit, which may not have been shown."""
    engine.refresh()
    return int(engine.stats().documents)


def _interrupted(collection: Path | str, kept: int, total: int | None) -> str:
    """Describe the state after Ctrl-C or a signal ended the run."""
    from searchengine.cli.console import counted

    if not kept and total == 1:
        return "Interrupted; nothing was stored yet, because a document is committed whole"
    if not kept:
        return (
            "Interrupted before the first commit; nothing was changed "
            "(--commit-every N commits sooner)"
        )
    are = "is" if kept == 1 else "are"
    way = "the same command continues from there"
    if total == 1:
        way = "and each is committed whole: the same command begins again with this one"
    return f"Interrupted; {counted(kept, 'document')} {are} committed in {collection}, {way}"
