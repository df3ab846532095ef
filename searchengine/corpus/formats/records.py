"""Records without a library: JSON files, and tables and views of SQLite databases."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from searchengine.corpus.text_files import bad, decode, parse_json, read_bytes


def read_json(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and record of every object. Raises CorpusError for any other content."""
    text, _ = decode(read_bytes(path), path)
    content = parse_json(text, str(path))
    if isinstance(content, dict):
        yield f"{path}:1", content
        return
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
                    {n: v for n, v in cells if v is not None and not isinstance(v, bytes)},
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
