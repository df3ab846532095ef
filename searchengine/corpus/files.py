"""Files, folders, database tables and standard input → a stream of documents.

Records: JSON Lines (.jsonl, .ndjson), CSV and TSV (a header line each; TSV without quoting), .json,
Parquet, Arrow, and tables of SQLite. Texts: .txt, Markdown, HTML, Word, EPUB, and the pages of PDF.
Field names as in BEIR: `_id` (or `id`), `title`, `text`, or as corpus.tabular has them; every other
field becomes metadata. A CSV cell that reads like a number (12, -3.50; not 007 or 1e3) or true and
false becomes a number or truth value. How keys are chosen: docs/indexing.md.

Whatever a file holds, memory stays bounded: no line, row or text may be longer than 64 MiB, and
what a parser reads is read in a process with limits (corpus.formats.reading_process).
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from searchengine.corpus.documents import Document, LeftOut
from searchengine.corpus.formats.kinds import (
    AS_THEY_ARE,
    KINDS,
    SQLITE,
    SQLITE_SUFFIXES,
    TEXT,
    FileChoice,
    Kind,
    Text,
    kind_of,
)
from searchengine.corpus.formats.reading_process import Parser
from searchengine.corpus.tabular import TABLES, Columns, check_text, read_table
from searchengine.corpus.text_files import (
    STDIN,
    OnBad,
    bad,
    kind,
    read_bytes,
    read_jsonl,
    report,
    unreadable,
)
from searchengine.errors import CorpusError, EmptyCorpus

_QUICK_BYTES = 1 << 28  # a file of this size is counted without a noticeable delay
_HASH_DIGITS = 32  # of SHA-256: 128 bits
_READABLE = (
    "a .jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt, .md, .html, .docx, .pptx, .xlsx, .eml, "
    ".epub or .pdf file, a source file, or a folder of such files; --as-text reads others as text"
)
LINES = {".jsonl", ".ndjson", *TABLES}
"""Suffixes of records that are read line by line."""
_DATABASE = "documents.db"  # a folder that holds it is a collection
_SQLITE = "sqlite:"
_EXAMPLE = "sqlite:///FILE?table=NAME"


# ------------------------------------------------------------------------------ sources and folders


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus.

    Attributes:
        path: a file or folder; "-" for standard input.
        table: of a SQLite database; None: not a database.
        choice: files to read in another way than their suffix says.
    """

    path: Path
    table: str | None = None
    choice: FileChoice = AS_THEY_ARE

    @property
    def format(self) -> Kind | None:
        """What a parser reads; None: lines of records, or a format that is not read."""
        format_ = None if self.table is not None else kind_of(self.path, self.choice)
        is_database = self.table is not None or kind(self.path) in SQLITE_SUFFIXES
        return SQLITE if is_database and format_ is None else format_

    @property
    def is_readable(self) -> bool:
        """Whether a reader exists for the file, by its suffix."""
        return kind(self.path) in LINES or kind_of(self.path, self.choice) is not None

    @property
    def holds_records(self) -> bool:
        """Whether it has records with named fields."""
        format_ = self.format
        return format_.records if format_ is not None else kind(self.path) in LINES


def source_of(corpus: str | Path, choice: FileChoice = AS_THEY_ARE) -> Source:
    """The source that a text names: a path, "-", or "sqlite:///FILE?table=NAME".

    A relative FILE comes after three slashes, an absolute one after four. Raises CorpusError.
    """
    if isinstance(corpus, Path) or not corpus.startswith(_SQLITE):
        return Source(Path(corpus), choice=choice)
    try:
        parts = urlsplit(corpus)
        query = parse_qs(parts.query, strict_parsing=True, keep_blank_values=True)
    except ValueError as error:
        raise bad(corpus, f"expected {_EXAMPLE} ({error})") from error
    file = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not file or list(query) != ["table"] or len(query["table"]) > 1:
        raise bad(corpus, f"expected {_EXAMPLE}, with four slashes for an absolute path")
    return Source(Path(file), query["table"][0])


def check_corpus(corpus: str | Path) -> Path:
    """The path of an existing corpus, "-" for standard input. Raises CorpusError."""
    path = source_of(corpus).path
    try:
        if path != STDIN and not path.exists():
            raise bad(path, "no such file or folder")
    except OSError as error:
        raise unreadable(path, error) from error
    return path


@dataclass(slots=True)
class Unread:
    """Files of a folder without documents.

    Attributes:
        kinds: suffix → number of files of a format that is not read, and what else was passed
            over, such as links to folders.
        missing: suffix → what to install to read it.
        failed: messages of files that could not be read.
        encodings: encoding → number of files that were not UTF-8 and were read.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    missing: dict[str, str] = field(default_factory=dict)
    failed: LeftOut = field(default_factory=LeftOut)
    encodings: Counter[str] = field(default_factory=Counter)

    def sentence(self) -> str:
        """A sentence on the skipped files, by kind, most frequent first; "" without such files."""
        if not self.kinds:
            return ""
        total = sum(self.kinds.values())
        kinds = ", ".join(f"{n:,} {name}" for name, n in self.kinds.most_common())
        text = f"{total:,} {'entry' if total == 1 else 'entries'} of other kinds skipped: {kinds}"
        for install in dict.fromkeys(self.missing.values()):
            names = [name for name, how in self.missing.items() if how == install]
            text += f"; {install} reads {' and '.join(names)}"
        return text


def files_below(folder: Path, unread: Unread, choice: FileChoice = AS_THEY_ARE) -> list[Path]:
    """The files below a folder that have a reader, sorted; others are counted in `unread`.

    Hidden files and folders (.git, .trash, …) and collections are left out, and linked folders:
    they may loop. A folder below it that this user may not read is named in `unread`. Raises
    OSError if another one cannot be read.
    """

    def name(path: Path, error: OSError) -> None:
        if path == folder or not isinstance(error, PermissionError):
            raise error
        unread.failed.add(str(unreadable(path, error)))

    files = []
    needs: dict[str, str] = {}  # by suffix: finding that out takes a while
    for entry in chain.from_iterable(entries for _, entries in _walk(folder, name, choice)):
        path = Path(entry)
        if entry.is_dir(follow_symlinks=False) or choice.ignores(path):
            continue
        if not path.is_file():
            unread.kinds["linked folder" if path.is_dir() else "broken link or device"] += 1
            continue
        if not Source(path, choice=choice).is_readable:
            unread.kinds[path.suffix.lower() or "without a suffix"] += 1
            continue
        suffix = "" if choice.reads_as_text(path) else kind(path)
        if suffix not in needs:
            format_ = KINDS.get(suffix)
            needs[suffix] = "" if format_ is None else format_.missing
        if needs[suffix]:
            unread.kinds[suffix] += 1
            unread.missing[suffix] = needs[suffix]
            continue
        files.append(path)
    return sorted(files)


def is_listed(folder: Path, name: str, choice: FileChoice) -> bool:
    """Whether `files_below` lists the file of this path below the folder, if its reader is there.

    Hidden files and collections are not looked for.
    """
    source = Source(folder / name, choice=choice)
    ignored = choice.ignores(source.path) or not choice.ignored.isdisjoint(Path(name).parts)
    return source.path.is_file() and source.is_readable and not ignored


def folders_below(folder: Path, choice: FileChoice = AS_THEY_ARE) -> list[Path]:
    """The folder and its subfolders that `files_below` lists, as far as they can be read."""
    return [path for path, _ in _walk(folder, lambda path, error: None, choice)]


def _walk(
    folder: Path, on_error: Callable[[Path, OSError], None], choice: FileChoice
) -> Iterator[tuple[Path, list["os.DirEntry[str]"]]]:
    """Each folder with its entries, without hidden ones and ignored folders."""
    folders = [folder]
    while folders:
        path = folders.pop()
        try:
            with os.scandir(path) as listing:
                entries = [entry for entry in listing if not entry.name.startswith(".")]
        except OSError as error:
            on_error(path, error)
            continue
        if path != folder and any(e.name == _DATABASE and e.is_file() for e in entries):
            continue
        folders += [
            Path(entry)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and entry.name not in choice.ignored
        ]
        yield path, entries


# ---------------------------------------------------------------------------------------- documents


def read_corpus(
    corpus: str | Path,
    on_bad: OnBad | None = None,
    *,
    key_prefix: str = "",
    columns: Columns | None = None,
    unread: Unread | None = None,
    files: Sequence[Path] | None = None,
    choice: FileChoice = AS_THEY_ARE,
) -> Iterator[Document]:
    """Stream the documents of a corpus in order.

    A malformed record raises CorpusError ("file:line: …"), or is passed to `on_bad`, and reading
    goes on. A missing or unreadable file, or one without a text field, raises, unless it is one of
    a folder and `unread` is there to take its message. A named pipe is read as it fills.

    Args:
        corpus: a file or folder; "sqlite:///FILE?table=NAME"; "-", JSON Lines from standard input.
        on_bad: called with the error of every malformed record.
        key_prefix: text put before the keys of files and of records without an id (their key is a
            hash of the record).
        columns: the fields that hold text, title and key.
        unread: counts the files of a folder that are skipped or cannot be read.
        files: only these files of a folder; None: all of `folder_files`.
        choice: files to read as text, or to leave out.
    """
    keys = _Keys(key_prefix)
    columns = Columns() if columns is None else columns
    path, source = check_corpus(corpus), source_of(corpus, choice)
    try:
        if not path.is_dir():
            return _read_one(source, on_bad, keys, columns)
        if files is None and (beir := beir_corpus(path)):
            return _read_one(Source(beir), on_bad, keys, columns)
        listed = Unread() if unread is None else unread
        readable = files_below(path, listed, choice) if files is None else files
    except OSError as error:
        raise unreadable(path, error) from error
    if unread is None:
        for message in listed.failed.first:
            report(CorpusError(message), on_bad)
    if files is None and not readable:
        what = f"no files to read in this folder; expected {_READABLE}. {listed.sentence()}"
        raise EmptyCorpus(str(bad(path, what.strip())))
    sources = [Source(file, choice=choice) for file in readable]
    if files is None:
        _check_fields(path, columns, sources)
    return _read_folder(sources, path, on_bad, keys, columns, unread)


def folder_files(folder: Path, unread: Unread, choice: FileChoice = AS_THEY_ARE) -> list[Path]:
    """The files of a folder that are read, sorted; others are counted in `unread`.

    Raises OSError, and CorpusError for a folder in BEIR's format.
    """
    if beir := beir_corpus(folder):
        raise bad(folder, f"has the records of {beir.name}, not a file for each document")
    return files_below(folder, unread, choice)


def count_records(corpus: str | Path, choice: FileChoice = AS_THEY_ARE) -> int | None:
    """Approximate number of documents, for a progress bar; None if counting takes long."""
    source = source_of(corpus, choice)
    path = source.path
    try:
        if path.is_dir():
            beir = beir_corpus(path)
            if beir:
                return count_records(beir)
            files = files_below(path, Unread(), choice)
            return _count_texts([Source(file, choice=choice) for file in files])
        if kind_of(path, choice) is not None:
            return _count_texts([source])
        if kind(path) not in LINES or not path.is_file():
            return None
        if path.suffix == ".gz" or path.stat().st_size > _QUICK_BYTES:
            return None
        with open(path, "rb") as file:
            lines = sum(1 for _ in file)
    except OSError:
        return None  # reading it reports the error
    return max(lines - 1, 0) if kind(path) in TABLES else lines


def _count_texts(sources: Sequence[Source]) -> int | None:
    """The number of files, if each is one document; None if one of them may hold several."""
    several = any(s.holds_records or (s.format is not None and s.format.parts) for s in sources)
    return None if several else len(sources)


def beir_corpus(folder: Path) -> Path | None:
    """The file with the documents of a folder in BEIR's format; None for another folder."""
    inner = (folder / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
    return next((file for file in inner if file.is_file()), None)


def _check_fields(path: Path, columns: Columns, sources: Sequence[Source]) -> None:
    """Refuse names of fields where there are only texts."""
    if columns.chosen and not any(source.holds_records for source in sources):
        raise bad(path, f"text files have no fields; leave {' and '.join(columns.chosen)} out")


def _read_one(
    source: Source, on_bad: OnBad | None, keys: "_Keys", columns: Columns
) -> Iterator[Document]:
    """The documents of a single file or table. Raises CorpusError for an unknown format."""
    path = source.path
    if source.format is not SQLITE and path != STDIN:
        if not source.is_readable:
            raise bad(path, f"expected {_READABLE}")
        _check_fields(path, columns, [source])
    return _opened(source, on_bad, keys, columns)


def _opened(
    source: Source, on_bad: OnBad | None, keys: "_Keys", columns: Columns
) -> Iterator[Document]:
    path = source.path
    holds_text = source.format is not None and not source.format.records
    if holds_text:
        keys = replace(keys, file=path.name, root=_root_of(path.parent))
    with Parser() as parser:
        try:
            yield from _documents(source, on_bad, keys, columns, parser)
        except CorpusError as error:
            if not holds_text or not path.exists():
                raise
            report(error, on_bad)  # a file of texts can be left out like a record


def _read_folder(
    sources: Sequence[Source],
    root: Path,
    on_bad: OnBad | None,
    keys: "_Keys",
    columns: Columns,
    unread: Unread | None,
) -> Iterator[Document]:
    """The documents of files below a folder; a file that cannot be read does not stop the rest."""
    keys = replace(keys, root=_root_of(root))
    on_record = _leave_file if on_bad is None and unread is not None else on_bad
    with Parser() as parser:
        for source in sources:
            file = source.path
            inside = replace(keys, file=file.relative_to(root).as_posix())
            encoding = ""
            try:
                _check_name(file, "file")
                for document in _documents(source, on_record, inside, columns, parser):
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
    path, format_ = source.path, source.format
    if format_ is not None and not format_.records:
        yield from _read_texts(path, format_, keys, parser)
        return
    if format_ is not None:
        records = _named(parser.records(path, format_, source.table or ""), on_bad, columns)
    elif kind(path) in TABLES:
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
        file: path below a folder, for one of its files; it comes before the keys of records. For
            a single file of texts, its name.
        root: absolute path of the folder.
    """

    prefix: str = ""
    file: str = ""
    root: str = ""

    def of_record(
        self, record: Mapping[str, Any], place: str, needs_text: bool, has_key: bool
    ) -> Document:
        """A document from a record. Raises CorpusError."""
        before = f"{self.prefix}{self.file}#" if self.file else self.prefix
        key = "" if has_key else "-"  # until its content is known
        document = Document.from_mapping(record, origin=place, key=key, needs_text=needs_text)
        if has_key and self.file:
            document = replace(document, key=before + document.key)
        elif not has_key:
            content = {**document.metadata, "title": document.title, "text": document.text}
            written = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            key = hashlib.sha256(written.encode()).hexdigest()[:_HASH_DIGITS]
            document = replace(document, key=before + key, derived=True)
        if not self.file:
            return document
        metadata = {"path": self.file, **document.metadata}  # a record's own path stays
        return replace(document, metadata=metadata, root=self.root, file=self.file)


def _named(
    records: Iterable[tuple[str, dict[str, Any]]],
    on_bad: OnBad | None,
    columns: Columns,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Places and records under default names; the first record of a file must name the text."""
    is_first = True
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
    for place, record in records:
        has_key = "_id" in record or "id" in record
        keyed = has_key if keyed is None else keyed
        try:
            # A record without an id, in a file whose first record has one, is a mistake.
            yield keys.of_record(record, place, needs_text, keyed or has_key)
        except CorpusError as error:
            report(error, on_bad)


# -------------------------------------------------------------------------------------------- texts


def _root_of(folder: Path) -> str:
    """The absolute path of the folder of files. Raises CorpusError if it is not UTF-8."""
    root = folder.resolve()
    _check_name(root, "folder")
    return str(root)


def _check_name(path: Path, what: str) -> None:
    """Refuse a path that is not UTF-8, which no key could hold. Raises CorpusError."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise bad(path, f"the name of this {what} is not UTF-8; rename it") from error


def _read_texts(file: Path, format_: Kind, keys: _Keys, parser: Parser) -> Iterator[Document]:
    """The documents of a file. Keys: the path below the root, then "#" and the part, if any.

    The metadata of a file are its path, size in bytes and time of modification (UTC); a field of
    the same name in the file replaces them. The title is what the file names, or else the file's
    name. Raises CorpusError.
    """
    fields = {"path": keys.file, **_stat(file)}
    for part in _parts(file, format_, parser):
        metadata = {**fields, **part.metadata}
        if part.headings:
            metadata["headings"] = [asdict(heading) for heading in part.headings]
        # An empty file is no document, although it has a name; an email has a subject.
        title = part.title or _name(file)
        if not part.text.strip():
            title = part.title if format_.name == "email" else ""
        yield Document(
            key=f"{keys.prefix}{keys.file}{'#' if part.fragment else ''}{part.fragment}",
            text=part.text,
            title=title,
            metadata=metadata,
            origin=str(file),
            root=keys.root,
            file=keys.file,
        )


def _parts(file: Path, format_: Kind, parser: Parser) -> Iterator[Text]:
    """The texts of a file. Plain text in UTF-8 needs no parser."""
    if format_ is TEXT:
        data = read_bytes(file)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" not in text and "\x1b" not in text:  # neither binary nor ISO-2022
            yield Text(text)
            return
    yield from parser.texts(file, format_)


def _stat(file: Path) -> dict[str, Any]:
    try:
        stat = file.stat()
    except OSError as error:
        raise unreadable(file, error) from error
    modified = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    return {"modified": modified, "size": stat.st_size}


def _name(file: Path) -> str:
    """The name of a file as a title."""
    name = Path(file.stem).stem if file.suffix == ".gz" else file.stem
    return name.replace("_", " ").replace("-", " ")
