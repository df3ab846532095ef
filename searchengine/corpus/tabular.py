"""The fields of a file that hold the key, the title and the text; CSV and TSV → records.

By default the fields are `_id` (or `id`), `title` and `text`, in any case. A file without its text
field is refused: otherwise its titles alone would be indexed. A malformed row of a table loses its
own line only; the amount that is read again stays in proportion to the file.
"""

import csv
import re
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from searchengine.corpus.text_files import (
    LONGEST,
    OnBad,
    bad,
    kind,
    read_lines,
    report,
    some_fields,
)
from searchengine.errors import CorpusError, UnknownFields
from searchengine.trainer.reading import table_dialect

IDS = frozenset({"_id", "id"})
_ANY_CASE = ("title", "text", "_id", "id")  # default names, which may be written in any case
_DEFAULTS = {"--text-field": "text", "--title-field": "title", "--id-field": "_id"}
_NO_NAME = re.compile(r"\s*|Unnamed: \d+")  # of a column: pandas writes its index so
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*')  # the first line of a table that Excel reads
_LINE_OVERHEAD = 100  # bytes of memory per line besides its text


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of fields, matched without regard to case; None: the default name.

    Attributes:
        text: field of the text [`text`].
        title: field of the title [`title`].
        id: field of the key [`_id`, or else `id`].
        needs_text: whether every record must name a text or a title; not if vectors come along.
    """

    text: str | None = None
    title: str | None = None
    id: str | None = None
    needs_text: bool = True

    def __post_init__(self) -> None:
        chosen = [name.casefold() for name in (self.text, self.title, self.id) if name is not None]
        if len(set(chosen)) < len(chosen):
            raise CorpusError(
                "--text-field, --title-field and --id-field must name different fields, "
                f"got {', '.join(map(repr, chosen))}"
            )

    @property
    def chosen(self) -> dict[str, str]:
        """Option → field, for the options in use."""
        named = {"text": self.text, "title": self.title, "id": self.id}
        return {f"--{option}-field": name for option, name in named.items() if name is not None}

    def names(self, fields: Sequence[str], place: str, *, strict: bool = True) -> list[str]:
        """The fields of a header or record, with default names for the chosen ones.

        Raises CorpusError, if `strict` also for a chosen field that is missing.
        """
        names = list(fields)
        for option, name in self.chosen.items():
            index = _index(fields, name, option, place)
            if index is not None:
                names[index] = _DEFAULTS[option]
            elif strict:
                raise _unknown(
                    place, f"no field {name!r} for {option} (fields: {some_fields(fields)})"
                )
        for option, name in self.chosen.items():
            if names.count(_DEFAULTS[option]) > 1:
                raise _unknown(
                    place,
                    f"a field {_DEFAULTS[option]!r} besides {option} {name}; rename one of the two "
                    "in the file",
                )
        for default in _ANY_CASE:
            similar = [i for i, name in enumerate(names) if name.casefold() == default]
            if len(similar) == 1 and not (default in IDS and IDS.intersection(names)):
                names[similar[0]] = default
        return names

    def renamed(self, record: Mapping[str, Any], place: str, *, strict: bool) -> dict[str, Any]:
        """A record, with default names for the chosen fields. Raises CorpusError."""
        fields = list(record)
        names = self.names(fields, place, strict=strict)
        return {new: record[old] for old, new in zip(fields, names, strict=True)}


def check_text(names: Collection[str], fields: Collection[str], place: str) -> None:
    """Refuse a file without a text field, unless its only fields are ids and titles.

    `names`: the first record's fields under their default names; `fields`: as the file names them.
    """
    if "text" in names or set(names) - {"_id", "id"} == {"title"}:
        return
    raise _unknown(
        place,
        f"no field 'text' (fields: {some_fields(fields)}); name the field that holds the text, for "
        "example: --text-field body",
    )


def _unknown(place: str, what: str) -> UnknownFields:
    return UnknownFields(str(bad(place, what)))


def _index(fields: Sequence[str], name: str, option: str, place: str) -> int | None:
    """The position of a field: by the same name, or by the only one that differs in case only."""
    if name in fields:
        return fields.index(name)
    similar = [i for i, field in enumerate(fields) if field.casefold() == name.casefold()]
    if len(similar) > 1:
        names = ", ".join(repr(fields[i]) for i in similar)
        raise _unknown(place, f"{option} {name} fits several fields: {names}; give the exact name")
    return similar[0] if similar else None


# ----------------------------------------------------------------------------------- CSV and TSV


def read_table(
    path: Path, on_bad: OnBad | None, columns: Columns
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and record of every row.

    Empty cells are left out of the metadata, and so are columns without a name. A .csv file is
    separated by what its header has most of: commas, semicolons, tabs or bars.

    Raises CorpusError if the header does not name the text.
    """
    rows = _table_rows(path, on_bad)
    first = next(rows, None)
    if first is None:
        return
    place, cells = first
    named = [i for i, name in enumerate(cells) if not _NO_NAME.fullmatch(name)]
    fields = [cells[i] for i in named]
    if len(set(fields)) < len(fields):
        raise bad(place, "a column name occurs twice in the header")
    header = columns.names(fields, place)
    width = len(cells)
    if columns.needs_text:
        check_text(header, fields, place)
    for place, row in rows:
        if len(row) == width or (len(row) > width and not any(row[width:])):
            record = {n: _cell(n, row[i]) for n, i in zip(header, named, strict=True)}
            yield place, {n: v for n, v in record.items() if v != "" or n in _ANY_CASE}
        else:
            what = f"expected {width} fields, as in the header, got {len(row)}"
            report(bad(place, what), on_bad)


def _table_rows(path: Path, on_bad: OnBad | None) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of every row that is not blank, the header first."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses texts over 128 KiB
    header_read = False

    def skip(error: CorpusError) -> None:
        if not header_read:
            raise error  # without its header a table cannot be read
        report(error, on_bad)

    numbered = read_lines(path, None if on_bad is None else skip)
    if (first := next(numbered, None)) is None:
        return
    dialect = table_dialect(kind(path)[1:].upper(), first[1])
    if named := _SEPARATOR.fullmatch(first[1]):
        dialect["delimiter"] = named[1]
        first = next(numbered, (1, ""))
    for number, row in _rows(chain([first], numbered), dialect):
        if isinstance(row, csv.Error):
            skip(bad(f"{path}:{number}", f"not {kind(path)[1:].upper()} ({row})"))
        elif row:
            yield f"{path}:{number}", row
            header_read = True


def _rows(
    numbered: Iterator[tuple[int, str]], dialect: dict[str, Any]
) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """The number of the first line of each row, and its cells or what is wrong with it.

    After a malformed row, reading goes on with the line after its first: otherwise a stray quote
    would swallow the rest of the file. The amount read again is limited in proportion to the file,
    or a file of such quotes would take hours.
    """
    again: deque[tuple[int, str]] = deque()
    row_lines: list[tuple[int, str]] = []
    size, patience = 0, 4 * LONGEST

    def lines() -> Iterator[str]:
        nonlocal size, patience
        for line in iter(lambda: again.popleft() if again else next(numbered, None), None):
            size = (size if row_lines else 0) + len(line[1]) + _LINE_OVERHEAD
            row_lines.append(line)
            patience += 0 if again else 4 * (len(line[1]) + _LINE_OVERHEAD)
            if size > 2 * LONGEST:
                count = len(row_lines)
                raise csv.Error(f"a row has {count:,} lines; check for a quote that is not closed")
            yield line[1]

    while True:
        try:
            for row in csv.reader(lines(), **dialect):
                yield row_lines[0][0], row
                row_lines.clear()
            return
        except csv.Error as error:
            yield row_lines[0][0], error
            patience -= size
            if patience < 0:
                raise CorpusError(
                    "too many rows have unmatched quotes; correct the file"
                ) from error
            again.extendleft(reversed(row_lines[1:]))
            row_lines.clear()


def _cell(name: str, value: str) -> str | int | float | bool:
    """A cell of a table: a number, a truth value or text."""
    if name in _ANY_CASE:
        return value
    if value in ("true", "false"):
        return value == "true"
    if not _NUMBER.fullmatch(value) or len(value) > 18:  # longer numbers would lose digits
        return value
    return float(value) if "." in value else int(value)
