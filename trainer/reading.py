"""The rows of a file: CSV, TSV or JSON lines; and integers of any type.

.csv files have quoted cells, separated as in their header; .jsonl files an object on each line;
other names are TSV without quoting. All are UTF-8, and may be .gz. Errors are one sentence.
"""

import csv
import gzip
import json
import operator
import re
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from searchengine.trainer.errors import DataError

Cells = dict[str, Any]
"""The cells of a row, by column."""

_SEPARATORS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')
_LONGEST_CELL = 1 << 26  # characters; csv's own limit of 128 KiB refuses long documents


def integer(value: Any) -> int | None:
    """An integer of any type, such as numpy's, as an int; None for any other value and for bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def column_names(path: Path) -> list[str]:
    """The columns of a file; objects of JSON lines may lack some. Raises as `read_rows`."""
    columns: dict[str, None] = {}
    for _, row in read_rows(path):
        columns |= dict.fromkeys(row)
        if ".jsonl" not in path.suffixes:
            break
    return list(columns)


def read_rows(path: Path) -> Iterator[tuple[int, Cells]]:
    """Every row with the number of its line. Raises DataError."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    parse = _jsonl_rows if ".jsonl" in path.suffixes else _table_rows
    try:
        if path.is_dir():
            raise DataError(f"{path}: is a folder: name the files in it")
        with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            yield from parse(path, lines)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: must be text in UTF-8, convert it first: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {reason}") from error


def _table_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, Cells]]:
    kind, first, number = "CSV" if ".csv" in path.suffixes else "TSV", lines.readline(), 1
    if "\0" in first:
        raise DataError(f"{path}: has NUL bytes, as UTF-16 has: convert the file to UTF-8")
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    rows = csv.reader(chain([first], lines), **table_dialect(kind, first))
    try:
        header = next(rows, [])
        number = rows.line_num + 1
        for row in rows:
            if row and len(row) != len(header):
                columns = ", ".join(header)
                raise DataError(
                    f"{path}:{number}: {len(row)} columns, expected {len(header)} ({columns})"
                )
            if row:
                yield number, dict(zip(header, row, strict=True))
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{number}: not a row of {kind}: {error}") from error


def table_dialect(kind: str, header: str) -> dict[str, Any]:
    """The options of csv.reader for a "CSV" or "TSV" with this first line."""
    if kind == "TSV":
        return {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    return {"delimiter": max(_SEPARATORS, key=_QUOTED.sub("", header).count), "strict": True}


def _jsonl_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, Cells]]:
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
