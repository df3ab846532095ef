"""Files, folders, database tables and standard input → a stream of documents.

Records: JSON Lines (.jsonl, .ndjson), CSV and TSV (a header line each; TSV without quoting), .json,
Parquet, Arrow, and tables of SQLite. Texts: .txt, Markdown, HTML, Word, EPUB, and the pages of PDF.
Field names as in BEIR: `_id` (or `id`), `title`, `text`, or as corpus.columns has them; every other
field becomes metadata. A CSV cell that reads like a number (12, -3.50; not 007 or 1e3) or true and
false becomes a number or truth value. How keys are chosen: docs/indexing.md.

Whatever a file holds, memory stays bounded: no line, row or text may be longer than 64 MiB, and
what a parser reads is read in a process with limits (corpus.formats.parser).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from searchengine.corpus.columns import Columns, check_text
from searchengine.corpus.documents import Document
from searchengine.corpus.folder import LINES, Unread, files_below, holds_records, is_readable
from searchengine.corpus.formats.kinds import SQLITE, SQLITE_SUFFIXES, kind_of
from searchengine.corpus.formats.parser import Parser
from searchengine.corpus.lines import STDIN, OnBad, bad, kind, read_jsonl, report
from searchengine.corpus.sources import Source, source_of
from searchengine.corpus.tables import DIALECTS, read_table
from searchengine.corpus.texts import check_name, read_file, root_of
from searchengine.errors import CorpusError, EmptyCorpus, QueryError

_QUICK_BYTES = 1 << 28  # a file of this size is counted without a noticeable delay
_HASH_DIGITS = 32  # of SHA-256: 128 bits
_READABLE = (
    "a .jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt, .md, .html, .docx, .epub or .pdf file, "
    "or a folder of such files"
)


def check_corpus(corpus: str | Path) -> Path:
    """The path of an existing corpus, "-" for standard input. Raises CorpusError."""
    path = source_of(corpus).path
    try:
        if path != STDIN and not path.exists():
            raise bad(path, "no such file or folder")
    except OSError as error:
        raise _unreadable(path, error) from error
    return path


def read_corpus(
    corpus: str | Path,
    on_bad: OnBad | None = None,
    *,
    key_prefix: str = "",
    record_keys: str = "content",
    columns: Columns | None = None,
    unread: Unread | None = None,
    files: Sequence[Path] | None = None,
) -> Iterator[Document]:
    """Stream the documents of a corpus in order.

    A malformed record raises CorpusError ("file:line: …"), or is passed to `on_bad`, and reading
    goes on. A missing or unreadable file, or one without a text field, raises, unless it is one of
    a folder and `unread` is there to take its message. A named pipe is read as it fills.

    Args:
        corpus: a file or folder; "sqlite:///FILE?table=NAME"; "-", JSON Lines from standard input.
        on_bad: called with the error of every malformed record.
        key_prefix: text put before the keys of files and of records without an id.
        record_keys: the key of a record without an id: "content", a hash of the record; or
            "position", its number in the file, for collections of older versions.
        columns: the fields that hold text, title and key.
        unread: counts the files of a folder that are skipped or cannot be read.
        files: only these files of a folder; None: all of `folder_files`.
    """
    if record_keys not in ("content", "position"):
        raise QueryError(f"record_keys must be 'content' or 'position', got {record_keys!r}")
    keys = _Keys(key_prefix, record_keys == "content")
    columns = Columns() if columns is None else columns
    path, source = check_corpus(corpus), source_of(corpus)
    try:
        if not path.is_dir():
            return _read_one(source, on_bad, keys, columns)
        if files is None and (beir := beir_corpus(path)):
            return _read_one(Source(beir), on_bad, keys, columns)
        listed = Unread() if unread is None else unread
        found = files_below(path, listed) if files is None else files
    except OSError as error:
        raise _unreadable(path, error) from error
    if unread is None:
        for message in listed.failed.first:
            report(CorpusError(message), on_bad)
    if files is None and not found:
        what = f"no files to read in this folder; expected {_READABLE}. {listed.sentence()}"
        raise EmptyCorpus(str(bad(path, what.strip())))
    if files is None:
        _check_fields(path, columns, found)
    return _read_folder(found, path, on_bad, keys, columns, unread)


def read_slice(
    path: Path, span: tuple[int, int], on_bad: OnBad | None, columns: Columns
) -> Iterator[Document]:
    """The records of the lines that begin in the bytes [start, end) of a file of JSON Lines.

    Errors and `on_bad` as for `read_corpus`. Keys that are generated may differ from those that
    `read_corpus` generates.
    """
    records = _named(read_jsonl(path, on_bad, span), on_bad, columns, is_first=span[0] == 0)
    return _to_documents(records, on_bad, _Keys("", True), columns.needs_text)


def folder_files(folder: Path, unread: Unread) -> list[Path]:
    """The files of a folder that are read, sorted; others are counted in `unread`.

    Raises OSError, and CorpusError for a folder in BEIR's format.
    """
    if beir := beir_corpus(folder):
        raise bad(folder, f"has the records of {beir.name}, not a file for each document")
    return files_below(folder, unread)


def count_records(corpus: str | Path) -> int | None:
    """Approximate number of documents, for a progress bar; None if counting takes long."""
    source = source_of(corpus)
    path = source.path
    try:
        if path.is_dir():
            beir = beir_corpus(path)
            return count_records(beir) if beir else _count_texts(files_below(path, Unread()))
        if kind_of(path) is not None:
            return _count_texts([path])
        if kind(path) not in LINES or not path.is_file():
            return None
        if path.suffix == ".gz" or path.stat().st_size > _QUICK_BYTES:
            return None
        with open(path, "rb") as file:
            lines = sum(1 for _ in file)
    except OSError:
        return None  # reading it reports the error
    return max(lines - 1, 0) if kind(path) in DIALECTS else lines


def _count_texts(files: Sequence[Path]) -> int | None:
    """The number of files, if each is one document; None if one of them may hold several."""
    several = holds_records(files) or any(kind(f) in (".pdf", ".epub") for f in files)
    return None if several else len(files)


def _unreadable(path: Path, error: OSError) -> CorpusError:
    return bad(error.filename or path, f"cannot be read ({error.strerror or error})")


def beir_corpus(folder: Path) -> Path | None:
    """The file with the documents of a folder in BEIR's format; None for another folder."""
    inner = (folder / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
    return next((file for file in inner if file.is_file()), None)


def _check_fields(path: Path, columns: Columns, files: Sequence[Path]) -> None:
    """Refuse names of fields where there are only texts."""
    if columns.chosen and not holds_records(files):
        raise bad(path, f"text files have no fields; leave {' and '.join(columns.chosen)} out")


# ---------------------------------------------------------------------------- files and folders


def _read_one(
    source: Source, on_bad: OnBad | None, keys: "_Keys", columns: Columns
) -> Iterator[Document]:
    """The documents of a single file or table. Raises CorpusError for an unknown format."""
    path = source.path
    is_database = source.table is not None or kind(path) in SQLITE_SUFFIXES
    if not is_database and path != STDIN:
        if not is_readable(path):
            raise bad(path, f"expected {_READABLE}")
        _check_fields(path, columns, [path])
    return _opened(source, on_bad, keys, columns)


def _opened(
    source: Source, on_bad: OnBad | None, keys: "_Keys", columns: Columns
) -> Iterator[Document]:
    path = source.path
    found = None if source.table is not None else kind_of(path)
    holds_text = found is not None and not found.records
    if holds_text:
        keys = replace(keys, file=path.name, root=root_of(path.parent))
    with Parser() as parser:
        try:
            yield from _documents(source, on_bad, keys, columns, parser)
        except CorpusError as error:
            if not holds_text or not path.exists():
                raise
            report(error, on_bad)  # a file of texts can be left out like a record


def _read_folder(
    files: Sequence[Path],
    root: Path,
    on_bad: OnBad | None,
    keys: "_Keys",
    columns: Columns,
    unread: Unread | None,
) -> Iterator[Document]:
    """The documents of files below a folder; a file that cannot be read does not stop the rest."""
    keys = replace(keys, root=root_of(root))
    on_record = _leave_file if on_bad is None and unread is not None else on_bad
    with Parser() as parser:
        for file in files:
            inside = replace(keys, file=file.relative_to(root).as_posix())
            encoding = ""
            try:
                check_name(file, "file")
                for document in _documents(Source(file), on_record, inside, columns, parser):
                    encoding = document.metadata.get("encoding", "") if document.file else ""
                    yield document
            except CorpusError as error:
                if unread is not None:
                    unread.failed.add(str(error))
                elif not file.exists():
                    raise
                else:
                    report(error, on_bad)
            if encoding and unread is not None:
                unread.encodings[encoding] += 1


def _leave_file(error: CorpusError) -> None:
    """Leave the rest of a file out because of a malformed record."""
    raise CorpusError(
        f"{error}; the rest of the file was left out, --skip-bad leaves out such records only"
    ) from error


def _documents(
    source: Source, on_bad: OnBad | None, keys: "_Keys", columns: Columns, parser: Parser
) -> Iterator[Document]:
    """The documents of a file. Raises CorpusError."""
    path = source.path
    found = SQLITE if source.table is not None or kind(path) in SQLITE_SUFFIXES else kind_of(path)
    if found is not None and not found.records:
        yield from read_file(path, keys.file, keys.root, found, keys.prefix, parser)
        return
    if found is not None:
        records = _named(parser.records(path, found, source.table or ""), on_bad, columns)
    elif kind(path) in DIALECTS:
        records = read_table(path, on_bad, columns)
    else:
        records = _named(read_jsonl(path, on_bad), on_bad, columns)
    yield from _to_documents(records, on_bad, keys, columns.needs_text)


# ------------------------------------------------------------------------------------------ records


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys for documents that have none.

    Attributes:
        prefix: put before every key that is not an id of a record.
        by_content: the key of a record is a hash of its content, not its position.
        file: path below a folder, for one of its files; it comes before the keys of records. For
            a single file of texts, its name.
        root: absolute path of the folder.
    """

    prefix: str
    by_content: bool
    file: str = ""
    root: str = ""

    def of_record(
        self, record: Mapping[str, Any], position: int, place: str, needs_text: bool, has_key: bool
    ) -> Document:
        """A document from a record. Raises CorpusError."""
        before = f"{self.prefix}{self.file}#" if self.file else self.prefix
        key = "" if has_key else f"{before}{position}"
        document = Document.from_mapping(record, origin=place, key=key, needs_text=needs_text)
        if has_key and self.file:
            document = replace(document, key=before + document.key)
        elif not has_key and self.by_content:
            content = {**document.metadata, "title": document.title, "text": document.text}
            written = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            key = hashlib.sha256(written.encode()).hexdigest()[:_HASH_DIGITS]
            document = replace(document, key=before + key, derived=True)
        return replace(document, root=self.root, file=self.file) if self.file else document


def _named(
    records: Iterable[tuple[str, dict[str, Any]]],
    on_bad: OnBad | None,
    columns: Columns,
    *,
    is_first: bool = True,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Places and records under default names; the first record of a file must name the text."""
    for place, record in records:
        if is_first and columns.needs_text:
            check_text(columns.names(list(record), place), record, place)
        is_first = False
        try:
            yield place, columns.renamed(record, place, strict=False)
        except CorpusError as error:
            report(error, on_bad)


def _to_documents(
    records: Iterable[tuple[str, dict[str, Any]]],
    on_bad: OnBad | None,
    keys: _Keys,
    needs_text: bool,
) -> Iterator[Document]:
    keyed: bool | None = None
    for position, (place, record) in enumerate(records, start=1):
        has_key = "_id" in record or "id" in record
        keyed = has_key if keyed is None else keyed
        try:
            # A record without an id, in a file whose first record has one, is a mistake.
            yield keys.of_record(record, position, place, needs_text, keyed or has_key)
        except CorpusError as error:
            report(error, on_bad)
