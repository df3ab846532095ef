"""The folders of a collection: its segments, and new folders.

A folder that is filled before anybody names it is a scratch folder. Beside it is a lock file, which
its process locks; the system releases the lock of a killed process, and the next process that makes
a scratch folder there, or commits, takes the lock and removes the folder. A lock on a file works on
Linux, macOS and NFS; one on the folder itself would not on NFS. It is beside the folder because the
folder that is renamed must contain only its own files.

New folders are whole or not at all: a scratch folder in the parent is filled and renamed, also over
an empty folder, whose owner and mode were chosen and stay.
"""

import json
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EACCES, ENOTDIR
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.folder.database import accessible, exhausted
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.errors import FORBIDDEN, CollectionBusy, CollectionError
from searchengine.indexer.errors import SegmentError, SegmentFormatError
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.files import open_folder, sha256, sync_folder
from searchengine.trainer.files import file_state, user_cache, write_at_once

DATABASE = "documents.db"
_SEGMENT = re.compile(r"[0-9]+(\.[0-9a-f]{32}\.new)?")
# Bytes from which a checksum is remembered, smaller files take 10 ms; and in which file.
_REMEMBERED, _CHECKSUMS = 16 << 20, "checksums.json"
# A file changed this recently (ns) may change again within one tick of the clock: it is read again.
_SETTLED = 1_000_000_000
_LOOK = 5  # seconds in which another process has seen whether a lock is held


def check_name(path: Path) -> None:
    """Raise CollectionError for a path that no collection can have."""
    try:
        str(path).encode()
        path.resolve().exists()
    except UnicodeEncodeError:  # faiss could not open it
        raise CollectionError(
            f"{path}: the name of a collection must be UTF-8; choose or give it another one"
        ) from None
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, or a NUL
        reason = getattr(error, "strerror", None) or error
        raise CollectionError(f"{str(path)!r:.200}: {reason}; choose another path") from error


def folder_of(path: Path, number: int) -> Path:
    """The folder of a segment."""
    return path / "segments" / f"{number:06d}"


def checksum(path: Path) -> str:
    """The SHA-256 of a file; of a large one remembered in the user's cache while it stays the same.

    Hashing the graph of ten million rows would take seconds each time a collection is opened. A
    file can get other content and keep its size and time of change. Its time of the last change of
    status (ctime) no program can set back. Raises OSError.
    """
    cache, before = user_cache(), path.stat()
    if cache is None or before.st_size < _REMEMBERED:
        return sha256(path)
    known: dict[str, list[Any]] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(json.loads((cache / _CHECKSUMS).read_bytes()))
    *state, digest = known.get(name := str(path.absolute())) or [None]
    if state == file_state(before):
        return str(digest)
    digest = sha256(path)
    is_same = file_state(path.stat()) == file_state(before)
    if is_same and time.time_ns() - before.st_ctime_ns > _SETTLED:
        known[name] = [*file_state(before), digest]
        present = {name: entry for name, entry in known.items() if os.path.exists(name)}
        with suppress(OSError):  # read-only, or full: the file is read again
            cache.mkdir(parents=True, exist_ok=True)
            write_at_once(cache / _CHECKSUMS, json.dumps(present).encode())
    return digest


def open_committed(path: Path, row: SegmentRow, **options: Any) -> Segment:
    """Open and check a segment of a collection; `options` of Segment.open. Raises SegmentError."""
    segment = Segment.open(folder_of(path, row.id), **options)
    if segment.manifest_sha256 != row.manifest_sha256 or segment.rows != row.rows:
        raise SegmentError(f"{segment.path}: manifest.json is not the committed one")
    return segment


def has_vectors(path: Path, row: SegmentRow) -> bool:
    """Whether the manifest and the vectors of a damaged segment are intact."""
    try:
        stored = Segment.verify_vectors(folder_of(path, row.id))
    except (SegmentError, OSError):
        return False
    return stored == (row.manifest_sha256, row.rows)


@contextmanager
def segments_folder(path: Path, store: Store) -> Iterator[int]:
    """Open the folder of segments next to this database, even if its name is taken meanwhile."""
    with ExitStack() as stack:
        folder = None
        with folder_errors(path, changing=True), suppress(FileNotFoundError):
            folder = stack.enter_context(open_folder(path / "segments"))
        if not store.in_place:
            raise store.replaced()
        if folder is None:
            raise store.damaged(f"{path / 'segments'} is missing")
        yield folder


def segment_folders(folder: int) -> set[str]:
    """The names of the segments in an open folder; removes those half written."""
    names = set()
    for name in filter(_SEGMENT.fullmatch, os.listdir(folder)):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            continue
        if name.isdigit():
            names.add(name)
        else:  # no commit can name it, and its writer does not have the lock any more
            shutil.rmtree(name, dir_fd=folder)
    return names


def remove_unnamed(path: Path, store: Store, before: set[str]) -> None:
    """Remove the folders of `before` that no commit names, and those of a reindex that is over.

    Call it after a commit, with the folders that were there when it began: it removes what the
    commit replaced and what a killed writer left. It must not run sooner: a writer that is killed
    while SQLite syncs its commit leaves that commit undecided. No reader sees it, but the next
    process that recovers SQLite's log may find it; only a later commit writes over it.
    """
    replaced = before - {folder_of(path, row.id).name for row in store.segments()}
    if not replaced and not any((path / "pending").glob("*")):
        return
    with (
        store.transaction(queue=False),
        segments_folder(path, store) as folder,
        folder_errors(path, changing=True),
    ):
        named = {folder_of(path, row.id).name for row in store.segments()}
        for name in before & segment_folders(folder) - named:
            shutil.rmtree(name, dir_fd=folder)
        kept = {name for (name,) in store.read("SELECT folder FROM pending")}
        remove_dead_scratch(path / "pending", kept, own=True)


@contextmanager
def folder_errors(path: Path, *, changing: bool = False) -> Iterator[None]:
    """Raise what stops a reading (a limit, a permission, a damaged segment) as CollectionError.

    `changing`: what stops a change, too (disk full, read-only folder, …), which is undone.
    """
    undone = "; the change was undone" if changing else ""
    try:
        yield
    except SegmentFormatError as error:
        raise CollectionError(str(error)) from error
    except (SegmentError, OSError, MemoryError) as error:
        if limit := exhausted(error):
            raise CollectionError(f"{path}: {limit}{undone}") from error
        if isinstance(error, SegmentError):
            raise CollectionError(
                f"{error}; the texts are in {path / DATABASE}: restore the folder from a copy, or "
                f"encode them again with: searchengine repair {shlex.quote(str(path))}"
            ) from error
        reason = getattr(error, "strerror", None) or error
        if changing:
            way_out = "free some space or choose a folder that can be written"
            raise CollectionError(f"{path}: {reason}{undone}, {way_out}") from error
        if isinstance(error, PermissionError):
            raise CollectionError(f"{error.filename}: {FORBIDDEN}") from error
        raise


_LOCK = re.compile(r"((?:\..+\.)?[0-9a-f]{32}(?:\.new)?)\.lock", re.DOTALL)


class Scratch:
    """A scratch folder, and the lock beside it, which its process holds until `release`.

    Attributes:
        folder: its path; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock  # takes longer to import than a search

        self.folder, self._lock = folder, FileLock(f"{folder}.lock")

    def take(self, wait: float = 0) -> bool:
        """Take the lock, unless another thread or process has it for as many seconds."""
        from filelock import Timeout

        try:
            self._lock.acquire(wait)
        except Timeout:
            return False
        return True

    def make(self) -> Path:
        """Make the folder of a new name. Raises OSError."""
        # Another process may look just now whether it is held. It is tried all the time, too, where
        # no file can be made.
        if not self.take(_LOOK):
            raise PermissionError(EACCES, "no file can be made there")
        # Of a dead process, whose lock file a power cut has taken.
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return self.folder

    def release(self) -> None:
        """Release the lock: another process may go on, or remove the folder."""
        self._lock.release()

    def clear(self) -> None:
        """Remove the folder, unless it was renamed, and the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            if not self.folder.exists():
                # While locked: a process that waits for it finds no file then, and makes one.
                Path(self._lock.lock_file).unlink(missing_ok=True)
        self.release()


def remove_dead_scratch(parent: Path, kept: Collection[str] = (), *, own: bool = False) -> None:
    """Remove the scratch folders in `parent` that belong to dead processes, but those `kept`.

    A folder without a lock file is left alone: it may be somebody's. `own`: nobody else has any
    there, and one without it lost it in a power cut.
    """
    # A folder that cannot be listed or written is reported when the new folder is created.
    with suppress(OSError):
        found = [each.name for each in parent.iterdir()]
        locks = found + [f"{name}.lock" for name in found if own]
        for name in {match[1] for lock in locks if (match := _LOCK.fullmatch(lock))} - {*kept}:
            with suppress(OSError):
                if (scratch := Scratch(parent / name)).take():
                    scratch.clear()


def new_scratch(path: Path) -> Scratch:
    """One beside a folder, for what is to get its name, or to lose it."""
    return Scratch(path.parent / f".{path.name}.{uuid4().hex}.new")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A scratch folder that gets its name, `path`, when the block has filled it.

    If the block fails, it is removed. `path` is absolute, and absent or an empty folder.

    Raises:
        CollectionBusy: another process created `path` meanwhile.
        CollectionError: the disk is full, or the folder cannot be written or replaced.
    """
    path = path.resolve()
    with folder_errors(path, changing=True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(ENOTDIR, f"{path.parent} is a file") from error
        present = path.stat() if path.is_dir() else None
        is_held = present and (path.is_mount() or path.samefile(os.curdir))
        if is_held or (present and not accessible(path.parent, os.W_OK)):
            raise CollectionError(
                f"{path} cannot be replaced by a collection, because it is a mount point, the "
                "current folder, or in a folder that cannot be written; name a folder inside it"
            )
        remove_dead_scratch(path.parent)
        scratch = new_scratch(path)
        folder = scratch.make()
        try:
            if present:  # first: the database takes over the mode
                with suppress(PermissionError):  # of another user
                    os.chown(folder, present.st_uid, present.st_gid)
                folder.chmod(stat.S_IMODE(present.st_mode))
            yield folder
            sync_folder(folder)
            try:
                folder.rename(path)
            except OSError as error:
                if is_free(path):
                    raise
                raise CollectionBusy(
                    f"{path} was created by another process just now; "
                    "run this again to add to it, or choose another folder"
                ) from error
            sync_folder(path.parent)
        finally:
            scratch.clear()


def is_free(path: Path) -> bool:
    """Whether a new folder can be created at a path: nothing is there, or an empty folder."""
    return not any(path.iterdir()) if path.is_dir() else not path.exists()


def stored_bytes(path: Path) -> int:
    """Size of all files in a folder; hard links count once."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # removed by a writer just now
                file = os.stat(os.path.join(folder, name))
                sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())
