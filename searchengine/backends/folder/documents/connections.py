"""Connections to an SQLite file that threads share (Pool), and their turns to write (Turns)."""

import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock, RLock
from weakref import WeakValueDictionary

from searchengine.backends.folder.documents import forks
from searchengine.backends.folder.documents.forks import Identity


class Pool:
    """A pool of connections. Each runs one statement at a time, for any thread.

    Long statements leave one connection free, so that a slow filter never keeps a quick look-up
    waiting. If the pool has a single connection, all take turns.

    Attributes:
        written: the file, if these connections can write to it: a forked child must not close
            them (searchengine.backends.folder.documents.forks).
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
        with forks.guarded(self), self._changed:
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
        """In a forked child: the connections belong to the parent (documents.forks)."""
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
    def of(self, identity: Identity, *, wait: bool = True) -> Iterator[bool]:
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
forks.inherit(turns)


def way_out(path: Path) -> str:
    """What to do where SQLite cannot read or write: another user may own one of its files."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    for each in (path.parent, *filter(Path.exists, files)):
        if not os.access(each, os.W_OK):
            return f"this user cannot write {each}: change its owner or its mode"
    return "check that the disk has room and the folder can be written"
