"""Files that survive a power cut: checksums and syncs."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What a file system without F_FULLFSYNC answers; any other error is the disk's.
_REFUSED = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS}


def sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(descriptor: int) -> None:
    """Force an open file or folder to the disk.

    On macOS fsync leaves the bytes in the drive's own cache, which a power cut empties. F_FULLFSYNC
    has the drive write them; where the file system does not know it, fsync is all there is.
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
    """Force a folder's entries to the disk. Only POSIX systems can; elsewhere nothing is done."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(path: Path) -> Iterator[int | None]:
    """A descriptor of a folder, which stays that folder's when others take its name.

    None on Windows, which has no such descriptors: names are looked up again there.
    """
    if os.name != "posix":
        yield None
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def below(path: Path, descriptor: int | None) -> Path:
    """How to name something in the folder of a descriptor, in calls that take `dir_fd`."""
    return path if descriptor is None else Path(path.name)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that never changes; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)
