"""CSV and TSV → records, row by row.

A malformed row loses its own line only; the amount that is read again stays in proportion to the
file.
"""

import csv
import re
import sys
from collections import deque
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from searchengine.corpus.columns import Columns, check_text
from searchengine.corpus.lines import LONGEST, OnBad, bad, kind, read_lines, report
from searchengine.errors import CorpusError

DIALECTS: dict[str, dict[str, Any]] = {
    ".csv": {"strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
_TEXT_FIELDS = ("_id", "id", "title", "text")
_SEPARATORS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')
_NO_NAME = re.compile(r"\s*|Unnamed: \d+")  # of a column: pandas writes its index so
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_LINE_OVERHEAD = 100  # bytes of memory per line besides its text


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
        if len(row) == width:
            record = {n: _cell(n, row[i]) for n, i in zip(header, named, strict=True)}
            yield place, {n: v for n, v in record.items() if v != "" or n in _TEXT_FIELDS}
        else:
            what = f"expected {width} fields, as in the header, got {len(row)}"
            report(bad(place, what), on_bad)


def _table_rows(path: Path, on_bad: OnBad | None) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of every row that is not blank, the header first.

    After a malformed row, reading goes on with the line after its first: otherwise a stray quote
    would swallow the rest of the file.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses texts over 128 KiB
    header_read = False

    def skip(error: CorpusError) -> None:
        if not header_read:
            raise error  # without its header a table cannot be read
        report(error, on_bad)

    numbered = read_lines(path, None if on_bad is None else skip)
    first = next(numbered, None)
    if first is None:
        return
    dialect = _dialect(path, first[1])
    lines = _RowLines(chain([first], numbered))
    while True:
        try:
            for row in csv.reader(lines, **dialect):
                if row:
                    yield f"{path}:{lines.number}", row
                    header_read = True
                lines.next_row()
            return
        except csv.Error as error:
            place = f"{path}:{lines.number}"
            skip(bad(place, f"not {kind(path)[1:].upper()} ({error})"))
            if not lines.back():
                what = "too many rows have unmatched quotes; correct the file"
                raise bad(place, what) from error


def _dialect(path: Path, header: str) -> dict[str, Any]:
    """The format of a table whose first line is `header`."""
    dialect = DIALECTS[kind(path)]
    if "delimiter" in dialect:
        return dialect
    return dialect | {"delimiter": max(_SEPARATORS, key=_QUOTED.sub("", header).count)}


class _RowLines:
    """The lines of a table, which can go back to the second line of the current row.

    A quote that is never closed takes as many lines as a row may have. The amount read again is
    limited in proportion to the file, or a file of such quotes would take hours.
    """

    def __init__(self, numbered: Iterator[tuple[int, str]]) -> None:
        self._numbered = numbered
        self._again: deque[tuple[int, str]] = deque()  # lines to read again
        self._taken: list[tuple[int, str]] = []  # lines of the current row
        self._size = 0  # of those
        self._patience = 4 * LONGEST

    @property
    def number(self) -> int:
        """The number of the current row's first line."""
        return self._taken[0][0]

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        fresh = not self._again
        line = next(self._numbered) if fresh else self._again.popleft()
        size = len(line[1]) + _LINE_OVERHEAD
        self._taken.append(line)
        self._size += size
        self._patience += 4 * size if fresh else 0
        if self._size > 2 * LONGEST:
            count = len(self._taken)
            raise csv.Error(f"a row has {count:,} lines; check for a quote that is not closed")
        return line[1]

    def next_row(self) -> None:
        """The current row has ended."""
        self._taken.clear()
        self._size = 0

    def back(self) -> bool:
        """Go back; False if too much was read again already."""
        self._patience -= self._size
        self._again.extendleft(reversed(self._taken[1:]))
        self.next_row()
        return self._patience >= 0


def _cell(name: str, value: str) -> str | int | float | bool:
    """A cell of a table: a number, a truth value or text."""
    if name in _TEXT_FIELDS:
        return value
    if value in ("true", "false"):
        return value == "true"
    if not _NUMBER.fullmatch(value) or len(value) > 18:  # longer numbers would lose digits
        return value
    return float(value) if "." in value else int(value)
