"""New folders, whole or not at all: filled under a temporary name, then renamed.

A folder is filled as `.NAME.<uuid>.new`, in its parent. One that is there already, and empty, is
filled in itself and stays: it may be a mount point, or somebody's working directory, and its owner
and mode were chosen. What is in the scratch folder then moves up, under a lock. Beside a scratch
folder is `.NAME.<uuid>.new.lock`, which its process
locks until the folder is renamed or removed. The system releases the lock of a killed process: the
next process that creates a folder here takes the lock and removes the abandoned folder.

A lock on a file works on Linux, macOS, Windows and NFS; one on the folder itself would not on the
last two. It is beside the folder because the renamed folder must contain only its own files.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOTDIR
from pathlib import Path
from uuid import uuid4

from searchengine.backends.folder.folders import os_errors
from searchengine.errors import CollectionBusy
from searchengine.indexer.storage.durable import sync_folder

# What an empty folder may hold: the folder that a file system makes, and that of no segments, which
# a process left that was killed while it moved them up.
_EMPTY = ("lost+found", "segments")
_DATABASE = "documents.db"
_LOCK = re.compile(r"(\..+\.[0-9a-f]{32}\.new)\.lock", re.DOTALL)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A scratch folder that gets its name, `path`, when the block has filled it.

    If the block fails, it is removed. `path` is absolute, and absent or an empty folder.

    Raises:
        CollectionBusy: another process created `path` meanwhile.
        CollectionError: the disk is full, or the folder cannot be written.
    """
    from filelock import FileLock  # takes longer to import than a search

    present = path.is_dir()
    home = path if present else path.parent
    scratch = home / f".{path.name}.{uuid4().hex}.new"
    lock = scratch.with_name(f"{scratch.name}.lock")
    with os_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(ENOTDIR, f"{path.parent} is a file") from error
        remove_abandoned(home)
        file_lock = FileLock(lock)
        try:
            file_lock.acquire()
            scratch.mkdir()
            yield scratch
            sync_folder(scratch)
            if present:
                _move_up(scratch, path)
            else:
                _rename(scratch, path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            file_lock.release()
            with suppress(OSError):  # unlocked, so the next new folder removes it
                lock.unlink()


def is_free(path: Path) -> bool:
    """Whether a new folder can be created at a path: nothing is there, or an empty folder."""
    if not path.is_dir():
        return not path.exists()
    remove_abandoned(path)
    names = [entry.name for entry in path.iterdir() if not _is_scratch(entry.name)]
    if set(names) - set(_EMPTY):
        return False
    return "segments" not in names or not any((path / "segments").iterdir())


def _is_scratch(name: str) -> bool:
    return _LOCK.fullmatch(name) is not None or _LOCK.fullmatch(f"{name}.lock") is not None


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch folders in `parent` whose process is dead.

    A scratch folder without a lock file is left alone: an older version may be filling it.
    """
    from filelock import Timeout

    # A folder that cannot be listed or written is reported when the new folder is created.
    with suppress(OSError):
        for lock in list(parent.iterdir()):
            if (match := _LOCK.fullmatch(lock.name)) is None:
                continue
            with suppress(Timeout, OSError):
                _remove_unlocked(parent / match[1], lock)


def _remove_unlocked(scratch: Path, lock: Path) -> None:
    """Remove a scratch folder and its lock file; raises Timeout if its process is alive."""
    from filelock import FileLock

    with FileLock(lock, timeout=0):
        shutil.rmtree(scratch, ignore_errors=True)
        if scratch.exists():
            return
        if os.name != "nt":
            # While locked: a process that waits for it sees that it is gone, and creates another.
            lock.unlink()
            return
    lock.unlink()  # Windows cannot remove an open file


def _rename(scratch: Path, path: Path) -> None:
    try:
        scratch.rename(path)
    except OSError as error:
        if not path.exists():
            raise
        raise _created_meanwhile(path) from error
    sync_folder(path.parent)


def _move_up(scratch: Path, path: Path) -> None:
    """Move what is in a scratch folder into the empty folder that it is in, the database last."""
    from filelock import FileLock

    lock = path / f".{path.name}.{'0' * 32}.new.lock"
    with FileLock(lock):
        try:
            if not is_free(path):
                raise _created_meanwhile(path)
            for entry in sorted(scratch.iterdir(), key=lambda entry: entry.name == _DATABASE):
                entry.replace(path / entry.name)
            sync_folder(path)
        finally:
            if os.name != "nt":  # Windows cannot remove an open file
                lock.unlink()


def _created_meanwhile(path: Path) -> CollectionBusy:
    return CollectionBusy(
        f"{path} was created by another process just now; "
        "run this again to add to it, or choose another folder"
    )
