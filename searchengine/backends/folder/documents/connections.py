"""Connections to an SQLite file: shared by threads, safe in forked children, and without locks
where the folder cannot be written.

Forks. SQLite counts, once for each process and file, the locks that the process holds. A forked
child inherits the count and not the locks, so every connection it opens to that file would skip
locks that nobody holds (https://sqlite.org/howtocorrupt.html, section 2.6). Hence, here and nowhere
else:

* before a fork, running statements end, and no connection is being opened or closed;
* in the child, the connections that only read are closed: no lock of the parent's is touched, and
  SQLite's counts are right again. The engine that used them is refused (engine.OfParent); one that
  the child opens itself has connections of its own;
* a connection that can write is neither used nor closed in the child, because closing it may fold
  and remove the log of other processes. The child refuses to open its file, with an error.

Frozen files. To read a database with a write-ahead log, SQLite uses a file next to it (-shm), even
without a log. In a read-only folder it cannot make that file, and needs none: nobody writes there.
If the machine lost power, the log may be there without it; then each connection keeps in memory
what the file would hold.
"""

import ctypes
import errno
import os
import resource
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from searchengine.errors import CollectionError

T = TypeVar("T")
Identity = tuple[int, int]
"""The device and inode of a file."""
State = tuple[int, int, bool, bool]
guard = RLock()
"""Held while connections are opened or closed, and across a fork."""
_open: WeakSet["Connection"] = WeakSet()
_inherited: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
_paused: list["Connection"] = []
_lost: set[Identity] = set()


class Connection(sqlite3.Connection):
    """A connection that any thread may use while it holds `lock`: one statement at a time.

    Attributes:
        lock: held while a statement runs.
        written: the file, if this connection can write to it.
        usable: False in a child that inherited a connection that can write.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lock, self.usable = RLock(), True
        self.written: Identity | None = None
        _open.add(self)

    def close(self) -> None:
        """Close it when no statement runs; closing twice is harmless."""
        with guard, self.lock:
            if self.usable:
                super().close()


def inherit(user: T, after_fork: Callable[[T], None]) -> None:
    """Call a method of this object in every child forked from now on: it refuses to be used."""
    _inherited[user] = after_fork


def refuse_if_lost(identity: Identity, path: Path) -> None:
    """Raise CollectionError for a file that was being written when this process was forked."""
    if identity in _lost:
        raise CollectionError(
            f"{path.parent} was being written when this process was forked, so its locks cannot "
            "be known here; fork before writing, or start workers by multiprocessing's spawn"
        )


def _take(lock: Any) -> None:
    """Ctrl-C does not end the wait: Python ignores what a fork's hook raises, and would fork."""
    while True:
        with suppress(BaseException):
            lock.acquire()
            return


def _before() -> None:
    _take(guard)
    for connection in list(_open):
        _take(connection.lock)
        _paused.append(connection)


def _in_parent() -> None:
    while _paused:
        _paused.pop().lock.release()
    guard.release()


def _in_child() -> None:
    for connection in list(_paused):
        if connection.written is None:
            connection.close()
        elif connection.usable:
            connection.usable = False
            _lost.add(connection.written)
            # Never closed, nor at the interpreter's end.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()
    _turns.clear()  # no thread is writing here
    for user, after_fork in list(_inherited.items()):
        after_fork(user)
    _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def log_of(path: Path) -> Path:
    """SQLite's log of a database."""
    return path.with_name(path.name + "-wal")


def accessible(path: Path, mode: int) -> bool:
    """Whether the user that this process acts as may do this; as os.access."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def is_frozen(path: Path) -> bool:
    """Whether the folder cannot be written, and no process is writing."""
    log, shared = log_of(path).exists(), _shared(path).exists()
    return not accessible(path.parent, os.W_OK) and not (log and shared)


def frozen_state(path: Path) -> State:
    """Changes when the file changes or is about to."""
    file = path.stat()
    return file.st_mtime_ns, file.st_size, log_of(path).exists(), _shared(path).exists()


def connect(path: Path, mode: str) -> Connection:
    """A connection. `mode`: ro, rw, or rwc, which makes the file; or immutable, for a file that
    nobody writes. A frozen file is read only, whatever the mode."""
    lockless = mode in ("ro", "rw") and is_frozen(path)
    if lockless:
        mode = "ro&vfs=unix-none" if log_of(path).exists() else "immutable"
    mode = "ro&immutable=1" if mode == "immutable" else mode
    with guard:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
    if mode == "rwc":
        share_as_folder(path, connection)
    if lockless:  # so that it makes no file for what the log holds
        connection.execute("PRAGMA locking_mode = exclusive")
    return connection


def share_as_folder(path: Path, connection: sqlite3.Connection) -> None:
    """Give a new database the permissions of its folder: SQLite lets no group write to it."""
    connection.execute("PRAGMA schema_version")  # makes the file
    path.chmod(path.parent.stat().st_mode & 0o666)


def _shared(path: Path) -> Path:
    return path.with_name(path.name + "-shm")


_turns: dict[Identity, Any] = {}


def turn(identity: Identity) -> Any:
    """The lock by which the threads of this process write to a file one at a time."""
    return _turns.setdefault(identity, RLock())


_NO_MAPPING = (sqlite3.SQLITE_IOERR_SHMMAP, sqlite3.SQLITE_IOERR_NOMEM)
_LIMITS = {
    errno.EMFILE: "this process has as many files open as it may ({} of ulimit -n): close some "
    "collections, or raise the limit",
    errno.ENFILE: "the system has as many files open as it may: close some programs",
    errno.ENOMEM: "there is no memory left for a mapping: free some, or raise the limit of this "
    "process (ulimit -v, or its container's)",
}


def exhausted(error: BaseException) -> str | None:
    """The limit of this process or machine that was reached, and the way out; None: none was."""
    for cause in filter(None, (error, error.__cause__)):
        number, code = getattr(cause, "errno", None), getattr(cause, "sqlite_errorcode", 0)
        if isinstance(cause, MemoryError) or code in _NO_MAPPING:
            number = errno.ENOMEM
        elif code & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):  # it does not say why
            with ExitStack() as stack:
                try:
                    for _ in range(4):  # as the database, its log, and the memory they share
                        stack.enter_context(open(os.devnull))
                except OSError as refused:
                    number = refused.errno
        elif number is None:  # faiss has no numbers
            number = next((n for n in _LIMITS if os.strerror(n) in str(cause)), None)
        if number in _LIMITS:
            return _LIMITS[number].format(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return None


def way_out(path: Path) -> str:
    """What to do where SQLite cannot read or write: another user may own one of its files."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    present = (path.parent, *filter(os.path.exists, files))
    for action, mode in (("read", os.R_OK), ("write", os.W_OK)):
        for entry in present:
            if not accessible(entry, mode):
                return f"this user cannot {action} {entry}: change its owner or its mode"
    return "check that the disk has room and the folder can be written"
