"""Connections to one SQLite file, shared by threads; and whose turn it is to write to it."""

import ctypes
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Lock, RLock
from weakref import WeakValueDictionary

from searchengine.storage.documents import forks
from searchengine.storage.documents.forks import Identity


class Pool:
    """Connections of which each runs one statement at a time, for any thread.

    Statements that may take long leave one connection to the others, so that a slow filter never
    keeps a quick look-up waiting. Where there is but one connection, all take turns.

    Attributes:
        written: the file, where these connections can write to it: a forked child may not close
            them (searchengine.storage.documents.forks).
    """

    def __init__(self) -> None:
        self.written: Identity | None = None
        self._every: list[sqlite3.Connection] = []
        self._free: list[sqlite3.Connection] = []
        self._changed = Condition(RLock())
        self._closed = False

    def add(self, connection: sqlite3.Connection) -> None:
        """One connection more."""
        with self._changed:
            self._every.append(connection)
            self._free.append(connection)
            self._changed.notify_all()

    def discard(self, connection: sqlite3.Connection) -> None:
        """Close a connection that no thread has borrowed."""
        with self._changed:
            self._every.remove(connection)
            self._free.remove(connection)
            connection.close()

    @property
    def connections(self) -> tuple[sqlite3.Connection, ...]:
        """All of them, the first one first."""
        return tuple(self._every)

    @contextmanager
    def borrow(self, *, long: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses during the block; waits for one.

        Raises sqlite3.ProgrammingError when the pool is closed.
        """
        with self._changed:
            kept_free = 1 if long and len(self._every) > 1 else 0
            self._changed.wait_for(lambda: self._closed or len(self._free) > kept_free)
            if self._closed:
                raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
            connection = self._free.pop()
        try:
            yield connection
        finally:
            with self._changed:
                if self._closed:
                    self._every.remove(connection)
                    connection.close()
                else:
                    self._free.append(connection)
                self._changed.notify_all()

    def close(self) -> None:
        """Close all connections, those in use as soon as they are given back."""
        with forks.guarded(self), self._changed:
            self._closed = True
            for connection in self._free:
                connection.close()
            self._every, self._free = [c for c in self._every if c not in self._free], []
            self._changed.notify_all()

    def pause(self) -> None:
        """Wait until no statement runs, and let none begin until `resume`.

        Ctrl-C does not end it: Python drops what a fork's hook raises, and would fork all the same.
        """
        self._changed.acquire()
        while len(self._free) < len(self._every):
            with suppress(BaseException):
                self._changed.wait()

    def resume(self) -> None:
        """Statements may run again; to be called by the thread that paused."""
        self._changed.release()

    def abandon(self) -> Identity | None:
        """In a forked child: the connections are the parent's (documents.forks)."""
        if self._closed or self.written is None:
            self.close()
            return None
        for connection in self._every:  # never closed, nor at the interpreter's end
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._every, self._free, self._closed = [], [], True
        return self.written


class Turns:
    """Lets the threads of this process write to a file one after the other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: WeakValueDictionary[Identity, _Turn] = WeakValueDictionary()

    @contextmanager
    def of(self, identity: Identity, *, wait: bool = True) -> Iterator[bool]:
        """Hold a file's turn throughout the block; yields False where `wait` forbade waiting.

        A thread that has the turn already does not wait for itself.
        """
        with self._lock:
            turn = self._files.get(identity) or _Turn()
            self._files[identity] = turn
        taken = turn.lock.acquire(blocking=wait)
        try:
            yield taken
        finally:
            if taken:
                turn.lock.release()

    def after_fork(self) -> None:
        """In a child: nobody is writing."""
        self._lock = Lock()
        self._files = WeakValueDictionary()


class _Turn:
    def __init__(self) -> None:
        self.lock = RLock()


turns = Turns()
"""Of this process."""
forks.inherit(turns)
