"""Makes connections to SQLite safe in forked children.

SQLite counts, once for each process and file, the locks that the process holds. A forked child
inherits the count and not the locks, so every connection it opens to that file would skip locks
that nobody holds (https://sqlite.org/howtocorrupt.html, section 2.6). Hence:

* before a fork, running statements end, and no connection is being opened or closed;
* in the child, the connections that only read are closed: no lock of the parent's is touched, and
  SQLite's counts are right again. Their users open new ones at the next use;
* a connection that can write is neither used nor closed in the child, because closing it may fold
  and remove the log of other processes. The child refuses to open its file, with an error.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Protocol
from weakref import WeakSet

from searchengine.errors import CollectionError

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


class Inherited(Protocol):
    """Must be reset in a child, before it is used there."""

    def after_fork(self) -> None:
        """Make new locks, and open again at the next use."""


_guard = RLock()  # held while connections are opened or closed, and across a fork
_connected: WeakSet[Connected] = WeakSet()
_inherited: WeakSet[Inherited] = WeakSet()
_paused: list[Connected] = []
_lost: set[Identity] = set()


@contextmanager
def guarded(holder: Connected) -> Iterator[None]:
    """No fork happens while the block opens or closes connections of `holder`."""
    with _guard:
        _connected.add(holder)
        yield


def inherit(user: Inherited) -> None:
    """Call `after_fork` of this object in every child forked from now on."""
    _inherited.add(user)


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
    for user in list(_inherited):
        user.after_fork()
    _guard.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
