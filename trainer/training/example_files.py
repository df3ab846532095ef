"""Training files to examples, row by row.

TSV and CSV have a header line, and TSV no quoting; JSONL has one object per line. All are UTF-8 and
may be .gz. Parquet files and Hugging Face datasets are tables with the same columns. They are read
a batch at a time. What an example is follows from the names of its columns: see `rows`.
"""

import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from searchengine.trainer.errors import DataError, install_line
from searchengine.trainer.reading import HUB, open_text, table_rows
from searchengine.trainer.training.rows import (
    Example,
    Header,
    Kind,
    Reading,
    Texts,
    choose_columns,
    read_row,
)

_FIRST_ROWS = 1000  # rows of a table whose values show what a column holds
_ROWS, _BYTES = 1024, 1 << 16  # of a batch of a Parquet file, and read at a time of each column


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
    """Equal for equal texts: the key, or the text itself if it has no letters or digits."""
    return key(text) or text


def texts_without_label(example: Example) -> Texts:
    """The texts of an example, without its label or scores."""
    kind, texts = example
    return texts[:-1] if kind in (Kind.LABELLED, Kind.SCORED) else texts


def texts_that_match(example: Example) -> Texts:
    """The texts of an example that belong together: without label, scores and hard negatives."""
    kind, texts = example
    return texts[:2] if kind is Kind.TRIPLET else texts_without_label(example)


def sentences(path: Path) -> Iterator[str]:
    """Every sentence of a file of examples or of scored pairs."""
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
    except OSError as error:
        raise _unreadable(path, error) from error


def column_names(path: Path) -> list[str]:
    """The columns of a file. Raises DataError."""
    try:
        return list(_header(path).first)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    """Also where the path itself is refused: its name is too long, perhaps."""
    return DataError(f"{path}: cannot be read: {error.strerror}")


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
    """Place ("file:line", of tables "file:row") and columns of every row. Raises DataError.

    columns: the ones to read of a table, () for all.
    """
    if is_table(path):
        read_table = _parquet_rows if path.suffix == ".parquet" else _dataset_rows
        for number, row in enumerate(read_table(path, list(columns)), 1):
            yield f"{path}:{number}", row
        return
    read = _jsonl_rows if ".jsonl" in path.suffixes else _table_rows
    with open_text(path) as lines:
        for number, row in read(path, lines):
            yield f"{path}:{number}", row


def _table_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = table_rows(path, lines)
    _, header = next(rows, (1, []))
    if not header:
        raise DataError(f"{path}:1: expected a header line with column names, got nothing")
    for number, row in rows:
        if row and len(row) != len(header):
            raise DataError(
                f"{path}:{number}: {len(row)} columns, expected {len(header)} ({', '.join(header)})"
            )
        if row:
            yield number, dict(zip(header, row, strict=True))


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


def is_table(path: Path) -> bool:
    """Whether this names a Parquet file, a folder of `Dataset.save_to_disk`, or hf:NAME."""
    if path.suffix == ".parquet" or str(path).startswith(HUB):
        return True
    names = ("dataset_info.json", "dataset_dict.json")
    return path.is_dir() and any((path / name).is_file() for name in names)


def _parquet_rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise _lacking(path, "pyarrow", "formats") from None
    try:
        # Reads row groups piece by piece: a file may have only one.
        pieces = {"pre_buffer": False, "buffer_size": _BYTES}
        with pyarrow.parquet.ParquetFile(path, **pieces) as file:
            for batch in file.iter_batches(_ROWS, columns=columns or None, use_threads=False):
                yield from batch.to_pylist()
    except Exception as error:  # of any type: a text is not UTF-8, or a date is out of range
        raise DataError(f"{path}: cannot be read as a Parquet file: {error}") from error


def _dataset_rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of a dataset, from the disk or as they come from the hub."""
    try:
        import datasets
    except ImportError:
        raise _lacking(path, "datasets", "datasets") from None
    try:
        if str(path).startswith(HUB):
            name, _, rest = str(path).removeprefix(HUB).partition(":")
            split, _, subset = rest.partition(":")
            if not name:
                raise ValueError("expected hf:NAME")
            rows: Any = datasets.load_dataset(
                name, subset or None, split=split or "train", streaming=True
            )
        else:
            rows = datasets.load_from_disk(str(path))
        if not isinstance(rows, dict):
            # A stream is not known to have the same columns in every part.
            select = columns and isinstance(rows, datasets.Dataset)
            yield from rows.select_columns(columns) if select else rows
            return
    except Exception as error:  # of any type: the format of its files, or the connection
        raise DataError(f"{path}: cannot be read as a dataset: {error}") from error
    first = next(iter(rows))
    raise DataError(f"{path}: holds {', '.join(rows)}: name one of them, as {path / first}")


def _lacking(path: Path, package: str, extra: str) -> DataError:
    return DataError(f"{path}: reading it needs {package}: {install_line(extra)}")
