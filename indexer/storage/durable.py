"""Files that survive a power cut: checksums and syncs."""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors of a file system without F_FULLFSYNC; any other error comes from the disk.
_REFUSED = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS}


def sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(descriptor: int) -> None:
    """Force an open file or folder to the disk.

    On macOS fsync leaves the bytes in the drive's cache, which a power cut empties. F_FULLFSYNC
    makes the drive write them; where the file system does not support it, fsync is used.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
    os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Force a written file to the disk."""
    with path.open("r+b") as file:
        sync(file.fileno())


def sync_folder(path: Path) -> None:
    """Force a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder, which stays valid when another folder takes its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link an immutable file; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)
