"""Files of records: CSV, TSV, JSON, Parquet; their fields; files of vectors.

A file without its text field is refused: otherwise its titles alone would be indexed. A CSV cell
that reads like a number (12, -3.50; not 007 or 1e3) or true and false becomes one.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from searchengine.corpus.text_files import (
    LONGEST,
    Take,
    bad,
    decode,
    kind,
    parse_json,
    read_bytes,
    read_lines,
    some_fields,
    too_long,
    unreadable,
)
from searchengine.errors import CorpusError, UnknownFields
from searchengine.trainer.reading import table_dialect

IDS = frozenset({"_id", "id"})
Records = Iterator[tuple[str, dict[str, Any]]]
"""Place ("file:line", or row from 1) and fields of each record."""
_ANY_CASE = ("title", "text", "_id")  # default names, as "id", which may be in any case
_TEXTS = (*_ANY_CASE, "id")  # fields whose cells are texts
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_ROWS, _BYTES = 1024, 1 << 16  # of a batch, and read at a time of each column
_VECTORS = "numbers of shape (n, D), one row per document"
_BINARY = re.compile("(^|: )(large_|fixed_size_)?binary")  # a type, in one
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

    `take` gets the error of a record that is none, or has ambiguous names. `rows`: all have all
    fields, None where a value is missing; such metadata is left out.
    """
    is_first = True
    for place, record in records:
        if not isinstance(record, dict):
            take(bad(place, f"expected a JSON object, got {type(record).__name__}"))
            continue
        try:
            names = columns.names([*record], place, is_first=is_first)
        except CorpusError as error:
            if is_first:
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

    read, format_ = read_lines(path, skip), kind(path)[1:].upper()
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


def read_vectors(path: Path, *, may_be_empty: bool = False) -> Any:
    """The array (n, D) of a file, mapped: its rows are read when they are used.

    Raises CorpusError for a missing, malformed or empty file, and for anything but numbers.
    """
    import numpy as np  # not at the top: a reading process starts without it

    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        why = f"cannot be read as a .npy file ({error}); write it by numpy.save"
        raise bad(path, why) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise bad(path, f"expected {_VECTORS}, got {array.dtype} of shape {array.shape}")
    rows, dim = array.shape
    if not dim or not (rows or may_be_empty):
        raise bad(path, f"holds no vectors (shape {array.shape})")
    return array


# --------------------------------------------------------------------- in a process of their own


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of every element of an array, or of the only value. Raises CorpusError."""
    text, _, lost = decode(read_bytes(path), path)
    if lost:
        raise bad(path, lost[0])
    content = parse_json(text, str(path))
    for number, value in enumerate(content if isinstance(content, list) else [content], start=1):
        yield f"{path}:{number}", value


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
