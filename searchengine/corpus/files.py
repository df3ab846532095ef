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
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from pathspec import GitIgnoreSpec

from searchengine.corpus.documents import Document, LeftOut
from searchengine.corpus.formats.kinds import (
    AS_THEY_ARE,
    KINDS,
    LINES,
    SQLITE,
    SQLITE_SUFFIXES,
    TABLE,
    TEXT,
    FileChoice,
    Kind,
    Text,
    kind_of,
)
from searchengine.corpus.formats.reading_process import Parser
from searchengine.corpus.tabular import IDS, Columns, check_text, read_table
from searchengine.corpus.text_files import (
    STDIN,
    OnBad,
    bad,
    decode,
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
_DATABASE = "documents.db"  # a folder that holds it is a collection
_SQLITE = "sqlite:"
_TEXTS = ("title", "text")  # fields that are empty where a row has no value
_EXAMPLE = "sqlite:///FILE?table=NAME"
_Rules = tuple[tuple[Path, GitIgnoreSpec], ...]  # folders with a .gitignore, from above


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
        """What it is read as; None: a format that is not read."""
        if self.path == STDIN:
            return LINES
        is_database = self.table is not None or kind(self.path) in SQLITE_SUFFIXES
        return kind_of(self.path, self.choice) or (SQLITE if is_database else None)

    @property
    def is_readable(self) -> bool:
        """Whether a reader exists for the file, by its suffix."""
        return self.format not in (None, SQLITE)

    @property
    def holds_records(self) -> bool:
        """Whether it has records with named fields."""
        return self.format is not None and self.format.records


def source_of(corpus: str | Path, choice: FileChoice = AS_THEY_ARE) -> Source:
    """The source that a text names: a path, "-", or "sqlite:///FILE?table=NAME".

    A relative FILE comes after three slashes, an absolute one after four. Raises CorpusError.
    """
    if isinstance(corpus, Path) or not corpus.startswith(_SQLITE):
        return Source(Path(corpus), choice=choice)
    match = re.fullmatch(r"sqlite:///([^?]+)\?table=([^&]+)", corpus)
    if match is None:
        raise bad(corpus, f"expected {_EXAMPLE}, with four slashes for an absolute path")
    return Source(Path(unquote(match[1])), unquote_plus(match[2]))


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
        failed: messages of files that could not be read.
        encodings: encoding → number of files that were not UTF-8 and were read.
        ignored: number of files and folders that a .gitignore leaves out.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    failed: LeftOut = field(default_factory=LeftOut)
    encodings: Counter[str] = field(default_factory=Counter)
    ignored: int = 0

    def sentence(self) -> str:
        """A sentence on the skipped files, by kind, most frequent first; "" without such files."""
        texts = []
        if total := sum(self.kinds.values()):
            kinds = ", ".join(f"{n:,} {name}" for name, n in self.kinds.most_common())
            texts.append(
                f"{total:,} {'entry' if total == 1 else 'entries'} of other kinds skipped: {kinds}"
            )
        if names := [name for name in self.kinds if name in KINDS]:
            texts.append(f"{KINDS[names[0]].missing} reads {' and '.join(names)}")
        if self.ignored:
            texts.append(f"{self.ignored:,} ignored by .gitignore (--no-gitignore reads them)")
        return "; ".join(texts)


def files_below(folder: Path, unread: Unread, choice: FileChoice = AS_THEY_ARE) -> list[Path]:
    """The files below a folder that have a reader, sorted; others are counted in `unread`.

    Hidden files and folders (.git, .trash, …) and collections are left out, what a .gitignore
    names, and linked folders: they may loop. A folder below it that this user may not read is named
    in `unread`. Raises OSError if another one cannot be read.
    """

    def name(path: Path, error: OSError) -> None:
        if path == folder or not isinstance(error, PermissionError):
            raise error
        unread.failed.add(str(unreadable(path, error)))

    files = []
    missing = cache(attrgetter("missing"))  # finding that out takes a while
    for path in chain.from_iterable(files for _, files in _walk(folder, choice, name, unread)):
        format_ = Source(path, choice=choice).format
        if not path.is_file():
            unread.kinds["linked folder" if path.is_dir() else "broken link or device"] += 1
        elif format_ is None or format_ is SQLITE:
            unread.kinds[path.suffix.lower() or "without a suffix"] += 1
        elif missing(format_):
            unread.kinds[kind(path)] += 1
        else:
            files.append(path)
    return sorted(files)


def is_listed(folder: Path, name: str, choice: FileChoice) -> bool:
    """Whether `files_below` lists the file of this path below the folder, if its reader is there.

    Hidden files and collections are not looked for.
    """
    path = folder
    rules: _Rules = ()
    for part in Path(name).parts:
        rules = _rules_in(path, rules, choice)
        path /= part
        if part in choice.ignored or _is_ignored(path, path.is_dir(), rules):
            return False
    return path.is_file() and Source(path, choice=choice).is_readable and not choice.ignores(path)


def folders_below(folder: Path, choice: FileChoice = AS_THEY_ARE) -> list[Path]:
    """The folder and its subfolders that `files_below` lists, as far as they can be read."""
    return [path for path, _ in _walk(folder, choice, lambda path, error: None, Unread())]


def _walk(
    folder: Path, choice: FileChoice, on_error: Callable[[Path, OSError], None], unread: Unread
) -> Iterator[tuple[Path, list[Path]]]:
    """Each folder with its files and links, without hidden and ignored ones."""
    folders: list[tuple[Path, _Rules]] = [(folder, ())]
    while folders:
        place, rules = folders.pop()
        try:
            with os.scandir(place) as listing:
                entries = [entry for entry in listing if not entry.name.startswith(".")]
        except OSError as error:
            on_error(place, error)
            continue
        if place != folder and any(e.name == _DATABASE and e.is_file() for e in entries):
            continue
        rules, files = _rules_in(place, rules, choice), []
        for entry in entries:
            path, is_folder = Path(entry), entry.is_dir(follow_symlinks=False)
            if entry.name in choice.ignored or (not is_folder and choice.ignores(path)):
                continue
            if _is_ignored(path, is_folder, rules):
                unread.ignored += 1
            elif is_folder:
                folders.append((path, rules))
            else:
                files.append(path)
        yield place, files


def _rules_in(folder: Path, above: _Rules, choice: FileChoice) -> _Rules:
    """The .gitignore files that hold in a folder."""
    file = folder / ".gitignore"
    if choice.gitignore and file.is_file():
        with suppress(CorpusError, ValueError):  # no text, or no patterns
            lines = decode(read_bytes(file), file)[0].splitlines()
            return (*above, (folder, GitIgnoreSpec.from_lines(lines)))
    return above


def _is_ignored(path: Path, is_folder: bool, rules: _Rules) -> bool:
    """Whether .gitignore files leave out a path; the deepest that names it decides."""
    for folder, patterns in reversed(rules):
        name = path.relative_to(folder).as_posix()
        include = patterns.check_file(f"{name}/" if is_folder else name).include
        if include is not None:
            return include
    return False


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
        unread: counts the files of a folder that are skipped or cannot be read, and names the
            parts of files that cannot.
        files: only these files of a folder; None: all of `folder_files`.
        choice: files to read as text, or to leave out.
    """
    columns = Columns() if columns is None else columns
    path, source = check_corpus(corpus), source_of(corpus, choice)
    reader = _Reader(None, on_bad, key_prefix, columns, unread)
    try:
        beir = beir_corpus(path) if files is None else None
        if beir or not path.is_dir():
            source = Source(beir) if beir else source
            if not (source.is_readable or source.format is SQLITE):
                raise bad(source.path, f"expected {_READABLE}")
            _check_fields(path, columns, [source])
            return reader.read([source])
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
    return replace(reader, root=path).read(sources)


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
    try:
        if source.path.is_dir():
            if beir := beir_corpus(source.path):
                return count_records(beir)
            files = files_below(source.path, Unread(), choice)
        elif source.format in (LINES, TABLE):
            packed = source.path.suffix == ".gz" or not source.path.is_file()
            if packed or source.path.stat().st_size > _QUICK_BYTES:
                return None
            with open(source.path, "rb") as file:
                lines = sum(1 for _ in file)
            return max(lines - (source.format is TABLE), 0)
        else:
            files = [source.path]
    except OSError:
        return None  # reading it reports the error
    formats = [replace(source, path=file).format for file in files]
    several = any(format_ is None or format_.records or format_.parts for format_ in formats)
    return None if several else len(files)


def beir_corpus(folder: Path) -> Path | None:
    """The file with the documents of a folder in BEIR's format; None for another folder."""
    inner = (folder / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
    return next((file for file in inner if file.is_file()), None)


def _check_fields(path: Path, columns: Columns, sources: Sequence[Source]) -> None:
    """Refuse names of fields where there are only texts."""
    if columns.chosen and not any(source.holds_records for source in sources):
        raise bad(path, f"text files have no fields; leave {' and '.join(columns.chosen)} out")


@dataclass(slots=True)
class _Reader:
    """Reads the files of a corpus; one that cannot be read does not stop the others.

    Attributes:
        root: the folder; None for a single file or table, whose errors are raised.
        on_bad: takes the error of each malformed record.
        prefix: put before every key that is not an id of a record.
        columns: the fields of records.
        unread: takes the messages about files and their parts.
        above: absolute path of the folder of the file that is read; "" for a single file of
            records.
        file: path of this file below the folder; it comes before the keys of records.
    """

    root: Path | None
    on_bad: OnBad | None
    prefix: str
    columns: Columns
    unread: Unread | None
    above: str = ""
    file: str = ""

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        """The documents of files or tables, in order."""
        if self.root is not None:
            self.above = _check_name(self.root.resolve(), "folder")
        with Parser() as parser:
            for source in sources:
                encoding = ""
                try:
                    self._enter(source)
                    for document in self._documents(source, parser):
                        encoding = document.metadata.get("encoding", "") if document.file else ""
                        yield document
                except CorpusError as error:
                    if self.root is None and source.holds_records:
                        raise
                    if self.root is not None and self.unread is not None:
                        self._lose(error)
                    elif source.path.exists():
                        report(error, self.on_bad)
                    else:
                        raise
                if encoding and self.unread is not None:
                    self.unread.encodings[encoding] += 1

    def _enter(self, source: Source) -> None:
        """Set `above` and `file`."""
        path, root = source.path, self.root
        if root is not None:
            _check_name(path, "file")
            self.file = path.relative_to(root).as_posix()
        elif not source.holds_records:
            self.file, self.above = path.name, _check_name(path.parent.resolve(), "folder")

    def _documents(self, source: Source, parser: Parser) -> Iterator[Document]:
        path, format_ = source.path, source.format
        assert format_ is not None
        if not format_.records:
            yield from self._texts(path, format_, parser)
        elif format_ is TABLE:
            yield from self._keyed(read_table(path, self._leave, self.columns))
        elif format_ is LINES:
            yield from self._keyed(self._named(read_jsonl(path, self._leave)))
        else:
            records = parser.records(path, format_, source.table or "")
            yield from self._keyed(self._named(records, format_.rows))

    def _lose(self, error: CorpusError) -> None:
        """Report a file, or a part of one, that cannot be read."""
        if self.unread is None:
            report(error, self.on_bad)
        else:
            self.unread.failed.add(str(error))

    def _leave(self, error: CorpusError) -> None:
        """Report a malformed record. Raises CorpusError to leave the rest of its file out."""
        if self.root is not None and self.on_bad is None and self.unread is not None:
            raise CorpusError(
                f"{error}; the rest of the file was left out, --skip-bad leaves out such records "
                "only"
            ) from error
        report(error, self.on_bad)

    def _named(
        self, records: Iterable[tuple[str, dict[str, Any]]], rows: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Places and records under default names; the first record of a file must name the text.

        `rows`: all records have all fields, None where a value is missing; such metadata is left
        out.
        """
        is_first = True
        for place, record in records:
            if is_first and self.columns.needs_text:
                check_text(self.columns.names(list(record), place), record, place)
            is_first = False
            try:
                record = self.columns.renamed(record, place, strict=False)
                if rows:
                    record = {n: v for n, v in record.items() if v is not None or n in _TEXTS}
                yield place, record
            except CorpusError as error:
                self._leave(error)

    def _keyed(self, records: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Document]:
        """Documents from records. A record without an id has a hash of its content as key."""
        before = f"{self.prefix}{self.file}#" if self.file else self.prefix
        needs_text, keyed = self.columns.needs_text, None
        for place, record in records:
            keyed = not IDS.isdisjoint(record) if keyed is None else keyed
            # A record without an id, in a file whose first record has one, is a mistake.
            has_key = keyed or not IDS.isdisjoint(record)
            try:
                key = "" if has_key else "-"  # until its content is known
                document = Document.from_mapping(record, place, key, needs_text=needs_text)
            except CorpusError as error:
                self._leave(error)
                continue
            if not has_key:
                document = replace(document, key=before + _hash(document), derived=True)
            if self.file:
                metadata = {"path": self.file, **document.metadata}  # a record's own path stays
                key = before + document.key if has_key else document.key
                document = replace(
                    document, key=key, metadata=metadata, root=self.above, file=self.file
                )
            yield document

    def _texts(self, path: Path, format_: Kind, parser: Parser) -> Iterator[Document]:
        """The documents of a file. Keys: the path below the root, then "#" and the part, if any.

        The metadata of a file are its path, size in bytes and time of modification (UTC); a field
        of the same name in the file replaces them. The field `unreadable` names what could not be
        read. The title is what the file names, or else the file's name. Raises CorpusError.
        """
        fields = {"path": self.file, **_stat(path)}
        for part in _parts(path, format_, parser):
            metadata = {**fields, **part.metadata}
            if part.headings:
                metadata["headings"] = [asdict(heading) for heading in part.headings]
            if part.lost:
                metadata["unreadable"] = list(part.lost)
            # An empty file is no document, although it has a name; an email has a subject.
            title = part.title or _name(path)
            if not part.text.strip():
                title = part.title if format_.name == "email" else ""
            key = f"{self.prefix}{self.file}{'#' if part.fragment else ''}{part.fragment}"
            yield Document(
                key, part.text, title, metadata, str(path), root=self.above, file=self.file
            )
            for lost in part.lost:
                self._lose(bad(path, lost))


def _hash(document: Document) -> str:
    content = {**document.metadata, "title": document.title, "text": document.text}
    written = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:_HASH_DIGITS]


def _check_name(path: Path, what: str) -> str:
    """The text of a path. Raises CorpusError if it is not UTF-8, which no key could hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise bad(path, f"the name of this {what} is not UTF-8; rename it") from error
    return str(path)


def _parts(file: Path, format_: Kind, parser: Parser) -> Iterator[Text]:
    """The texts of a file. Plain text in UTF-8 needs no parser."""
    if format_ is TEXT:
        data = read_bytes(file)
        with suppress(UnicodeDecodeError):
            text = data.decode("utf-8-sig")
            if "\0" not in text and "\x1b" not in text:  # neither binary nor ISO-2022
                yield Text(text)
                return
    yield from parser.texts(file, format_)


def _stat(file: Path) -> dict[str, Any]:
    try:
        stat = file.stat()
    except OSError as error:
        raise unreadable(file, error) from error
    try:
        modified = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):  # a year beyond 9999
        return {"size": stat.st_size}
    return {"modified": modified, "size": stat.st_size}


def _name(file: Path) -> str:
    """The name of a file as a title."""
    name = Path(file.stem).stem if file.suffix == ".gz" else file.stem
    return name.replace("_", " ").replace("-", " ")
