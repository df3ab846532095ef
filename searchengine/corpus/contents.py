"""What files hold: texts, lines, JSON, tables and vectors; errors about those that cannot be read.

Memory stays bounded: no line or text may be longer than 64 MiB. The encoding of a whole text is a
byte order mark, UTF-8, a declared one, or else the most likely one, as chardet tells. Files that
are read line by line must be UTF-8.
"""

import codecs
import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from searchengine.errors import FORBIDDEN, CorpusError, UnknownFields, UnreadableFile
from searchengine.trainer.errors import install_line
from searchengine.trainer.reading import table_dialect

STDIN = Path("-")
"""Stands for standard input."""
LONGEST = 1 << 26
"""Bytes of a line, row or text; as JSON, the worst line takes 27 times as much memory."""
_MESSAGE = 900  # characters of a message


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a file: all of it, a page, or a chapter.

    Attributes:
        text: the text.
        title: the title that the file names; "" for the name of the file.
        metadata: fields of the document.
        fragment: what the key has after the path and "#", such as page=3; "" for a whole file.
    """

    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fragment: str = ""


Parts = Iterator[Text | str]
"""What a reader yields: texts, and sentences on what cannot be read of the text before."""


def attempt(name: str, parts: Parts) -> Parts:
    """A page, chapter or the like; a sentence instead of what cannot be read of it."""
    try:
        yield from parts
    except MemoryError:
        raise
    except Exception as error:  # whatever a library raises on a damaged part
        yield f"{name} cannot be read ({' '.join(str(error).split())})"


def bad(where: object, message: str) -> CorpusError:
    """A CorpusError with a printable message of limited length, whatever it quotes."""
    text = f"{where}: {message}"
    if len(text) > _MESSAGE:
        text = f"{text[: _MESSAGE - 200]} … {text[-200:]}"
    return CorpusError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def unreadable(path: object, error: OSError) -> UnreadableFile:
    """The error for a file or folder that the system does not let us read."""
    denied = isinstance(error, PermissionError)
    what = FORBIDDEN if denied else f"cannot be read ({error.strerror or error})"
    return UnreadableFile(str(bad(error.filename or path, what)))


def some_fields(fields: Iterable[str]) -> str:
    """The first names of a record or header, for a message."""
    names = [f"{name!r:.40}" for name in islice(fields, 11)]
    return ", ".join([*names[:10], "…"][: len(names)]) or "none"


def suffix_of(path: Path) -> str:
    """The suffix that names the format, without a final .gz."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def fail(error: CorpusError) -> None:
    """Raise an error: what the first malformed line does if nobody takes it."""
    raise error


Take = Callable[[CorpusError], None]
"""Takes the error of a malformed line or record, or raises it."""


def too_long(what: str) -> str:
    """The message for a line, row, text or JSON file longer than LONGEST."""
    return f"a {what} must be at most {LONGEST >> 20} MiB long; split it"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file or standard input, gunzipped where it ends in .gz. Raises CorpusError."""
    try:
        if path == STDIN:
            if sys.stdin is None:
                what = "standard input is closed; pipe JSON Lines to it, or name a file"
                raise UnreadableFile(str(bad(path, what)))
            yield sys.stdin.buffer
        elif "\0" in str(path):
            raise bad(path, "cannot be read (its name holds a NUL)")
        else:
            with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
                yield file  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(path, f"broken gzip file ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error


def read_lines(path: Path, take: Take = fail) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line of a UTF-8 file, gunzipped where it ends in .gz."""
    number, other_encoding = 0, False
    with _opened(path) as file:
        while raw := file.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                take(bad(f"{path}:{number}", too_long("line")))
                while raw and not raw.endswith(b"\n"):  # to the end of the line
                    raw = file.readline(LONGEST)
                continue
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                name = "" if other_encoding else detected(raw)  # once: it takes milliseconds
                other_encoding = True
                take(bad(f"{path}:{number}", _not_utf8(raw[error.start], name)))
                continue
            yield number, line


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, gunzipped where it ends in .gz. Raises CorpusError beyond 64 MiB."""
    with _opened(path) as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise bad(path, too_long("JSON file" if suffix_of(path) == ".json" else "text"))
    return data


def decode(data: bytes, path: Path, declared: str = "") -> tuple[str, dict[str, str], list[str]]:
    """The text of a file; the field `encoding` unless it is UTF-8; and what is lost of it.

    If it is UTF-8 but for a few bytes, these are read as U+FFFD. `declared`: the encoding that the
    file names, if it does. Raises CorpusError.
    """
    if not (name := _marked(data)) and b"\0" not in data:
        try:
            return data.decode("utf-8-sig"), {}, []
        except UnicodeDecodeError as error:
            place, text = error.start, data.decode("utf-8-sig", "replace")
        broken = text.count("\ufffd")
        if sum(letter > "\x7f" for letter in text) > 2 * broken:  # in no other encoding
            return text, {}, [f"bytes that are not UTF-8 (from byte {place} on, {broken} in all)"]
        if (named := _known(declared)) and not named.startswith("utf"):
            with suppress(UnicodeDecodeError):  # it is not what it declares
                return data.decode(named), {"encoding": named}, []
    name = name or detected(data)
    try:
        text = data.decode(name or ("latin-1" if b"\0" in data else "utf-8"))
    except UnicodeDecodeError as error:
        raise bad(path, _not_utf8(data[error.start], "")) from error  # it is not `name` either
    if "\0" in text:
        raise bad(path, "not a text (it holds a zero byte); check the file's name and content")
    return text, {"encoding": name}, []


def read_text(path: Path) -> Parts:
    """The text of a file, which is no markup. Raises CorpusError."""
    text, encoding, lost = decode(read_bytes(path), path)
    yield Text(text, metadata=encoding)
    yield from lost


def read_jsonl(path: Path, take: Take = fail) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and object of every line that is not blank."""
    for number, line in read_lines(path, take):
        place = f"{path}:{number}"
        try:
            if line.strip():
                yield place, checked_object(parse_json(line, place), place)
        except CorpusError as error:
            take(error)


def checked_object(value: Any, place: str) -> dict[str, Any]:
    """A value of JSON, which must be an object. Raises CorpusError."""
    if not isinstance(value, dict):
        raise bad(place, f"expected a JSON object, got {type(value).__name__}")
    return value


def parse_json(text: str, place: str) -> Any:
    """The value of a text in JSON; NaN is read as Python does. Raises CorpusError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad(place, f"not JSON ({error})") from error


# -------------------------------------------------------------------------------- files of records
#
# A file without its text field is refused: otherwise its titles alone would be indexed. A CSV cell
# that reads like a number (12, -3.50; not 007 or 1e3) or true and false becomes one.

IDS = frozenset({"_id", "id"})
Records = Iterator[tuple[str, dict[str, Any]]]
"""Place ("file:line", or row from 1) and fields of each record."""
_ANY_CASE = ("title", "text", "_id")  # default names, as "id", which may be in any case
_TEXTS = (*_ANY_CASE, "id")  # fields whose cells are texts
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*')  # the first line of a table that Excel reads
_LINE = re.compile(r"[^\r]+(?:\r\n?)?|\r\n?")


@dataclass(frozen=True, slots=True)
class Columns:
    """Fields with text, title and key, in any case; None: `text`, `title`, and `_id` or `id`.

    `needs_text`: whether every record must name a text or a title; not if vectors come along.
    """

    text: str | None = None
    title: str | None = None
    id: str | None = None
    needs_text: bool = True

    @property
    def chosen(self) -> dict[str, tuple[str, str]]:
        """Option → default name and field, for the options in use."""
        fields = {"text": self.text, "title": self.title, "_id": self.id}
        return {f"--{n.strip('_')}-field": (n, f) for n, f in fields.items() if f is not None}

    def names(self, fields: Sequence[str], place: str, *, is_first: bool) -> list[str]:
        """The fields of a header or record, with default names for the chosen ones.

        Of several that differ in case the exact one counts, or else the first. Raises CorpusError
        for a default name besides a chosen field; for the first record of a file also if a chosen
        field is missing, or none is the text. Ids and titles alone are documents too.
        """
        folded = {field.casefold(): field for field in reversed(fields)}
        renamed: dict[str, str] = {}
        for option, (default, name) in self.chosen.items():
            field = name if name in fields else folded.get(name.casefold(), "")
            what = ""
            if not field and is_first:
                what = f"no field {name!r} for {option} (fields: {some_fields(fields)})"
            elif field and default in fields and default != field:
                what = f"a field {default!r} besides {option} {name}; rename one in the file"
            if what:
                raise UnknownFields(str(bad(place, what)))
            renamed[field] = default
        for default in _ANY_CASE if "_id" in folded else (*_ANY_CASE, "id"):
            if default not in fields and default not in renamed.values() and default in folded:
                renamed.setdefault(folded[default], default)
        names = [renamed.get(field, field) for field in fields]
        if is_first and self.needs_text and "text" not in names and {*names} - IDS != {"title"}:
            example = "name the field that holds the text, for example: --text-field body"
            what = f"no field 'text' (fields: {some_fields(fields)}); {example}"
            raise UnknownFields(str(bad(place, what)))
        return names


def named_records(records: Records, take: Take, columns: Columns, rows: bool = False) -> Records:
    """The records of a file under default names; the first must name the text.

    `take` gets the error of one that is not an object, or has ambiguous names. `rows`: all have
    all fields, None where a value is missing; such metadata is left out.
    """
    is_first = True
    for place, record in records:
        try:
            names = columns.names([*checked_object(record, place)], place, is_first=is_first)
        except CorpusError as error:
            if is_first and isinstance(error, UnknownFields):
                raise
            take(error)
            continue
        is_first = False
        fields = zip(names, record.values(), strict=True)
        yield (
            place,
            {n: v for n, v in fields if not rows or v is not None or n in ("title", "text")},
        )


def read_table(path: Path, take: Take, columns: Columns) -> Records:
    """Place ("file:line") and record of every row of a CSV or TSV file.

    Empty cells are left out of the metadata, and so are columns without a name. A .csv file is
    separated by what its header has most of: commas, semicolons, tabs or bars.

    Raises CorpusError if the header does not name the text.
    """
    csv.field_size_limit(LONGEST)  # the default refuses texts over 128 KiB
    header: list[str] = []

    def skip(error: CorpusError) -> None:
        if not header:
            raise error  # without its header a table cannot be read
        take(error)

    read, format_ = read_lines(path, skip), suffix_of(path)[1:].upper()
    # A carriage return alone ends a line of old Macs.
    numbered = ((n + i, part) for n, line in read for i, part in enumerate(_LINE.findall(line)))
    first = next((line for line in numbered if line[1].strip()), (1, ""))
    dialect = table_dialect(format_, first[1]) | {"skipinitialspace": True}
    if named := _SEPARATOR.fullmatch(first[1]):
        dialect["delimiter"] = named[1]
        first = next(numbered, (1, ""))
    for number, row in _rows(chain([first], numbered), dialect):
        place = f"{path}:{number}"
        if isinstance(row, csv.Error):
            skip(bad(place, f"not {format_} ({row})"))
        elif not row:
            continue  # a blank line
        elif not header:
            width, row = len(row), [name.strip() for name in row]
            named_cells = [i for i, name in enumerate(row) if name]
            fields = [row[i] for i in named_cells]
            if len({*fields}) < len(fields):
                raise bad(place, "a column name occurs twice in the header")
            header = columns.names(fields, place, is_first=True)
        elif len(row) == width or (len(row) > width and not "".join(row[width:]).strip()):
            record = {n: _cell(n, row[i]) for n, i in zip(header, named_cells, strict=True)}
            yield place, {n: v for n, v in record.items() if v != "" or n in _TEXTS}
        else:
            take(bad(place, f"expected {width} fields, as in the header, got {len(row)}"))


def _rows(
    numbered: Iterator[tuple[int, str]], dialect: dict[str, Any]
) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """The number of the first line of each row, and its cells or what is wrong with it.

    After a malformed row, reading goes on with the next line: a stray quote takes all lines up to
    the next quote with it, which the error says.
    """
    lines, size = list[int](), 0  # of the row that is being read

    def text_of(line: tuple[int, str]) -> str:
        nonlocal size
        size = len(line[1]) + (size if lines else 0)
        lines.append(line[0])
        if size > LONGEST:  # of many short cells, which csv does not count
            raise csv.Error(too_long("row"))
        return line[1]

    rows = csv.reader(map(text_of, numbered), **dialect)
    while True:
        row: list[str] | csv.Error | None
        try:
            row = next(rows, None)
        except csv.Error as error:
            how = f"lines {lines[0]}–{lines[-1]} are one row, check for a quote that is not closed"
            row = csv.Error(f"{error}; {how}") if len(lines) > 1 else error
        if row is None:
            return
        yield lines[0], row
        lines.clear()


def _cell(name: str, value: str) -> str | int | float | bool:
    """A cell of a table: a number, a truth value or text."""
    if name in _TEXTS:
        return value
    if value in ("true", "false"):
        return value == "true"
    if not _NUMBER.fullmatch(value) or len(value) > 18:  # longer numbers would lose digits
        return value
    return float(value) if "." in value else int(value)


# --------------------------------------------------------------------- in a process of their own


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of every element of an array, or of the only value. Raises CorpusError."""
    text, _, lost = decode(read_bytes(path), path)
    if lost:
        raise bad(path, lost[0])
    content = parse_json(text, str(path))
    for number, value in enumerate(content if isinstance(content, list) else [content], start=1):
        yield f"{path}:{number}", value


_ROWS, _BYTES = 1024, 1 << 16  # of a batch, and read at a time of each column
_BINARY = re.compile("(^|: )(large_|fixed_size_)?binary")  # a type, in one


def read_parquet(path: Path) -> Records:
    """Place and record of every row. Raises CorpusError."""
    import pyarrow.parquet

    try:
        # Reads row groups piece by piece: a file may have only one.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BYTES) as file:
            fields = file.schema_arrow
            columns = [each.name for each in fields if not _BINARY.search(str(each.type))]
            batches = file.iter_batches(_ROWS, columns=columns, use_threads=False)
            rows = (row for batch in batches for row in zip(*batch.columns, strict=True))
            for number, row in enumerate(rows, start=1):
                yield f"{path}:{number}", dict(zip(columns, map(_held, row), strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise bad(path, f"not a Parquet file, or damaged ({error})") from error


def _held(scalar: Any) -> Any:
    """A value of Arrow; a time that Python does not know, beyond the year 9999, is its text."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        if callable(values := getattr(scalar, "values", None)):  # of a struct
            return {name: _held(item) for name, item in scalar.items()}
        if values is not None:  # of a list or map
            return [_held(item) for item in values]
        kind = "duration[us]" if str(scalar.type).startswith("duration") else "string"
        return scalar.cast(kind, safe=False).as_py()


# ---------------------------------------------------------------------------------------- encodings

_SAMPLE = 1 << 20  # bytes to detect by
# Without the many that differ from these in a few signs only; UTF-8 stands for none of them.
_LATIN = (
    "cp1252 cp1250 iso8859_2 cp1254 cp1257 iso8859_15 mac-roman cp850 cp437 utf-8 utf-16-le "
    "utf-16-be"
).split()
_OTHERS = "cp949 cp932 euc_jis_2004 gb18030 big5 cp1251 koi8-r cp1253 cp1255 cp1256".split()
# A byte beyond ASCII that has a letter beside it, but for the signs of 25 °C and 5 µm.
_IN_A_WORD = re.compile(
    rb"[A-Za-z\x80-\xff][\x80-\xff]|(?![\xb0\xb5][A-Za-z]\b)[\x80-\xff][A-Za-z]"
)
_LETTER = re.compile(rb"[A-Za-z]")


def _marked(data: bytes) -> str:
    """UTF-16 by its byte order mark, ISO-2022-JP by what begins Japanese letters in it; or ""."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "iso2022_jp" if b"\x1b$B" in data else ""


def _known(name: str) -> str:
    """Python's name of a text encoding; "" if it has none. As in HTML, supersets of some."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):
        return ""
    name = codecs.lookup(name).name
    return {"iso8859-1": "cp1252", "euc_kr": "cp949", "shift_jis": "cp932"}.get(name, name)


def _not_utf8(byte: int, name: str) -> str:
    """The message for a text that is not UTF-8; `name`: the encoding that it may be in, or ""."""
    knows = find_spec("chardet") is not None
    hint = "" if knows else f" ({install_line('formats')} detects encodings)"
    probably = f" but probably {name}" if name else hint
    how = f"iconv -f {name or 'ENCODING'} -t utf-8"
    return (
        f"not UTF-8 (byte 0x{byte:02x}){probably}; convert the file first, for example with: {how}"
    )


def detected(data: bytes) -> str:
    """The likeliest encoding of a text in another encoding than UTF-8; "" if none is likely.

    A text whose only other characters are signs, as in 25° or £5, is Windows-1252. With more ASCII
    letters than others it is in Latin letters: so Italian is not read as Macedonian.
    """
    if name := _marked(data):
        return name
    if find_spec("chardet") is None:
        return ""
    from chardet import detect

    sample = data[:_SAMPLE]
    if b"\0" not in data and not _IN_A_WORD.search(sample):
        return "cp1252"
    lines = b"\n".join(line for line in sample.splitlines() if not line.isascii())
    is_latin = sum(byte > 0x7F for byte in lines) < len(_LETTER.findall(lines))
    candidates = _LATIN if is_latin else _LATIN + _OTHERS
    found = detect(sample, include_encodings=candidates, no_match_encoding="utf-8")["encoding"]
    return "" if found in (None, "utf-8") else _known(found)
