"""Records of JSON files, tables and views of SQLite databases, Parquet and Arrow files."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from searchengine.corpus.documents import batch_rows, plain_record
from searchengine.corpus.text_files import bad, decode, parse_json, read_bytes

_ROWS, _BYTES = 1024, 1 << 16  # of a batch, and read at a time of each column
_INDEX = "__index_level_"  # begins the columns in which pandas keeps an index
_BINARY = ("binary", "large_binary", "fixed_size_binary", "binary_view")


def read_json(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and record of every object. Raises CorpusError for any other content."""
    text, _ = decode(read_bytes(path), path)
    content = parse_json(text, str(path))
    content = [content] if isinstance(content, dict) else content
    if not isinstance(content, list):
        what = f"expected an array of objects, or one object, got {type(content).__name__}"
        raise bad(path, what)
    for number, record in enumerate(content, start=1):
        if not isinstance(record, dict):
            what = f"element {number} of the array must be an object, got {type(record).__name__}"
            raise bad(path, what)
        yield f"{path}:{number}", record


def read_sqlite(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:table:row", from 1) and record of every row; binary values are left out.

    The database is opened for reading only. Raises CorpusError.
    """
    try:
        address = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            _check_table(connection, path, table)
            name = table.replace('"', '""')
            cursor = connection.execute(f'SELECT * FROM "{name}"')
            names = [column[0] for column in cursor.description]
            for number, row in enumerate(cursor, start=1):
                cells = zip(names, row, strict=True)
                yield (
                    f"{path}:{table}:{number}",
                    {n: None if isinstance(v, bytes) else v for n, v in cells},
                )
    except sqlite3.Error as error:
        raise bad(path, f"cannot be read as a SQLite database ({error})") from error


def _check_table(connection: sqlite3.Connection, path: Path, table: str) -> None:
    sql = (
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
    )
    tables = [row[0] for row in connection.execute(sql)]
    if table not in tables:
        listed = ", ".join([f"{name!r:.80}" for name in tables[:10]] + ["…"] * (len(tables) > 10))
        example = f"sqlite:///{path}?table={tables[0] if tables else 'NAME'}"
        what = f"no table {table!r}" if table else "is a database; name one of its tables"
        raise bad(path, f"{what} (tables: {listed or 'none'}), for example: {example}")


def read_parquet(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:row", from 1) and record of every row. Raises CorpusError."""
    import pyarrow.parquet

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
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as source:
            yield from _records(_batches(source), path)
    except (pyarrow.ArrowException, OSError) as error:
        raise bad(path, f"not an Arrow file, or damaged ({error})") from error


def _batches(source: Any) -> Iterator[Any]:
    import pyarrow

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
    """Whether values of a type hold bytes."""
    inner = (kind.field(i).type for i in range(kind.num_fields))
    return str(kind).partition("[")[0] in _BINARY or any(map(_is_binary, inner))


def _records(batches: Iterator[Any], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = chain.from_iterable(map(batch_rows, batches))
    for number, row in enumerate(rows, start=1):
        place = f"{path}:{number}"
        yield place, plain_record(row, place)
