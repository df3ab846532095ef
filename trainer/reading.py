"""Reading text files, plain or .gz, UTF-8, with one-sentence errors; and integers of any type.

Of tables, .csv files have quoted cells; all others are TSV without quoting.
"""

import csv
import gzip
import operator
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

from searchengine.trainer.errors import DataError

HUB = "hf:"
"""What is put before the name of a Hugging Face dataset."""


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
    if not path.is_file():
        kind = "is a folder: name the files in it" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {kind}")
    try:
        if path.suffix == ".gz":
            raw = cast(IO[bytes], gzip.open(path, "rb"))
        else:
            raw = path.open("rb")
        with raw, TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
            yield lines
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 (byte {error.object[error.start]:#04x}): convert the file first"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def table_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row of a CSV or TSV file. Raises DataError, with the line."""
    dialect: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    kind = "CSV" if ".csv" in path.suffixes else "TSV"
    if kind == "CSV":
        dialect = {"strict": True}
    rows = csv.reader(lines, **dialect)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not a row of {kind}: {error}") from error
