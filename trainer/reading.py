"""Reading text files, plain or .gz, UTF-8, with one-sentence errors; and integers of any type.

Of tables, .csv files have quoted cells, separated as in their header; all others are TSV without
quoting.
"""

import csv
import gzip
import operator
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from searchengine.trainer.errors import DataError

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


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Lines of a UTF-8 file, unpacked if it ends in .gz. Raises DataError, also while reading."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder: name the files in it")
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            yield lines
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: must be UTF-8, convert the file first: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def table_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """First line and cells of each row of a CSV or TSV file. Raises DataError, with the line."""
    kind = "CSV" if ".csv" in path.suffixes else "TSV"
    header = lines.readline()
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    rows = csv.reader(chain([header], lines), **table_dialect(kind, header))
    number = 1
    try:
        for row in rows:
            yield number, row
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{number}: not a row of {kind}: {error}") from error


def table_dialect(kind: str, header: str) -> dict[str, Any]:
    """The options of csv.reader for a "CSV" or "TSV" with this first line."""
    if kind == "TSV":
        return {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    return {"delimiter": max(_SEPARATORS, key=_QUOTED.sub("", header).count), "strict": True}
