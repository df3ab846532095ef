"""Files, folders and standard input → a stream of documents.

Which formats there are, which fields hold what and how keys are chosen: docs/indexing.md.

Whatever a file holds, memory stays bounded: no line, row or text may be longer than 64 MiB, and
what a parser reads is read in a process with limits (corpus.formats).
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from searchengine.corpus.contents import (
    IDS,
    STDIN,
    Columns,
    Parts,
    Text,
    bad,
    decode,
    named_records,
    read_bytes,
    read_jsonl,
    read_table,
    read_text,
    unreadable,
)
from searchengine.corpus.documents import Document, LeftOut, is_utf8
from searchengine.corpus.formats import LINES, TABLE, TEXT, Kind, Parser, kind_of
from searchengine.errors import CorpusError, EmptyCorpus, UnreadableFile

_HASH_DIGITS = 32  # of SHA-256: 128 bits
_READABLE = (
    "a .jsonl, .json, .csv, .tsv, .parquet, .txt, .md, .html, .docx, .pptx, .xlsx, .eml, "
    ".epub or .pdf file, a source file, or a folder of such files"
)
_SQLITE = "; of a database pipe the rows: sqlite-utils rows FILE TABLE --nl | searchengine index -"
_HINTS = {".npy": "; vectors come with documents: --vectors FILE.npy", ".db": _SQLITE}
_IGNORED = "ignored by .gitignore (--no-gitignore reads them)"
_NO_TEXT = "has no text; if it shows pictures, run OCR first, for example ocrmypdf"
_DATABASE = "documents.db"  # a folder that holds it is a collection
_Rules = tuple[tuple[Path, GitIgnoreSpec], ...]  # folders with a .gitignore, the deepest first


def check_corpus(corpus: str | Path) -> Path:
    """The path of an existing corpus, "-" for standard input. Raises CorpusError."""
    path = Path(corpus)
    try:
        if path != STDIN and not path.exists():
            raise bad(path, "no such file or folder")
    except OSError as error:
        raise unreadable(path, error) from error
    return path


def _sources(path: Path, unread: "Unread", gitignore: bool) -> list[Path]:
    """The files of a corpus. Raises OSError, and CorpusError for a file of another kind."""
    if path.is_dir():
        return folder_files(path, unread, gitignore)
    if path != STDIN and kind_of(path) is None:
        raise bad(path, f"expected {_READABLE}{_HINTS.get(path.suffix, '')}")
    return [path]


def beir_corpus(folder: Path) -> Path | None:
    """The file with the documents of a folder in BEIR's format; None for another folder."""
    inner = (folder / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
    return next((file for file in inner if file.is_file()), None)


def count_records(corpus: str | Path, gitignore: bool = True) -> int | None:
    """Approximate number of documents, for a progress bar; None for other files than texts.

    A line of JSON Lines and CSV is one.
    """
    total = 0
    with suppress(OSError, CorpusError):  # reading it reports the error
        named = beir_corpus(Path(corpus)) or Path(corpus)
        for path in _sources(named, Unread(), gitignore):
            format_ = kind_of(path)
            if format_ in (LINES, TABLE) and path.suffix != ".gz" and path.is_file():
                with open(path, "rb") as file:
                    total += sum(1 for _ in file)
            elif format_ is None or format_.records or format_.needs:
                return None
            else:
                total += 1
    return total or None


# -------------------------------------------------------------------------------- files of a folder


@dataclass(slots=True)
class Unread:
    """What of a corpus is not read.

    Attributes:
        skip_bad: leave out malformed records; else the first ends the reading of its file.
        kinds: suffix, "linked folder" or the like → number of files and folders that are not read.
        failed: messages of files, and of parts of them, that could not be read.
        bad: messages of malformed records.
    """

    skip_bad: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    failed: LeftOut = field(default_factory=LeftOut)
    bad: LeftOut = field(default_factory=LeftOut)

    def sentence(self) -> str:
        """A sentence on the skipped files, by kind, most frequent first; "" without such files."""
        if not (total := sum(self.kinds.values())):
            return ""
        kinds = ", ".join(f"{n:,} {name}" for name, n in self.kinds.most_common())
        return f"{total:,} {'entry' if total == 1 else 'entries'} of other kinds skipped: {kinds}"


def folder_files(folder: Path, unread: Unread, gitignore: bool = True) -> list[Path]:
    """The files of a folder that are read, sorted; others are counted in `unread`.

    Hidden files and folders (.git, .trash, …) and collections are left out, what a .gitignore
    names, and linked folders: they may loop. A folder below it that cannot be read is named in
    `unread`. Raises OSError if the folder itself cannot, and CorpusError for BEIR's format.
    """
    if beir := beir_corpus(folder):
        raise bad(folder, f"has the records of {beir.name}, not a file for each document")
    if (folder / _DATABASE).is_file():
        raise bad(folder, "is a collection; searchengine copy writes it to a folder or server")
    files = []
    for path in _walk(folder, unread, gitignore):
        if not path.is_file():
            unread.kinds["linked folder" if path.is_dir() else "broken link or device"] += 1
        elif kind_of(path) is None:
            unread.kinds[path.suffix.lower() or "without a suffix"] += 1
        else:
            files.append(path)
    return sorted(files)


def _walk(folder: Path, unread: Unread, gitignore: bool) -> Iterator[Path]:
    """The files and links below a folder, without hidden and ignored ones; see folder_files."""
    folders: list[tuple[Path, _Rules]] = [(folder, ())]
    while folders:  # os.walk is recursive before Python 3.12, so that deep folders break it
        place, rules = folders.pop()
        try:
            entries = [entry for entry in os.scandir(place) if not entry.name.startswith(".")]
        except OSError as error:
            if place == folder:
                raise
            unread.failed.add(unreadable(place, error))
            continue
        if any(entry.name == _DATABASE and entry.is_file() for entry in entries):
            continue
        if gitignore and (file := place / ".gitignore").is_file():
            with suppress(CorpusError, ValueError):  # no text, or no patterns
                lines = decode(read_bytes(file), file)[0].splitlines()
                rules = (place, GitIgnoreSpec.from_lines(lines)), *rules
        found = [(Path(entry), entry.is_dir(follow_symlinks=False)) for entry in entries]
        kept = [each for each in found if not _is_ignored(*each, rules)]
        unread.kinds += Counter({_IGNORED: len(found) - len(kept)})
        folders += [(path, rules) for path, is_folder in kept if is_folder]
        yield from (path for path, is_folder in kept if not is_folder)


def _is_ignored(path: Path, is_folder: bool, rules: _Rules) -> bool:
    """Whether .gitignore files leave out a path; the deepest that names it decides."""
    end = "/" * is_folder
    found = (p.check_file(f"{path.relative_to(at).as_posix()}{end}").include for at, p in rules)
    return bool(next((include for include in found if include is not None), False))


# ---------------------------------------------------------------------------------------- documents


def read_corpus(
    corpus: str | Path,
    unread: Unread | None = None,
    *,
    key_prefix: str = "",
    columns: Columns | None = None,
    files: Sequence[Path] | None = None,
    gitignore: bool = True,
) -> Iterator[Document]:
    """Stream the documents of a corpus in order.

    A malformed record, an unreadable file, or one without a text field raises CorpusError, unless
    `unread` takes the message: of a record if it skips such, of a file if it is one of a folder.

    Args:
        corpus: a file or folder; "-", JSON Lines from standard input.
        unread: takes what is not read; None: the first record, file or part of a file raises.
        key_prefix: text put before the keys of files and of records without an id (their key is a
            hash of the record).
        columns: the fields that hold text, title and key.
        files: only these files of a folder; None: all of `folder_files`.
        gitignore: leave out files that a .gitignore names.
    """
    columns = Columns() if columns is None else columns
    path, listed = check_corpus(corpus), Unread() if unread is None else unread
    path = beir_corpus(path) or path
    try:
        sources = _sources(path, listed, gitignore) if files is None else files
        is_folder = path.is_dir()
        base = path if is_folder else path.parent
        reader = _Reader(base, str(base.resolve()), is_folder, key_prefix, columns, unread)
    except OSError as error:
        raise unreadable(path, error) from error
    if unread is None and listed.failed.count:
        raise CorpusError(listed.failed.first[0])
    if files is None and not sources:
        what = f"no files to read in this folder; expected {_READABLE}. {listed.sentence()}"
        raise EmptyCorpus(str(bad(path, what.strip())))
    kinds = [kind_of(file) or LINES for file in sources if files is None]
    if columns.chosen and kinds and not any(each.records for each in kinds):
        raise bad(path, f"text files have no fields; leave {' and '.join(columns.chosen)} out")
    return reader.read(sources)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the files of a corpus; one that cannot be read does not stop the others."""

    base: Path  # the folder that the paths of files begin at
    root: str  # its absolute path
    is_folder: bool  # whether the corpus is that folder; the errors of a single file are raised
    prefix: str
    columns: Columns
    unread: Unread | None

    def read(self, files: Sequence[Path]) -> Iterator[Document]:
        """The documents of files, in order."""
        with Parser() as parser:
            for path in files:
                format_ = kind_of(path) or LINES  # standard input
                try:
                    has_path = self.is_folder or not format_.records
                    if has_path and not is_utf8(f"{self.root}{path}"):
                        raise bad(path, "its path is not UTF-8; rename the file or its folder")
                    read = self._records if format_.records else self._texts
                    yield from read(path, format_, parser)
                except CorpusError as error:
                    if not self.is_folder:
                        raise
                    self._lose(error)

    def _lose(self, error: CorpusError) -> None:
        """Report a file, or a part of one, that cannot be read."""
        if self.unread is None:
            raise error
        self.unread.failed.add(error)

    def _leave(self, error: CorpusError) -> None:
        """Report a malformed record. Raises CorpusError to leave the rest of its file out."""
        if self.unread is None or not (self.is_folder or self.unread.skip_bad):
            raise error
        if not self.unread.skip_bad:
            how = "the rest of the file was left out, --skip-bad leaves out such records only"
            raise CorpusError(f"{error}; {how}") from error
        self.unread.bad.add(error)

    def _records(self, path: Path, format_: Kind, parser: Parser) -> Iterator[Document]:
        """The documents of a file of records; without an id, their keys are hashes.

        In a folder the path of the file and "#" come before a key.
        """
        if format_ is TABLE:
            records = read_table(path, self._leave, self.columns)
        else:
            records = (
                parser.read(path, format_) if format_.reader else read_jsonl(path, self._leave)
            )
            records = named_records(records, self._leave, self.columns, format_.rows)
        root = self.root if self.is_folder else ""
        file = path.relative_to(self.base).as_posix() if self.is_folder else ""
        needs_text, first_has_id = self.columns.needs_text, None
        for place, record in records:
            has_id = not IDS.isdisjoint(record)
            first_has_id = has_id if first_has_id is None else first_has_id
            # A record without an id, in a file whose first record has one, is a mistake.
            derived = not (has_id or first_has_id)
            key = "-" if derived else ""  # until its content is known
            try:
                document = Document.from_mapping(record, place, key, needs_text=needs_text)
            except CorpusError as error:
                self._leave(error)
                continue
            if derived or file:
                key = _hash(document) if derived else document.key
                key = f"{self.prefix}{file}{'#' if file else ''}{key}"
                metadata = {"path": file, **document.metadata} if file else document.metadata
                document = replace(
                    document, key=key, metadata=metadata, derived=derived, root=root, file=file
                )
            yield document

    def _texts(self, path: Path, format_: Kind, parser: Parser) -> Iterator[Document]:
        """The documents of a file. Keys: the path below the root, then "#" and the part, if any.

        The metadata of a file are its path, size in bytes and time of modification (UTC); a field
        of the same name in the file replaces them. The field `unreadable` names what could not be
        read. The title is what the file names, or else the file's name. Raises CorpusError.
        """
        file = path.relative_to(self.base).as_posix()
        name = Path(path.stem).stem if path.suffix == ".gz" else path.stem
        fields = {"path": file, **_stat(path)}
        parts = read_text(path) if format_ is TEXT else parser.read(path, format_)
        for part, lost in _with_losses(path, parts):
            metadata = {**fields, **part.metadata}
            if lost:
                metadata["unreadable"] = lost
            # An empty file is no document, although it has a name; an email has a subject.
            title = part.title or re.sub("[-_]", " ", name)
            if not part.text.strip():
                title = part.title if format_.name == "email" else ""
            key = f"{self.prefix}{file}{'#' if part.fragment else ''}{part.fragment}"
            yield Document(key, part.text, title, metadata, str(path), self.root, file)
            for what in lost:
                self._lose(bad(path, what))


def _with_losses(path: Path, parts: Parts) -> Iterator[tuple[Text, list[str]]]:
    """The texts of a file, each with what cannot be read behind it; the first also what is before.

    Blank ones of several are left out. Raises CorpusError without any text.
    """
    text, lost = None, list[str]()
    try:
        for part in parts:
            if isinstance(part, str):
                lost.append(part)
            elif part.text or not part.fragment:
                if text is not None:
                    yield text, lost
                    lost = []
                text = part
    except UnreadableFile as error:
        if text is None:
            raise
        what = str(error).removeprefix(f"{path}: ")
        lost.append(f"what follows was not read: {what}")
    if text is None:
        raise bad(path, (lost or [_NO_TEXT])[0])
    yield text, lost


def _hash(document: Document) -> str:
    content = {**document.metadata, "title": document.title, "text": document.text}
    written = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:_HASH_DIGITS]


def _stat(file: Path) -> dict[str, Any]:
    try:
        stat = file.stat()
        modified = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):  # a year beyond 9999
        return {"size": stat.st_size}
    except OSError as error:
        raise unreadable(file, error) from error
    return {"modified": modified, "size": stat.st_size}
