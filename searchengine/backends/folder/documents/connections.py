"""Connections to an SQLite file: shared by threads, safe in forked children, and without locks
where the folder cannot be written.

Pool and Turns. The threads of a process share connections (Pool), and write to a file one at a
time (Turns).

Forks. SQLite counts, once for each process and file, the locks that the process holds. A forked
child inherits the count and not the locks, so every connection it opens to that file would skip
locks that nobody holds (https://sqlite.org/howtocorrupt.html, section 2.6). Hence:

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
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock, RLock
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from searchengine.errors import CollectionError

T = TypeVar("T")
Identity = tuple[int, int]
"""The device and inode of a file."""


class Connected(Protocol):
    """Holds connections to a file."""

    def pause(self) -> None:
        """Wait until no statement runs, and let none begin."""

    def resume(self) -> None:
        """Statements may run again."""

    def abandon(self) -> Identity | None:
        """In a child: close the connections that may be closed; returns the file of the others."""


_guard = RLock()  # held while connections are opened or closed, and across a fork
_connected: WeakSet[Connected] = WeakSet()
_inherited: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
_paused: list[Connected] = []
_lost: set[Identity] = set()


@contextmanager
def guarded(holder: Connected) -> Iterator[None]:
    """No fork happens while the block opens or closes connections of `holder`."""
    with _guard:
        _connected.add(holder)
        yield


def inherit(user: T, after_fork: Callable[[T], None]) -> None:
    """Call a method of this object in every child forked from now on.

    It makes new locks, or has the object refuse to be used.
    """
    _inherited[user] = after_fork


def refuse_if_lost(identity: Identity, path: Path) -> None:
    """Raise CollectionError for a file that was being written when this process was forked."""
    if identity in _lost:
        raise CollectionError(
            f"{path.parent} was being written when this process was forked, so its locks cannot "
            "be known here; fork before writing, or start workers by multiprocessing's spawn"
        )


def _before() -> None:
    _guard.acquire()
    for holder in list(_connected):
        holder.pause()
        _paused.append(holder)


def _resume() -> None:
    while _paused:
        _paused.pop().resume()


def _in_parent() -> None:
    _resume()
    _guard.release()


def _in_child() -> None:
    holders = list(_paused)
    _resume()
    for holder in holders:
        identity = holder.abandon()
        if identity is not None:
            _lost.add(identity)
    _connected.clear()
    for user, after_fork in list(_inherited.items()):
        after_fork(user)
    _guard.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


State = tuple[int, int, bool, bool]


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


class Pool:
    """A pool of connections. Each runs one statement at a time, for any thread.

    Long statements leave one connection free, so that a slow filter never keeps a quick look-up
    waiting. If the pool has a single connection, all take turns.

    Attributes:
        written: the file, if these connections can write to it: a forked child must not close
            them (see Forks above).
    """

    def __init__(self) -> None:
        self.written: Identity | None = None
        self._all: list[sqlite3.Connection] = []
        self._free: list[sqlite3.Connection] = []
        self._changed = Condition(RLock())
        self._closed = False

    def add(self, connection: sqlite3.Connection) -> None:
        """Add a connection."""
        with self._changed:
            self._all.append(connection)
            self._free.append(connection)
            self._changed.notify_all()

    def discard(self, connection: sqlite3.Connection) -> None:
        """Close a connection that is not in use."""
        with self._changed:
            self._all.remove(connection)
            self._free.remove(connection)
            connection.close()

    @property
    def connections(self) -> tuple[sqlite3.Connection, ...]:
        """All connections, in the order added."""
        return tuple(self._all)

    @contextmanager
    def borrow(self, *, long: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for this thread alone during the block; waits until one is free.

        Raises sqlite3.ProgrammingError when the pool is closed.
        """
        with self._changed:
            kept_free = 1 if long and len(self._all) > 1 else 0
            self._changed.wait_for(lambda: self._closed or len(self._free) > kept_free)
            if self._closed:
                raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
            connection = self._free.pop()
        try:
            yield connection
        finally:
            with self._changed:
                if self._closed:
                    self._all.remove(connection)
                    connection.close()
                else:
                    self._free.append(connection)
                self._changed.notify_all()

    def close(self) -> None:
        """Close all connections; those in use are closed when they are returned."""
        with guarded(self), self._changed:
            self._closed = True
            for connection in self._free:
                connection.close()
            self._all, self._free = [c for c in self._all if c not in self._free], []
            self._changed.notify_all()

    def pause(self) -> None:
        """Wait until no statement runs, and let none begin until `resume`.

        Ctrl-C does not end the wait: Python ignores what a fork's hook raises, and would fork.
        """
        self._changed.acquire()
        while len(self._free) < len(self._all):
            with suppress(BaseException):
                self._changed.wait()

    def resume(self) -> None:
        """Let statements run again; called by the thread that paused."""
        self._changed.release()

    def abandon(self) -> Identity | None:
        """In a forked child: the connections belong to the parent."""
        if self._closed or self.written is None:
            self.close()
            return None
        for connection in self._all:  # never closed, nor at the interpreter's end
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._all, self._free, self._closed = [], [], True
        return self.written


class Turns:
    """Lets the threads of this process write to a file one at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: WeakValueDictionary[Identity, _Turn] = WeakValueDictionary()

    @contextmanager
    def hold(self, identity: Identity, *, wait: bool = True) -> Iterator[bool]:
        """Hold a file's turn during the block; yields False if it is taken and `wait` is False.

        A thread that has the turn already gets it again.
        """
        with self._lock:
            turn = self._files.get(identity) or _Turn()
            self._files[identity] = turn
        acquired = turn.lock.acquire(blocking=wait)
        try:
            yield acquired
        finally:
            if acquired:
                turn.lock.release()

    def after_fork(self) -> None:
        """In a forked child: no thread is writing."""
        self._lock = Lock()
        self._files = WeakValueDictionary()


class _Turn:
    def __init__(self) -> None:
        self.lock = RLock()


turns = Turns()
"""The turns of this process."""
inherit(turns, Turns.after_fork)


def way_out(path: Path) -> str:
    """What to do where SQLite cannot read or write: another user may own one of its files."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    present = (path.parent, *filter(os.path.exists, files))
    for action, mode in (("read", os.R_OK), ("write", os.W_OK)):
        for entry in present:
            if not accessible(entry, mode):
                return f"this user cannot {action} {entry}: change its owner or its mode"
    return "check that the disk has room and the folder can be written"
