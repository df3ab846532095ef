"""Files → a stream of documents.

JSON Lines (.jsonl, .ndjson), CSV and TSV (a header line each; TSV without quoting), each of them
gzipped or not, and folders of text files (.txt, .md). Field names as in BEIR: `_id` (or `id`),
`title`, `text`, or as corpus.columns has them; every other field becomes metadata. Text is
UTF-8. A table's cells that read like numbers (12, -3.50; not 007 or 1e3) or true and false become
numbers and truth values. How keys are chosen: docs/keys.md.

Whatever a file holds, memory stays bounded: no line, row or text may be longer than 64 MiB.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from searchengine.corpus.columns import Columns, check_text
from searchengine.corpus.documents import Document
from searchengine.corpus.lines import (
    LONGEST,
    OnBad,
    bad,
    kind,
    read_jsonl,
    read_lines,
    report,
    too_long,
)
from searchengine.corpus.tables import DIALECTS, read_table
from searchengine.errors import CorpusError, QueryError

_QUICK_BYTES = 1 << 28  # a file of this size is counted without a noticeable delay
_TEXT_SUFFIXES = {".txt", ".md"}
_HASH_DIGITS = 32  # of SHA-256: 128 bits
_READABLE = "a .jsonl, .csv or .tsv file (.gz too) or a folder of .txt or .md files"


def check_corpus(path: str | Path) -> Path:
    """The path of an existing corpus. Raises CorpusError."""
    path = Path(path)
    try:
        if not path.exists():
            raise bad(path, "no such file or folder")
    except OSError as error:
        raise _unreadable(path, error) from error
    return path


def read_corpus(
    path: str | Path,
    on_bad: OnBad | None = None,
    *,
    key_prefix: str = "",
    record_keys: str = "content",
    columns: Columns | None = None,
) -> Iterator[Document]:
    """Stream the documents of a file or folder in order.

    A malformed record raises CorpusError ("file:line: …"), or is passed to `on_bad`, and reading
    goes on. A missing or unreadable file, or one without a text field, always raises.
    A named pipe is read as it fills.

    Args:
        path: the file or folder.
        on_bad: called with the error of every malformed record.
        key_prefix: text put before the keys of text files and of records without an id.
        record_keys: the key of a record without an id: "content", a hash of the record; or
            "position", its number in the file, for collections of older versions.
        columns: the fields that hold text, title and key.
    """
    if record_keys not in ("content", "position"):
        raise QueryError(f"record_keys must be 'content' or 'position', got {record_keys!r}")
    keys = _Keys(key_prefix, record_keys == "content")
    columns = Columns() if columns is None else columns
    path = check_corpus(path)
    try:
        if path.is_dir():
            beir = _beir_corpus(path)
            if beir:
                return _read_records(beir, on_bad, keys, columns)
            files, root = _text_files(path), path
            if not files:
                raise bad(path, f"no .txt or .md files in this folder; expected {_READABLE}")
        elif kind(path) in _TEXT_SUFFIXES:
            files, root = [path], path.parent
        else:
            return _read_records(path, on_bad, keys, columns)
    except OSError as error:
        raise _unreadable(path, error) from error
    if columns.chosen:
        raise bad(path, f"text files have no fields; leave {' and '.join(columns.chosen)} out")
    return _read_texts(files, root, on_bad, keys)


def count_records(path: str | Path) -> int | None:
    """Approximate number of records, for a progress bar; None if counting takes long."""
    path = Path(path)
    try:
        if path.is_dir():
            beir = _beir_corpus(path)
            return count_records(beir) if beir else len(_text_files(path))
        if not path.is_file() or path.suffix == ".gz" or path.stat().st_size > _QUICK_BYTES:
            return None
        with open(path, "rb") as file:
            lines = sum(1 for _ in file)
    except OSError:
        return None  # reading it reports the error
    return max(lines - 1, 0) if kind(path) in (".csv", ".tsv") else lines


def _unreadable(path: Path, error: OSError) -> CorpusError:
    return bad(path, f"cannot be read ({error.strerror or error})")


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys for documents that have none.

    Attributes:
        prefix: put before every key.
        by_content: the key of a record is a hash of its content, not its position.
    """

    prefix: str
    by_content: bool

    def of_file(self, file: Path, root: Path) -> str:
        """The path below the corpus' root."""
        return self.prefix + file.relative_to(root).as_posix()

    def of_record(
        self, record: Mapping[str, Any], position: int, place: str, needs_text: bool
    ) -> Document:
        """A document from a record without an id."""
        document = Document.from_mapping(
            record, origin=place, key=f"{self.prefix}{position}", needs_text=needs_text
        )
        if not self.by_content:
            return document
        content = {**document.metadata, "title": document.title, "text": document.text}
        written = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        key = hashlib.sha256(written.encode()).hexdigest()[:_HASH_DIGITS]
        return replace(document, key=self.prefix + key, derived=True)


def _read_records(
    path: Path, on_bad: OnBad | None, keys: _Keys, columns: Columns
) -> Iterator[Document]:
    format_ = kind(path)
    if format_ in (".jsonl", ".ndjson"):
        records = _objects(path, on_bad, columns)
    elif format_ in DIALECTS:
        records = read_table(path, on_bad, columns)
    else:
        raise bad(path, f"expected {_READABLE}")
    return _to_documents(records, on_bad, keys, columns.needs_text)


def _objects(
    path: Path, on_bad: OnBad | None, columns: Columns
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and record of every object of a file, whose first one must name the text."""
    first = True
    for place, record in read_jsonl(path, on_bad):
        if first and columns.needs_text:
            check_text(columns.names(list(record), place), record, place)
        first = False
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
            if keyed or has_key:
                yield Document.from_mapping(record, origin=place, needs_text=needs_text)
            else:
                yield keys.of_record(record, position, place, needs_text)
        except CorpusError as error:
            report(error, on_bad)


def _beir_corpus(folder: Path) -> Path | None:
    inner = (folder / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
    return next((file for file in inner if file.is_file()), None)


def _text_files(folder: Path) -> list[Path]:
    """Text files below a folder, without hidden ones (.git, .trash, …).

    Raises OSError if a folder cannot be read. Linked folders are left out: they may loop.
    """
    files, folders = [], [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry))
                elif kind(Path(entry)) in _TEXT_SUFFIXES and Path(entry).is_file():
                    files.append(Path(entry))
    return sorted(files)


def _read_texts(
    files: list[Path], root: Path, on_bad: OnBad | None, keys: _Keys
) -> Iterator[Document]:
    """One document per file: the key is its path below the root, the title its name."""
    folder = str(root.resolve())
    try:
        folder.encode()
    except UnicodeEncodeError as error:
        raise bad(folder, "the name of this folder is not UTF-8; rename it") from error
    for file in files:
        try:
            text = _whole(file)
            name = Path(file.stem).stem if file.suffix == ".gz" else file.stem
            # An empty file is no document, although it has a name.
            title = name.replace("_", " ").replace("-", " ") if text.strip() else ""
            key = keys.of_file(file, root)
            yield Document(key=key, text=text, title=title, origin=str(file), root=folder)
        except CorpusError as error:
            if not file.exists():
                raise
            report(error, on_bad)


def _whole(file: Path) -> str:
    text = io.StringIO()
    for _, line in read_lines(file):
        text.write(line)
        if text.tell() > LONGEST:
            raise bad(file, too_long("text"))
    return text.getvalue()
