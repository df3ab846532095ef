"""Records of JSON files, tables and views of SQLite databases, and Parquet files."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from searchengine.corpus.documents import plain_record
from searchengine.corpus.text_files import bad, decode, parse_json, read_bytes

Records = Iterator[tuple[str, dict[str, Any]]]
"""Place ("file:row", from 1) and fields of each record."""
_ROWS, _BYTES = 1024, 1 << 16  # of a batch, and read at a time of each column
_INDEX = "__index_level_"  # begins the columns in which pandas keeps an index
_BINARY = re.compile("(large_|fixed_size_)?binary")


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of every element of an array, or of the only value. Raises CorpusError."""
    text, _, lost = decode(read_bytes(path), path)
    if lost:
        raise bad(path, lost[0])
    content = parse_json(text, str(path))
    for number, value in enumerate(content if isinstance(content, list) else [content], start=1):
        yield f"{path}:{number}", value


def read_sqlite(path: Path, table: str = "") -> Records:
    """Place ("file:table:row") and record of every row; binary values are left out.

    The database is opened for reading only. Raises CorpusError.
    """
    try:
        address = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
            tables = [name for (name,) in connection.execute(sql) if not name.startswith("sqlite_")]
            if table not in tables:
                listed = ", ".join(f"{name!r:.80}" for name in tables[:10]) or "none"
                more = ", …" if len(tables) > 10 else ""
                example = f"sqlite:///{path}?table={tables[0] if tables else 'NAME'}"
                what = f"no table {table!r}" if table else "is a database; name one of its tables"
                raise bad(path, f"{what} (tables: {listed}{more}), for example: {example}")
            cursor = connection.execute('SELECT * FROM "{}"'.format(table.replace('"', '""')))
            names = [column[0] for column in cursor.description]
            for number, row in enumerate(cursor, start=1):
                values = (None if isinstance(value, bytes) else value for value in row)
                yield f"{path}:{table}:{number}", dict(zip(names, values, strict=True))
    except sqlite3.Error as error:
        raise bad(path, f"cannot be read as a SQLite database ({error})") from error


def read_parquet(path: Path) -> Records:
    """Place and record of every row. Raises CorpusError."""
    import pyarrow.parquet

    try:
        # Reads row groups piece by piece: a file may have only one.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BYTES) as file:
            columns = _columns(file.schema_arrow)
            batches = file.iter_batches(_ROWS, columns=columns, use_threads=False)
            rows = (row for batch in batches for row in zip(*batch.columns, strict=True))
            for number, row in enumerate(rows, start=1):
                place, values = f"{path}:{number}", map(_held, row)
                yield place, plain_record(dict(zip(columns, values, strict=True)), place)
    except (pyarrow.ArrowException, OSError) as error:
        raise bad(path, f"not a Parquet file, or damaged ({error})") from error


def _columns(schema: Any) -> list[str]:
    """The columns that JSON can hold, without an index of pandas."""
    kept = (field for field in schema if not field.name.startswith(_INDEX))
    return [field.name for field in kept if not _is_binary(field.type)]


def _is_binary(kind: Any) -> bool:
    """Whether values of a type hold bytes."""
    inner = (kind.field(i).type for i in range(kind.num_fields))
    return bool(_BINARY.match(str(kind))) or any(map(_is_binary, inner))


def _held(scalar: Any) -> Any:
    """A value of Arrow; a time that Python does not know, beyond the year 9999, is its text."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        if callable(values := getattr(scalar, "values", None)):  # of a struct
            return {name: _held(item) for name, item in scalar.items()}
        if values is not None:  # of a list or map
            return [_held(item) for item in values]
        kind = "duration[us]" if str(scalar.type).startswith("duration") else "string"
        return scalar.cast(kind, safe=False).as_py()
