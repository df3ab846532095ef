"""Files → a stream of documents.

JSON Lines (.jsonl, .ndjson), CSV and TSV (a header line each; TSV without quoting), each of them
gzipped or not, and folders of text files (.txt, .md). Field names as in BEIR: `_id` (or `id`),
`title`, `text`; every other field becomes metadata. Text is UTF-8. A table's cells that read like
numbers (12, -3.50; not 007 or 1e3) or true and false become what they read like.
"""

import csv
import gzip
import json
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from searchengine.errors import CorpusError

OnBad = Callable[[CorpusError], None]
_BEIR_FIELDS = ("_id", "id", "title", "text")
_DIALECTS: dict[str, dict[str, Any]] = {
    ".csv": {"strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
_QUICK_BYTES = 1 << 28  # what is read twice without a user noticing
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_TEXT_SUFFIXES = {".txt", ".md"}
_READABLE = "a .jsonl, .csv or .tsv file (.gz too) or a folder of .txt or .md files"


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a key of its own. `origin` says where it came from, for error messages.

    Raises CorpusError on an empty key, values of the wrong type, or text that UTF-8 cannot hold.
    """

    key: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("key", "text", "title"):
            value = getattr(self, name)
            if not isinstance(value, str):
                self._refuse(f"{name} must be text, got {type(value).__name__}")
            try:
                value.encode()
            except UnicodeEncodeError:
                self._refuse(f"{name} holds half a surrogate pair, which is no character")
        if not self.key.strip():
            self._refuse("the key is empty; give every document an _id")
        try:
            json.dumps(dict(self.metadata), allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            self._refuse(f"metadata cannot be written as JSON ({error})")

    def _refuse(self, reason: str) -> None:
        where = self.origin or f"document {self.key!r}"
        # A file's name may hold bytes that are no text; a message must be printable all the same.
        raise CorpusError(f"{where}: {reason}".encode("utf-8", "backslashreplace").decode())

    @classmethod
    def from_mapping(cls, record: Mapping[str, Any], origin: str = "", key: str = "") -> "Document":
        """A document from a BEIR-like record: `_id` or `id`, `title`, `text`, and metadata.

        `key` serves when the record has none of its own.
        """
        if not isinstance(record, Mapping):
            what = type(record).__name__
            raise CorpusError(f"{origin}: expected a Document or a mapping, got {what}")
        rest = dict(record)
        given = [rest.pop(name) for name in ("_id", "id") if name in rest]
        name: Any = given[0] if given else key
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if name is None or name == "":
            raise CorpusError(f"{origin or 'document'}: no _id; give every document one")
        if "text" not in rest and "title" not in rest:
            fields = ", ".join(map(repr, record)) or "none"
            raise CorpusError(f"{origin or name}: no field 'text' or 'title' (fields: {fields})")
        title, text = rest.pop("title", None), rest.pop("text", None)
        return cls(
            key=name,
            text="" if text is None else text,
            title="" if title is None else title,
            metadata=rest,
            origin=origin,
        )

    @property
    def full_text(self) -> str:
        """Title and text as the encoder reads them: the title, a space, the text (as BEIR does)."""
        return f"{self.title} {self.text}".strip()


def read_corpus(path: str | Path, on_bad: OnBad | None = None) -> Iterator[Document]:
    """Stream the documents of a file or folder in order.

    A malformed record raises CorpusError ("file:line: …"); with `on_bad` the error is handed over
    and reading goes on. A missing or unreadable file always raises.
    """
    path = Path(path)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder")
    if path.is_dir():
        beir = _beir_corpus(path)
        return _read_records(beir, on_bad) if beir else _read_folder(path, on_bad)
    if kind(path) in _TEXT_SUFFIXES:
        return _read_texts([path], path.parent, on_bad)
    return _read_records(path, on_bad)


def count_records(path: str | Path) -> int | None:
    """How many records a corpus seems to have, for a progress bar; None when that is not quick."""
    path = Path(path)
    if path.is_dir():
        beir = _beir_corpus(path)
        return count_records(beir) if beir else len(_text_files(path))
    if not path.is_file() or path.suffix == ".gz" or path.stat().st_size > _QUICK_BYTES:
        return None
    with open(path, "rb") as file:
        lines = sum(1 for _ in file)
    return max(lines - 1, 0) if kind(path) in (".csv", ".tsv") else lines


def read_lines(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line of a UTF-8 file, gunzipped where it ends in .gz."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    bad = CorpusError(
                        f"{path}:{number}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the "
                        "file first, for example with: iconv -f latin1 -t utf-8"
                    )
                    _report(bad, on_bad)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path}:{number + 1}: broken gzip file ({error})") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_jsonl(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and object of every line that is not blank."""
    for number, line in read_lines(path, on_bad):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            _report(CorpusError(f"{place}: not JSON ({error})"), on_bad)
            continue
        if isinstance(record, dict):
            yield place, record
        else:
            what = type(record).__name__
            _report(CorpusError(f"{place}: expected a JSON object, got {what}"), on_bad)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _report(bad: CorpusError, on_bad: OnBad | None) -> None:
    if on_bad is None:
        raise bad
    on_bad(bad)


def kind(path: Path) -> str:
    """The suffix that tells the format, without a closing .gz."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def _read_records(path: Path, on_bad: OnBad | None) -> Iterator[Document]:
    format_ = kind(path)
    if format_ in (".jsonl", ".ndjson"):
        records = read_jsonl(path, on_bad)
    elif format_ in _DIALECTS:
        records = _read_table(path, on_bad)
    else:
        raise CorpusError(f"{path}: expected {_READABLE}")
    return _to_documents(records, on_bad)


def _to_documents(
    records: Iterable[tuple[str, dict[str, Any]]], on_bad: OnBad | None
) -> Iterator[Document]:
    keyed: bool | None = None
    for position, (place, record) in enumerate(records, start=1):
        has_key = "_id" in record or "id" in record
        keyed = has_key if keyed is None else keyed
        # A file without ids is numbered; a file in which some records lack theirs has a mistake.
        number = "" if keyed else str(position)
        try:
            yield Document.from_mapping(record, origin=place, key=number)
        except CorpusError as error:
            _report(error, on_bad)


def _read_table(path: Path, on_bad: OnBad | None) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = _table_rows(path, on_bad)
    place, header = next(rows, ("", []))
    if len(set(header)) < len(header):
        raise CorpusError(f"{place}: a column name occurs twice in the header")
    for place, row in rows:
        if len(row) == len(header):
            cells = {n: _cell(n, v) for n, v in zip(header, row, strict=True)}
            yield place, {n: v for n, v in cells.items() if v != "" or n in _BEIR_FIELDS}
        else:
            message = f"{place}: {len(row)} fields where the header has {len(header)}"
            _report(CorpusError(message), on_bad)


def _table_rows(path: Path, on_bad: OnBad | None) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of every row that is not blank, the header first.

    After a row that is no CSV, reading goes on with the line after the one where it began: a stray
    quote would otherwise swallow the rest of the file.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses texts over 128 KiB
    numbered = read_lines(path, None if on_bad is None else (lambda bad: skip(bad)))
    again: deque[tuple[int, str]] = deque()  # lines to read once more
    taken: list[tuple[int, str]] = []  # lines of the current row
    header_read = False

    def skip(bad: CorpusError) -> None:
        if not header_read:
            raise bad  # without its header a table means nothing
        _report(bad, on_bad)

    def lines() -> Iterator[str]:
        while again:
            taken.append(again.popleft())
            yield taken[-1][1]
        for line in numbered:
            taken.append(line)
            yield line[1]

    while True:
        try:
            for row in csv.reader(lines(), **_DIALECTS[kind(path)]):
                if row:
                    yield f"{path}:{taken[0][0]}", row
                    header_read = True
                taken.clear()
            return
        except csv.Error as error:
            skip(CorpusError(f"{path}:{taken[0][0]}: not {kind(path)[1:].upper()} ({error})"))
            again.extendleft(reversed(taken[1:]))
            taken.clear()


def _cell(name: str, value: str) -> str | int | float | bool:
    """A table's cell, as the number or truth value that it reads like."""
    if name in _BEIR_FIELDS:
        return value
    if value in ("true", "false"):
        return value == "true"
    if not _NUMBER.fullmatch(value) or len(value) > 18:  # longer ones would lose digits
        return value
    return float(value) if "." in value else int(value)


def _beir_corpus(folder: Path) -> Path | None:
    inner = (folder / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
    return next((file for file in inner if file.is_file()), None)


def _text_files(folder: Path) -> list[Path]:
    """Text files below a folder; what is hidden (.git, .trash, …) is not meant to be found."""
    return sorted(
        file
        for file in folder.rglob("*")
        if kind(file) in _TEXT_SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def _read_folder(path: Path, on_bad: OnBad | None) -> Iterator[Document]:
    files = _text_files(path)
    if not files:
        raise CorpusError(f"{path}: no .txt or .md files in this folder; expected {_READABLE}")
    return _read_texts(files, path, on_bad)


def _read_texts(files: list[Path], root: Path, on_bad: OnBad | None) -> Iterator[Document]:
    """One document a file: the key is its path below the root, the title its name."""
    for file in files:
        try:
            text = "".join(line for _, line in read_lines(file))
            key = file.relative_to(root).as_posix()
            name = Path(file.stem).stem if file.suffix == ".gz" else file.stem
            # A blank file has nothing to find; its name alone must not make it a document.
            title = name.replace("_", " ").replace("-", " ") if text.strip() else ""
            yield Document(key=key, text=text, title=title, origin=str(file))
        except CorpusError as error:
            if not file.exists():
                raise
            _report(error, on_bad)
