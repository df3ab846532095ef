"""Training files to examples, row by row.

TSV has a header line and no quoting; JSONL has one object per line; both may be .gz and are UTF-8.
Parquet files, and Hugging Face datasets, are tables with the same columns. What an example is
follows from the names of its columns (docs/training.md lists them).
"""

import csv
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from searchengine.trainer.errors import DataError
from searchengine.trainer.reading import open_text
from searchengine.trainer.training.data.columns import (
    Example,
    Header,
    Reading,
    choose_columns,
    read_row,
)
from searchengine.trainer.training.data.positives import Kind, Texts
from searchengine.trainer.training.data.tables import is_table, table_rows

# Rows of a table whose values show what a column holds.
_FIRST_ROWS = 1000


def read_labelled(paths: Iterable[Path], columns: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The texts of all files with their labels. Raises DataError, with file and line."""
    rows = (row for path in paths for row in read_file(path, columns, Reading.LABELS))
    labelled = [(texts[0], texts[1]) for _, texts in rows]
    if not labelled:
        raise DataError(f"{', '.join(map(str, paths))}: no labelled texts")
    return labelled


def key(text: str) -> str:
    """Letters and digits in lower case without accents; [a-z0-9] for English."""
    if text.isascii():
        return re.sub(r"[^a-z0-9]+", "", text.lower())
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if c.isalnum())


def identity(text: str) -> str:
    """Equal for equal texts: the key, or the text itself where it has no letters or digits."""
    return key(text) or text


def texts_without_label(example: Example) -> Texts:
    """The texts of an example, without its label or scores."""
    kind, texts = example
    return texts[:-1] if kind in (Kind.LABELLED, Kind.SCORED) else texts


def sentences(path: Path) -> Iterator[str]:
    """Every sentence of a file of examples or of scored pairs; each example's texts in turn."""
    for _, texts in read_file(path, reading=Reading.IGNORE):
        yield from texts


def read_file(
    path: Path, columns: Sequence[str] = (), reading: Reading = Reading.TEXTS
) -> Iterator[Example]:
    """The examples of one file, read row by row. Raises DataError."""
    try:
        header = _header(path)
        if not header.first:
            return
        chosen = choose_columns(header, columns, reading)
        for place, row in _rows(path, chosen):
            yield read_row(place, row, chosen, reading)
    except OSError as error:  # also of asking what the path is: its name is too long, perhaps
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _header(path: Path) -> Header:
    """The columns of a file. Objects of JSONL may lack columns of others: all are read."""
    rows, place = _rows(path), str(path)
    if not is_table(path) and ".jsonl" not in path.suffixes:
        rows, place = itertools.islice(rows, 1), f"{path}:1"
    elif is_table(path):  # every row has every column, perhaps without a value
        rows = itertools.islice(rows, _FIRST_ROWS)
    first: dict[str, Any] = {}  # the first value of every column
    origin: dict[str, str] = {}  # where every column begins: file and line
    for where, row in rows:
        if row.keys() - origin.keys():
            origin = dict.fromkeys(row, where) | origin
        first |= {name: value for name, value in row.items() if first.get(name) is None}
    return Header(place, first, dict.fromkeys(origin, place) if place != str(path) else origin)


def _rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and columns of every row. Raises DataError.

    columns: those that are needed, () for all; of a table only these are read.
    """
    if is_table(path):
        yield from table_rows(path, columns)
        return
    read = _jsonl_rows if ".jsonl" in path.suffixes else _tsv_rows
    with open_text(path) as lines:
        for number, row in read(path, lines):
            yield f"{path}:{number}", row


def _tsv_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        header = next(rows, None)
        if not header:
            raise DataError(f"{path}:1: expected a header line with column names, got nothing")
        for row in rows:
            if len(row) != len(header):
                if not row:
                    continue
                raise DataError(
                    f"{path}:{rows.line_num}: {len(row)} columns, expected {len(header)} "
                    f"({', '.join(header)})"
                )
            yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not a line of TSV: {error}") from error


def _jsonl_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not a JSON object on one line: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {line.strip()[:40]!r}")
        yield number, row
