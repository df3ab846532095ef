"""Folders of pending work, and whether the process that does the work is alive.

A work named NAME in the table `pending` fills the folder `pending/NAME`. Beside it is
`pending/NAME.lock`, which its process holds locked; the system releases the lock of a killed
process. The lock is taken before the transaction that adds the row ends, so a row whose lock is
free belongs to nobody: another process may continue its work, or discard it.

A process adopts an abandoned folder, or removes it, within a write transaction only. The folder
`pending` itself stays, empty as it may be: another process may be about to make a lock in it.
"""

import os
import re
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.folder.documents import forks, pending
from searchengine.backends.folder.documents.store import Store
from searchengine.indexer.storage.durable import sync_folder

_NAME = re.compile(r"[0-9a-f]{32}")


class _Names:
    """Names of folders."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        forks.inherit(self)

    def after_fork(self) -> None:
        """In a forked child: they belong to the parent."""
        self.names = set()


held = _Names()
"""The folders that threads of this process own."""


class Owner:
    """Holds the lock of a folder, from `take` to `release`.

    Attributes:
        name: of the folder.
        folder: its path; it need not exist.
    """

    def __init__(self, path: Path, name: str) -> None:
        from filelock import FileLock  # takes longer to import than a search

        self.name = name
        self.folder = path / "pending" / name
        self._lock = FileLock(_lock_file(path, name))

    @classmethod
    def new(cls, path: Path) -> "Owner":
        """The owner of a new folder, which it creates."""
        name = uuid4().hex
        owner = cls(path, name)
        if not owner.take():  # nobody else knows the name
            raise OSError(f"{owner.folder} cannot be locked")
        owner.folder.mkdir()
        for folder in (owner.folder.parent, path):
            sync_folder(folder)
        return owner

    def take(self) -> bool:
        """Take the lock, unless another thread or process has it."""
        from filelock import Timeout

        if self.name in held.names:
            return False
        self.folder.parent.mkdir(exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        held.names.add(self.name)
        return True

    def release(self) -> None:
        """Release the lock: another process may go on."""
        held.names.discard(self.name)
        self._lock.release()

    def clear(self) -> None:
        """Remove the folder and the lock; within a transaction that removes its rows, or after."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if os.name != "nt":
            Path(self._lock.lock_file).unlink(missing_ok=True)
        self.release()
        with suppress(OSError):
            Path(self._lock.lock_file).unlink(missing_ok=True)  # Windows removes no open file


def who() -> dict[str, Any]:
    """This process and the time, for `Work.details`."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"by": f"{socket.gethostname()}:{os.getpid()}", "started": now}


def here(name: str) -> bool:
    """Whether a thread of this process owns a folder."""
    return name in held.names


def alive(path: Path, names: Iterable[str]) -> set[str]:
    """The names of folders whose process is alive."""
    living = set()
    for name in dict.fromkeys(names):
        if name in held.names:
            living.add(name)
        elif _lock_file(path, name).exists():
            owner = Owner(path, name)
            if owner.take():
                owner.release()
            else:
                living.add(name)
    return living


def remove_abandoned(path: Path, store: Store) -> None:
    """Remove the folders that no row names and nobody owns. Call it within a transaction."""
    folder = path / "pending"
    if not folder.is_dir():
        return
    named = {work.folder for work in pending.works(store)}
    for name in {entry.name.removesuffix(".lock") for entry in folder.iterdir()} - named:
        if _NAME.fullmatch(name) and (owner := Owner(path, name)).take():
            owner.clear()


def _lock_file(path: Path, name: str) -> Path:
    return path / "pending" / f"{name}.lock"
