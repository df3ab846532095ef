"""The folders of segments: their names, which are there, and which no commit names any more."""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from searchengine.backends.folder.documents.store import Store
from searchengine.errors import CollectionError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.storage.durable import below, open_folder, sha256
from searchengine.trainer.model.disk import Checksums, user_cache

_SEGMENT = re.compile(r"[0-9]+(\.[0-9a-f]{32}\.new)?")
# Bytes from which a checksum is remembered; smaller files take 10 ms.
_REMEMBERED = 16 << 20


def check_name(path: Path) -> None:
    """Raise CollectionError for the path of a collection that faiss could not open."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise CollectionError(
            f"{path}: the name of a collection must be UTF-8; choose or give it another one"
        ) from None


def folder_of(path: Path, number: int) -> Path:
    """The folder of a segment."""
    return path / "segments" / f"{number:06d}"


def checksum(path: Path) -> str:
    """The SHA-256 of a file; of a large one remembered in the user's cache while it stays the same.

    Hashing the graph of ten million rows would take seconds each time a collection is opened.
    """
    if path.stat().st_size < _REMEMBERED:
        return sha256(path)
    with Checksums(user_cache()) as checksums:
        return checksums.of(path)


@contextmanager
def beside(path: Path, store: Store) -> Iterator[int | None]:
    """Open the folder of segments beside this database, whatever takes its name meanwhile."""
    with os_errors(path), ExitStack() as stack:
        folder = stack.enter_context(open_folder(path / "segments"))
        if not store.in_place:
            raise store.replaced()
        opened = stack.pop_all()
    with opened:
        yield folder


def segment_folders(path: Path, folder: int | None) -> dict[str, int]:
    """The folders of segments, name → inode; removes those half written."""
    inodes = {}
    for name in os.listdir(path / "segments" if folder is None else folder):
        entry = below(path / "segments" / name, folder)
        if not _SEGMENT.fullmatch(name):
            continue  # not a segment
        status = os.stat(entry, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            continue
        if name.isdigit():
            inodes[name] = status.st_ino
        else:  # no commit can name it, and its writer does not have the lock any more
            shutil.rmtree(entry, dir_fd=folder)
    return inodes


def remove_unnamed(path: Path, store: Store, before: Mapping[str, int]) -> None:
    """Remove the folders of `before` (name → inode) that no commit names.

    Call it after a commit, with the folders that were there when it began: it removes what the
    commit replaced and what a killed writer left. It must not run sooner: a writer that is killed
    while SQLite syncs its commit leaves that commit undecided. No reader sees it, but the next
    process that recovers SQLite's log may find it; only a later commit writes over it.
    """
    named = {folder_of(path, row.id).name for row in store.segments()}
    if not before.keys() - named:
        return
    with store.transaction(queue=False), beside(path, store) as folder, os_errors(path):
        named = {folder_of(path, row.id).name for row in store.segments()}
        for name, inode in segment_folders(path, folder).items():
            if name not in named and before.get(name) == inode:
                shutil.rmtree(below(path / "segments" / name, folder), dir_fd=folder)


@contextmanager
def segment_errors(path: Path) -> Iterator[None]:
    """Raise a SegmentError as CollectionError, with the way out."""
    try:
        yield
    except SegmentError as error:
        raise CollectionError(
            f"{error}; nothing was changed. The texts are in {path / 'documents.db'}: encode them "
            f"again with: searchengine repair {path}"
        ) from error


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Raise an OSError (disk full, read-only folder, …) as CollectionError."""
    try:
        yield
    except OSError as error:
        raise CollectionError(
            f"{path}: {error.strerror or error}; the change was undone, "
            "free some space or choose a folder that can be written"
        ) from error
