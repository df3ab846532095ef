"""Fill a collection: searchengine index and encode."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.backends.mode import Mode
from searchengine.cli.console import (
    INTERRUPTED,
    Terminated,
    counted,
    indexing,
    note,
    progress,
    show_json,
    show_json_line,
)
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    INDEXED,
    RUNNING,
    SHORTLIST,
    WAIT,
    choice,
    complete_path,
    named,
    runs,
    sectioned,
    stages,
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
from searchengine.indexer.config import MAX_LINKS, Code, RotationKind, Structure

if TYPE_CHECKING:
    import numpy.typing as npt

    from searchengine.corpus.documents import Document
    from searchengine.corpus.files import Unread
    from searchengine.corpus.formats.kinds import FileChoice
    from searchengine.corpus.tabular import Columns
    from searchengine.ingest.folder_sync import MirrorOptions, Pass
    from searchengine.ingest.settings import AddSummary

PATIENCE = 60.0
"""Seconds to wait for another writer while a folder is watched, unless --wait says more."""
_VECTORS = "numbers of shape (n, D), one row per document"

_CUTS = (
    click.option(
        "--overlap",
        type=click.IntRange(0),
        help="Tokens that passages share [default: an eighth of a passage].",
    ),
    click.option(
        "--passage-tokens",
        type=click.IntRange(0),
        help="Tokens per passage [default: as many as fit].",
    ),
    click.option(
        "--passages/--no-passages",
        default=None,
        help="Cut long documents into passages, or keep them whole [default: cut].",
    ),
)
_READS = (
    click.option(
        "--ignore",
        type=suffixes(),
        default=(),
        help="Suffixes or names of files, or names of folders, to leave out: .log,node_modules.",
    ),
    click.option(
        "--as-text",
        type=suffixes(),
        default=(),
        help="Suffixes or names of files to read as plain text: .foo,Makefile.",
    ),
    click.option("--no-gitignore", is_flag=True, help="Read what a .gitignore names too."),
    click.option("--skip-bad", is_flag=True, help="Skip malformed records and count them."),
    click.option("--id-field", metavar="NAME", help="Name of the key field [default: _id or id]."),
    click.option("--title-field", metavar="NAME", help="Name of the title field [default: title]."),
    click.option("--text-field", metavar="NAME", help="Name of the text field [default: text]."),
)


def cuts(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `passages_of` reads."""
    for option in _CUTS:
        command = option(command)
    return command


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `columns_of` and `choice_of` read, and `skip_bad`."""
    for option in _READS:
        command = option(command)
    return command


def columns_of(options: dict[str, Any], needs_text: bool) -> "Columns":
    """Take the fields of records from the options of a command."""
    from searchengine.corpus.tabular import Columns

    names = {name: options.pop(f"{name}_field") for name in ("text", "title", "id")}
    return Columns(**names, needs_text=needs_text)


def choice_of(options: dict[str, Any]) -> "FileChoice":
    """Take the files that are read in another way from the options of a command."""
    from searchengine.corpus.formats.kinds import FileChoice

    as_text, ignored = (frozenset(options.pop(name)) for name in ("as_text", "ignore"))
    return FileChoice(as_text, ignored, gitignore=not options.pop("no_gitignore"))


def passages_of(options: dict[str, Any]) -> Any:
    """Take the passages from the options of a command; None: no preference."""
    from searchengine.ingest.passages import PassageConfig

    wanted = options.pop("passages")
    sizes = {"tokens": options.pop("passage_tokens"), "overlap": options.pop("overlap")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if sizes and wanted is False:
        raise click.UsageError(
            "--no-passages keeps documents whole; leave out --passage-tokens and --overlap"
        )
    return PassageConfig(**sizes) if sizes else wanted


@dataclass(frozen=True, slots=True)
class Mirror:
    """How `index` mirrors a folder.

    Attributes:
        watch: go on until Ctrl-C.
        allow_empty: an empty folder empties its part of the collection.
    """

    watch: bool
    allow_empty: bool

    def options(
        self,
        key_prefix: str,
        columns: "Columns",
        choice: "FileChoice",
        commit_every: int | None,
        **how: Any,
    ) -> "MirrorOptions":
        """For SearchEngine.mirror and watch; `how` as AddOptions has it."""
        from searchengine.ingest.folder_sync import MirrorOptions
        from searchengine.ingest.settings import AddOptions

        add = AddOptions(commit_every=commit_every, **how)
        return MirrorOptions(key_prefix, columns, self.allow_empty, add, choice)


def patience(mirror: Mirror | None, corpus: str, vectors: Any, wait: float) -> float:
    """Seconds to wait for another writer. Raises UsageError if the corpus is no folder of files."""
    if mirror is None:
        return wait
    name = "--watch" if mirror.watch else "--prune"
    if vectors is not None or not Path(corpus).is_dir():
        raise click.UsageError(
            f"{name} needs a folder of files, got {corpus}; leave {name} out, or name a folder"
        )
    return max(wait, PATIENCE) if mirror.watch else wait


def mirrors(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that mirror a folder; the command gets `mirror`, None without them."""

    @functools.wraps(command)
    def with_mirror(prune: bool, watch: bool, allow_empty: bool, **options: Any) -> None:
        if allow_empty and not (prune or watch):
            raise click.UsageError("--allow-empty needs --prune or --watch")
        if watch and options["strict"]:
            raise click.UsageError("--strict is for a run that ends; leave out --strict or --watch")
        command(mirror=Mirror(watch, allow_empty) if prune or watch else None, **options)

    for option in (
        click.option(
            "--allow-empty",
            is_flag=True,
            help="With --prune and --watch, let an empty folder remove all its documents.",
        ),
        click.option(
            "--watch",
            is_flag=True,
            help="Do as --prune, and again whenever the folder changes, until Ctrl-C.",
        ),
        click.option(
            "--prune",
            is_flag=True,
            help="Remove the documents of files that are gone from the folder CORPUS.",
        ),
    ):
        with_mirror = option(with_mirror)
    return with_mirror


@click.command(
    cls=sectioned(
        {
            "What is read": "text_field title_field id_field key_prefix as_text ignore "
            "no_gitignore skip_bad strict",
            "A folder kept in step": "prune watch allow_empty",
            "Vectors of your own": "vector_file passage_file",
            "Passages and words": "passages passage_tokens overlap tokenizer mode synonyms fields",
            "The encoder": f"encoder {RUNNING}",
            "The index": "prefix structure code rotation shortlist effort hnsw_m ef_construction "
            "stages commit_every",
        }
    )
)
@click.argument("corpus", shell_complete=complete_path)
@COLLECTION
@click.option(
    "--encoder",
    metavar="PATH",
    shell_complete=complete_path,
    help="Model folder, hub name, name of the table in docs/encoding.md, or URL#MODEL of an "
    "endpoint [default: starter if it is installed, else leaf; multilingual if it is installed, "
    "and the other does not read most documents].",
)
@click.option("--prefix", type=click.IntRange(1), help="Dimensions of the prefix [default: 128].")
@click.option("--structure", type=choice(Structure), help="Index structure [default: flat].")
@click.option("--code", type=choice(Code), help="Number format of the prefix [default: fp16].")
@click.option(
    "--rotation",
    type=choice(RotationKind),
    help="Rotation that makes the prefix [default: pca].",
)
@SHORTLIST
@click.option(
    "--effort",
    type=click.IntRange(0),
    help="Search effort: ef_search of HNSW, nprobe of IVF [default: set by the shortlist].",
)
@click.option(
    "--links",
    "hnsw_m",
    type=click.IntRange(2, MAX_LINKS),
    help="HNSW links per row [default: 16].",
)
@click.option(
    "--candidates",
    "ef_construction",
    type=click.IntRange(2),
    help="Rows that the HNSW links of a row are chosen from: more take longer and make searches "
    "faster [default: 100].",
)
@click.option(
    "--funnel",
    "stages",
    type=stages(),
    help="Reranking stages between prefix and full width: 256:50 reranks the shortlist by "
    "the encoder's first 256 dimensions and keeps 50.",
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
@click.option(
    "--synonyms",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Synonyms for searches by words, a group on each line: car, automobile. They replace "
    "those that the collection has; an empty file removes them.",
)
@INDEXED
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    help="Documents per commit; a commit survives an interruption [default: what takes half a "
    "minute, at most 20,000 passages].",
)
@click.option(
    "--key-prefix",
    metavar="TEXT",
    help="Text to put before generated keys: of files, of records without a key, and of the rows "
    "of a .npy file.",
)
@reads
@click.option(
    "--strict",
    is_flag=True,
    help="Skip as --skip-bad does, and exit with status 1 if anything was left out.",
)
@click.option(
    "--vectors",
    "vector_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Vectors of the documents, which are then not encoded: a .npy file (one row per "
    "document; without --encoder, a new collection has none).",
)
@click.option(
    "--passages-from",
    "passage_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Key, start and end of the passage of each row of --vectors (.jsonl, as `export` and "
    "`encode` write it).",
)
@mirrors
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

    CORPUS is a folder or a file: text, source, Markdown, HTML, PDF, .docx, .pptx,
    .xlsx, .epub, .eml or .ipynb; records in .jsonl, .json, .csv, .tsv, .parquet or
    .arrow; or a .npy file of vectors. "sqlite:///FILE?table=NAME" reads a table,
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
        searchengine index notes/ notes.index --prune --strict --ignore .png,.zip
        searchengine index papers.csv papers.index --text-field abstract
        searchengine index "sqlite:///app.db?table=posts" posts.index --text-field body
        searchengine index papers.jsonl papers.index --vectors vectors.npy
    """
    from searchengine.corpus.files import Unread, check_corpus, count_records
    from searchengine.engine import SearchEngine

    as_json, strict = options.pop("as_json"), options.pop("strict")
    skip_bad = options.pop("skip_bad") or strict
    fields, commit_every, wait = (options.pop(name) for name in ("fields", "commit_every", "wait"))
    vectors, passages = supplied(corpus, options.pop("vector_file"), options.pop("passage_file"))
    settings = {name: options.pop(name) for name in ("tokenizer", "runtime")}
    settings["passages"] = passages_of(options)
    mode, synonyms = options.pop("mode"), _synonyms(options.pop("synonyms"))
    key_prefix, columns = options.pop("key_prefix"), columns_of(options, vectors is None)
    choice = choice_of(options)
    mirror, malformed, unread = options.pop("mirror"), LeftOut(), Unread()
    on_bad = (lambda error: malformed.add(str(error))) if skip_bad else None
    config = {name: value for name, value in options.items() if value is not None}
    if isinstance(collection, Path):
        _check_apart(check_corpus(corpus), collection)
    wait = patience(mirror, corpus, vectors, wait)
    started = time.monotonic()
    is_new = isinstance(collection, Path) and not collection.exists()
    settings["dim"] = None if vectors is None else vectors.shape[1]
    total = None
    with SearchEngine.open_or_create(collection, encoder, config, wait=wait, **settings) as engine:
        try:
            total = len(vectors) if holds_vectors(corpus) else count_records(corpus, choice)
            if vectors is None:
                _check_encodes(engine)
            _configure(engine, fields, mode, synonyms)
            if total and (stored := _stored(engine)[0]) and not as_json:
                note(f"{counted(stored, 'document')} stored already; unchanged ones are skipped")
            if mirror is not None and mirror.watch:
                watched = mirror.options(key_prefix or "", columns, choice, commit_every)
                _watch(engine, corpus, watched, as_json)
                return
            with (
                explaining(malformed, unread.failed),
                indexing(total, lambda: _stored(engine)[1]) as (on_read, on_step),
            ):
                how = {"skip_bad": skip_bad, "progress": on_read, "building": on_step}
                if mirror is not None:
                    mirrored = mirror.options(
                        key_prefix or "", columns, choice, commit_every, **how
                    )
                    summary = engine.mirror(corpus, mirrored, unread=unread, on_bad=on_bad)
                else:
                    documents = _documents(
                        engine, corpus, vectors, on_bad, key_prefix, columns, unread, choice
                    )
                    summary = engine.add(
                        documents,
                        vectors,
                        passages=passages,
                        commit_every=commit_every,
                        **how,
                    )
        except BaseException as error:
            _clean_up(engine, error, is_new)
            if vectors is None and not skip_bad and _skippable(error):
                raise type(error)(f"{error} (--skip-bad skips malformed records)") from error
            raise
        documents_now = engine.stats().documents
    seconds = round(time.monotonic() - started, 2)
    outcome = Outcome(engine.collection.path, documents_now, summary, malformed, unread, seconds)
    outcome.show(as_json)
    _exit_strict(strict and outcome.incomplete)


def _exit_strict(incomplete: bool) -> None:
    """Exit with status 1 after a run with --strict that has left something out."""
    if incomplete:
        note("--strict: something was left out, so the exit status is 1")
        raise click.exceptions.Exit(1)


def _synonyms(path: Path | None) -> Any:
    """The groups of synonyms of a file, before anything is indexed; None without one."""
    from searchengine.corpus.synonym_groups import read_synonyms

    return None if path is None else read_synonyms(path)


def _configure(engine: Any, fields: tuple[str, ...], mode: str | None, synonyms: Any) -> None:
    """Index fields, set the default mode, and store synonyms."""
    if mode is not None:
        engine.set_default(mode)
    if synonyms is not None:
        engine.set_synonyms(synonyms)
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
    choice: "FileChoice",
) -> Iterable["Document"]:
    """The documents of a corpus; of a file of vectors, their numbers."""
    from searchengine.corpus.documents import Document
    from searchengine.corpus.files import read_corpus
    from searchengine.ingest.supplied import check_numbers

    if holds_vectors(corpus):
        if key_prefix is None:
            check_numbers(engine.collection, vectors, corpus)
        return (Document(f"{key_prefix or ''}{i}", "") for i in range(len(vectors)))
    documents = read_corpus(
        corpus,
        on_bad,
        key_prefix=key_prefix or "",
        columns=columns,
        unread=unread,
        choice=choice,
    )
    return documents if columns.needs_text else _noting_textless(documents)


def _noting_textless(documents: Iterable["Document"]) -> Iterator["Document"]:
    """Yield the documents; at the end print how many have no text, though vectors came with them.

    Their text may be in a field of another name.
    """

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


def _check_encodes(engine: Any) -> None:
    """Raise QueryError if the collection has no encoder."""
    if not engine.encodes:
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


def _clean_up(engine: Any, error: BaseException, is_new: bool) -> None:
    """Remove a new collection without documents. Raise Exit after Ctrl-C or a signal."""
    stopped = isinstance(error, KeyboardInterrupt | Terminated)
    committed = _stored(engine)[0] if stopped else 0
    if is_new:
        engine.collection.remove_if_empty()
    if stopped:
        note(_interrupted(engine.collection.path, committed))
        status = error.status if isinstance(error, Terminated) else INTERRUPTED
        raise click.exceptions.Exit(status) from None


def _stored(engine: Any) -> tuple[int, int]:
    """Return the numbers of documents and passages that are stored."""
    stats = engine.stats()
    return stats.documents, stats.passages


def _interrupted(collection: Path | str, committed: int) -> str:
    """Describe the state after Ctrl-C or a signal ended the run."""
    if not committed:
        return "Interrupted before the first commit; nothing was changed"
    are = "is" if committed == 1 else "are"
    return (
        f"Interrupted; {counted(committed, 'document')} {are} committed in {named(collection)}, "
        "the same command continues from there"
    )


def holds_vectors(corpus: str) -> bool:
    """Whether a corpus is a file of vectors, without documents."""
    return Path(corpus).suffix == ".npy"


def supplied(corpus: str, vectors: Path | None, passages: Path | None) -> tuple[Any, Any]:
    """Return an array of vectors and their passages; None without."""
    if holds_vectors(corpus):
        if vectors is not None:
            raise click.UsageError(
                f"{corpus} holds vectors; leave --vectors out, or name the documents instead"
            )
        vectors = Path(corpus)
    if passages is not None and (vectors is None or holds_vectors(corpus)):
        raise click.UsageError("--passages-from needs documents and --vectors FILE.npy")
    if vectors is None:
        return None, None
    lines = None if passages is None else (line for _, line in read_jsonl(passages))
    return _read_vectors(vectors, may_be_empty=passages is not None), lines


def _read_vectors(path: Path, *, may_be_empty: bool = False) -> "npt.NDArray[Any]":
    """The array (n, D) of a .npy file, mapped: its rows are read when they are used.

    `may_be_empty`: n may be 0, as in the export of a collection without vectors.

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


def _watch(engine: Any, folder: str, options: "MirrorOptions", as_json: bool) -> None:
    """Keep a collection equal to a folder, and print each pass, until Ctrl-C or SIGTERM."""
    collection, documents, shown = engine.collection.path, 0, ""
    try:
        for update in engine.watch(folder, options):
            documents = update.documents
            if as_json:
                problem = update.problem or None
                parts = update.documents, update.summary, update.malformed, update.unread
                show_json_line(Outcome(collection, *parts, problem=problem).as_dict())
            else:
                _show_pass(folder, collection, update)
            skipped = update.unread.sentence()
            if skipped not in ("", shown) and not as_json:
                note(skipped)
                shown = skipped
    except (KeyboardInterrupt, Terminated) as stop:
        note(
            f"Stopped watching {folder}; {collection} has {counted(documents, 'document')}, the "
            "same command continues from there"
        )
        status = stop.status if isinstance(stop, Terminated) else INTERRUPTED
        raise click.exceptions.Exit(status) from None


def _show_pass(folder: str, collection: Path, update: "Pass") -> None:
    total = counted(update.documents, "document")
    if update.problem:
        note(f"{update.problem}; trying again")
        return
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in update.changes.items())
    note(f"{counts or 'nothing new'} in {collection}, {total} now; watching {folder}, Ctrl-C ends")
    bad = [] if update.summary is None else update.summary.bad.first
    for message in (*update.unread.failed.first, *update.malformed.first, *bad):
        note(f"left out: {message}")


_COUNTS = ("added", "changed", "metadata_updated", "moved", "removed", "unchanged")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run of `index`, or of a pass of --watch.

    Attributes:
        collection: path or name.
        documents: documents in the collection now.
        summary: numbers of documents; None if the pass failed.
        malformed: messages of records that were left out before they were documents.
        unread: files that were skipped or could not be read.
        seconds: wall time; None for a pass.
        problem: why the pass failed.
    """

    collection: Path | str
    documents: int
    summary: "AddSummary | None"
    malformed: LeftOut
    unread: "Unread"
    seconds: float | None = None
    problem: str | None = None

    @property
    def left_out(self) -> dict[str, LeftOut]:
        """What was left out, by kind."""
        summary, bad = self.summary, self.malformed
        if summary is not None:
            first = [*bad.first, *summary.bad.first][:1000]
            bad = LeftOut(bad.count + summary.bad.count, first)
        return {
            "without_text": LeftOut() if summary is None else summary.without_text,
            "repeated": LeftOut() if summary is None else summary.repeated,
            "bad": bad,
            "unreadable": self.unread.failed,
        }

    @property
    def incomplete(self) -> bool:
        """Whether content was left out; a record that occurs twice is stored once."""
        counts = {name: records.count for name, records in self.left_out.items()}
        return any((counts | {"repeated": 0}).values()) or bool(self.unread.kinds)

    @property
    def counts(self) -> dict[str, int]:
        """Kind of change → number of documents."""
        return {name: getattr(self.summary, name, 0) for name in _COUNTS}

    def as_dict(self) -> dict[str, Any]:
        """All of it, with the same keys for every run."""
        return {
            "collection": str(self.collection),
            **self.counts,
            "documents": self.documents,
            "seconds": self.seconds,
            "skipped": dict(self.unread.kinds),
            "encodings": dict(self.unread.encodings),
            **{name: asdict(records) for name, records in self.left_out.items()},
            "problem": self.problem,
        }

    def show(self, as_json: bool) -> None:
        """Print the numbers of documents added and left out, or all of it as JSON."""
        if as_json:
            show_json(self.as_dict())
            return
        changes = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in self.counts.items() if n)
        total = counted(self.documents, "document")
        note(f"{changes or '0 added'} in {self.collection}, {total} now, in {self.seconds} s")
        for name, records in self.left_out.items():
            if records.count:
                note(f"{records.count} {name.replace('_', ' ')}, left out:{first_lines(records)}")
        if self.unread.encodings:
            most = self.unread.encodings.most_common()
            note(f"not UTF-8 and converted: {', '.join(f'{n:,} in {name}' for name, n in most)}")
        if sentence := self.unread.sentence():
            note(sentence)


def first_lines(left_out: LeftOut) -> str:
    """Return the first messages, one per line, and the number of further ones."""
    most = 10
    lines = left_out.first[:most]
    if left_out.count > most:
        lines.append(f"… and {left_out.count - most} more; --json lists the first 1000")
    return "".join(f"\n  {line}" for line in lines)


@click.command(
    cls=sectioned(
        {
            "What is read": "text_field title_field id_field as_text ignore no_gitignore skip_bad",
            "Passages": "passages passage_tokens overlap",
            "The encoder and where it runs": f"encoder {RUNNING}",
        }
    )
)
@click.argument("corpus")
@click.argument("output", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--encoder",
    default="starter",
    metavar="PATH",
    help="Model folder, hub name, or URL#MODEL of an endpoint.",
)
@cuts
@reads
@runs
def encode(
    corpus: str, output: Path, encoder: str, runtime: Any, skip_bad: bool, **options: Any
) -> None:
    """Encode the documents of CORPUS into the new folder OUTPUT.

    It holds vectors.npy and, in passages.jsonl, the key and place of the text of
    each row. `index` takes them with the same CORPUS and encodes nothing.
    docs/scale.md has recipes for several machines.

    \b
    Examples:
        searchengine encode papers.jsonl encoded/ --device cuda
        searchengine index papers.jsonl papers.index --encoder starter \\
            --vectors encoded/vectors.npy --passages-from encoded/passages.jsonl
    """
    from searchengine.corpus.files import Unread, count_records, read_corpus
    from searchengine.encoders.loading import load_given
    from searchengine.ingest.passages import PassageReader
    from searchengine.ingest.settings import CollectionSettings
    from searchengine.ingest.supplied import write_vectors

    columns, wanted, choice = columns_of(options, True), passages_of(options), choice_of(options)
    if output.resolve().is_relative_to(Path(corpus).resolve()):
        raise CorpusError(f"{output} is inside the corpus {corpus}; choose a folder elsewhere")
    malformed, unread = LeftOut(), Unread()
    on_bad = (lambda error: malformed.add(str(error))) if skip_bad else None
    loaded = load_given(encoder, runtime)
    cut = CollectionSettings.for_encoder(loaded, passages=True if wanted is None else wanted)
    reader = PassageReader(loaded, cut.passages)
    documents = read_corpus(corpus, on_bad, columns=columns, unread=unread, choice=choice)
    with (
        explaining(malformed, unread.failed),
        progress("Encoding", count_records(corpus, choice)) as report,
    ):
        count, rows = write_vectors(documents, output.absolute(), reader, report)
    note(f"{counted(count, 'document')} in {counted(rows, 'passage')} encoded in {output}")
    for name, left_out in (("bad", malformed), ("unreadable", unread.failed)):
        if left_out.count:
            note(f"{left_out.count} {name}, left out:{first_lines(left_out)}")
    if sentence := unread.sentence():
        note(sentence)


@contextmanager
def explaining(malformed: LeftOut, unreadable: LeftOut) -> Iterator[None]:
    """Add the number of malformed records, or of unreadable files, and the first message, to an
    EmptyCorpus.
    """
    try:
        yield
    except EmptyCorpus as error:
        for left_out, what in ((malformed, "record"), (unreadable, "file")):
            if left_out.count:
                records = f"{what} is" if left_out.count == 1 else f"{what}s are"
                first = left_out.first[0]
                raise EmptyCorpus(
                    f"{error}; {left_out.count} {records} bad, the first: {first}"
                ) from error
        raise
