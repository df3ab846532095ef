"""Rows of Parquet files and of Hugging Face datasets, a batch of them in memory at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from searchengine.trainer.errors import DataError, install_line

HUB = "hf:"
_ROWS, _BYTES = 1024, 1 << 16  # of a batch, and read at a time of each column


def is_table(path: Path) -> bool:
    """Whether this names a Parquet file, a folder that `Dataset.save_to_disk` wrote, or hf:NAME."""
    return path.suffix == ".parquet" or _is_named(path) or _is_saved(path)


def table_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:row", from 1) and columns of every row. Raises DataError.

    columns: those that are needed, () for all; a stream has the others as well.
    """
    read = _of_parquet if path.suffix == ".parquet" else _of_dataset
    rows = read(path, list(columns))
    for number, row in enumerate(rows, 1):
        yield f"{path}:{number}", row


def _is_named(path: Path) -> bool:
    return str(path).startswith(HUB)


def _is_saved(path: Path) -> bool:
    names = ("dataset_info.json", "dataset_dict.json")
    return path.is_dir() and any((path / name).is_file() for name in names)


def _of_parquet(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise _lacking(path, "pyarrow", "formats") from None
    try:
        # Reads row groups piece by piece: a file may have only one.
        parts = {"pre_buffer": False, "buffer_size": _BYTES}
        with pyarrow.parquet.ParquetFile(path, **parts) as file:
            batches = file.iter_batches(_ROWS, columns=columns or None, use_threads=False)
            for batch in batches:
                yield from batch.to_pylist()
    except Exception as error:  # of any type: a text is not UTF-8, or a date is out of range
        raise DataError(f"{path}: cannot be read as a Parquet file: {error}") from error


def _of_dataset(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of a dataset, from the disk or as they come from the hub."""
    try:
        import datasets
    except ImportError:
        raise _lacking(path, "datasets", "datasets") from None
    try:
        if _is_named(path):
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
    except Exception as error:  # of any type: of the format of its files, or of the connection
        raise DataError(f"{path}: cannot be read as a dataset: {error}") from error
    first = next(iter(rows))
    raise DataError(f"{path}: holds {', '.join(rows)}: name one of them, as {path / first}")


def _lacking(path: Path, package: str, extra: str) -> DataError:
    return DataError(f"{path}: reading it needs {package}: {install_line(extra)}")
