"""New folders, whole or not at all: filled beside their place, then renamed.

A folder is filled as `.NAME.<uuid>.new`. Beside it lies `.NAME.<uuid>.new.lock`, which its process
holds locked until the folder is renamed or removed. The system drops the lock of a process that was
killed: whoever makes the next folder here takes the lock and removes what the dead one left.

A lock on a file works on Linux, macOS, Windows and NFS; one on the folder itself would not on the
last two. It lies beside the folder, because what is renamed must hold nothing but its own files.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOTDIR
from pathlib import Path
from uuid import uuid4

from indexer.storage.durable import sync_folder
from searchengine.errors import CollectionBusy
from searchengine.storage.folders import os_errors

_LOCK = re.compile(r"(\..+\.[0-9a-f]{32}\.new)\.lock", re.DOTALL)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A scratch folder that gets its name, `path`, when the block has filled it.

    If the block fails, nothing remains. `path` is absolute, and absent or an empty folder.

    Raises:
        CollectionBusy: another process created `path` meanwhile.
        CollectionError: the disk is full, or the folder cannot be written.
    """
    from filelock import FileLock  # takes longer to import than a search

    scratch = path.with_name(f".{path.name}.{uuid4().hex}.new")
    lock = scratch.with_name(f"{scratch.name}.lock")
    with os_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(ENOTDIR, f"{path.parent} is a file") from error
        remove_abandoned(path.parent)
        held = FileLock(lock)
        try:
            held.acquire()
            scratch.mkdir()
            yield scratch
            sync_folder(scratch)
            _rename(scratch, path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            held.release()
            with suppress(OSError):  # nothing holds it: the next new folder removes it
                lock.unlink()


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch folders in `parent` whose process is dead.

    A scratch folder without a lock file is left alone: an older version may be filling it.
    """
    from filelock import Timeout

    # Whoever may not list or write the folder learns so when the new folder is made.
    with suppress(OSError):
        for lock in list(parent.iterdir()):
            if (match := _LOCK.fullmatch(lock.name)) is None:
                continue
            with suppress(Timeout, OSError):
                _remove_unlocked(parent / match[1], lock)


def _remove_unlocked(scratch: Path, lock: Path) -> None:
    """Remove a scratch folder and its lock file; raises Timeout where its process is alive."""
    from filelock import FileLock

    with FileLock(lock, timeout=0):
        shutil.rmtree(scratch, ignore_errors=True)
        if scratch.exists():
            return
        if os.name != "nt":
            # While it is held: a process that has just created it sees that, and creates another.
            lock.unlink()
            return
    lock.unlink()  # Windows removes no file that is open


def _rename(scratch: Path, path: Path) -> None:
    try:
        scratch.rename(path)
    except OSError as error:
        if not path.exists():
            raise
        raise CollectionBusy(
            f"{path} was created by another process just now; "
            "run this again to add to it, or choose another folder"
        ) from error
    sync_folder(path.parent)
