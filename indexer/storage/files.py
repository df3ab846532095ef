"""Files: their checksums and sizes, to compare them with, and syncs, to survive a power cut."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from searchengine.indexer.errors import SegmentError, shown

Checksum = Callable[[Path], str]
"""A file to its hexadecimal SHA-256: `sha256`, or what remembers it while the file stays."""


def sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(descriptor: int) -> None:
    """Force an open file or folder to the disk.

    On macOS fsync leaves the bytes in the drive's cache, which a power cut empties. F_FULLFSYNC
    makes the drive write them; where that fails, fsync does what it can, as in SQLite.
    """
    if hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Force a written file to the disk."""
    with path.open("r+b") as file:
        sync(file.fileno())


def sync_folder(path: Path) -> None:
    """Force a folder's entries to the disk."""
    with open_folder(path) as descriptor:
        sync(descriptor)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder, which stays valid when another folder takes its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and hexadecimal SHA-256 of a file of a segment."""

    size: int
    sha256: str

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Measure a file."""
        return cls(path.stat().st_size, sha256(path))

    def check(self, path: Path, *, contents: bool = True, checksum: Checksum | None = None) -> None:
        """Compare a file with this entry: its size, and with `contents` its checksum.

        Raises:
            SegmentError: the file is missing, truncated or altered.
        """
        if not path.is_file():
            raise SegmentError(f"{path} is missing; restore the segment or index again")
        if path.stat().st_size != self.size:
            raise SegmentError(
                f"{path} has {path.stat().st_size} bytes, expected {shown(self.size)}: "
                "the file is truncated or altered; restore it or index again"
            )
        if contents and (checksum or sha256)(path) != self.sha256:
            raise altered(path)


def altered(path: Path) -> SegmentError:
    """The error for a file that does not match its checksum."""
    return SegmentError(
        f"{path} does not match its checksum: it was altered; restore it or index again"
    )


def link_verified(source: Path, target: Path, entry: FileEntry) -> None:
    """Hard-link a segment's file; copy it where the file system has no links.

    Raises:
        SegmentError: the file is missing or altered.
    """
    entry.check(source, contents=False)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)
    if FileEntry.from_file(target) != entry:
        raise altered(source)
