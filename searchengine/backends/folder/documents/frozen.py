"""A documents.db that is read without locks, because its folder cannot be written.

SQLite reads a database with a write-ahead log by way of a file beside it (-shm), even where there
is no log. In a read-only folder it cannot make that file, and needs none: nobody writes there. If
the machine lost power, the log may be there without it; then each connection keeps in memory what
the file would hold.
"""

import os
import sqlite3
from pathlib import Path

from searchengine.backends.folder.documents import text_index

State = tuple[int, int, bool, bool]


def log_of(path: Path) -> Path:
    """SQLite's log of a database."""
    return path.with_name(path.name + "-wal")


def is_frozen(path: Path) -> bool:
    """Whether the folder cannot be written, and no process is writing."""
    log, shared = log_of(path).exists(), _shared(path).exists()
    return not os.access(path.parent, os.W_OK) and not (log and (shared or os.name != "posix"))


def state(path: Path) -> State:
    """Changes when the file changes or is about to."""
    file = path.stat()
    return file.st_mtime_ns, file.st_size, log_of(path).exists(), _shared(path).exists()


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection that any thread may use.

    `mode`: ro, rw, or rwc, which makes the file. A frozen file is read only, whatever the mode.
    """
    lockless = mode != "rwc" and is_frozen(path)
    if lockless:
        mode = "ro&vfs=unix-none" if log_of(path).exists() else "ro&immutable=1"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    text_index.connect(connection)
    if lockless:  # so that it makes no file for what the log holds
        connection.execute("PRAGMA locking_mode = exclusive")
    return connection


def _shared(path: Path) -> Path:
    return path.with_name(path.name + "-shm")
