"""Parquet and Arrow files, batch by batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from searchengine.corpus.documents import plain_record
from searchengine.corpus.text_files import bad

_ROWS, _BYTES = 1024, 1 << 16  # of a batch, and read at a time of each column
_INDEX = "__index_level_"  # begins the columns in which pandas keeps an index


def read_parquet(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:row", from 1) and record of every row. Raises CorpusError."""
    try:
        # Reads row groups piece by piece: a file may have only one.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BYTES) as file:
            columns = _columns(file.schema_arrow)
            batches = file.iter_batches(_ROWS, columns=columns, use_threads=False)
            yield from _records(batches, path)
    except (pyarrow.ArrowException, OSError) as error:
        raise bad(path, f"not a Parquet file, or damaged ({error})") from error


def read_arrow(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and record of every row of an Arrow file or stream. Raises CorpusError."""
    try:
        with pyarrow.memory_map(str(path)) as source:
            yield from _records(_batches(source), path)
    except (pyarrow.ArrowException, OSError) as error:
        raise bad(path, f"not an Arrow file, or damaged ({error})") from error


def _batches(source: Any) -> Iterator[Any]:
    try:
        file = pyarrow.ipc.open_file(source)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        stream = pyarrow.ipc.open_stream(source)  # as Hugging Face datasets are stored
        for batch in stream:
            yield batch.select(_columns(stream.schema))
    else:
        for i in range(file.num_record_batches):
            yield file.get_batch(i).select(_columns(file.schema))


def _columns(schema: Any) -> list[str]:
    """The columns that JSON can hold, without an index of pandas."""
    return [
        field.name
        for field in schema
        if not field.name.startswith(_INDEX) and not _is_binary(field.type)
    ]


def _is_binary(kind: Any) -> bool:
    types = pyarrow.types
    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    if any(check(kind) for check in binary):
        return True
    return any(_is_binary(kind.field(i).type) for i in range(kind.num_fields))


def _records(batches: Iterator[Any], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows without values that are missing: in a table every row has every column."""
    number = 0
    for batch in batches:
        for start in range(0, len(batch), _ROWS):
            for row in batch.slice(start, _ROWS).to_pylist():
                number += 1
                place = f"{path}:{number}"
                record = {name: value for name, value in row.items() if value is not None}
                yield place, plain_record(record, place)
