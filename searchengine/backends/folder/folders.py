"""The folders of a collection: its segments, new folders, and whether they are on a local disk.

New folders are whole or not at all. A folder is filled as `.NAME.<uuid>.new`, in its parent, and
then renamed. One that is there already, and empty, is filled in itself and stays: it may be a mount
point, or somebody's working directory, and its owner and mode were chosen. What is in the scratch
folder then moves up, under a lock. Beside a scratch folder is `.NAME.<uuid>.new.lock`, which its
process locks until the folder is renamed or removed. The system releases the lock of a killed
process: the next one that creates a folder here takes the lock and removes the abandoned folder.

A lock on a file works on Linux, macOS and NFS; one on the folder itself would not on NFS. It is
beside the folder because the renamed folder must contain only its own files.

Network file systems are refused, because SQLite's write-ahead log does not work there. All
processes that open a collection share memory (`documents.db-shm`), which two machines cannot: each
would see part of what the other writes, and overwrite it.
"""

import json
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from errno import ENOTDIR
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.folder.documents.store import Store
from searchengine.errors import FORBIDDEN, CollectionBusy, CollectionError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.storage.durable import open_folder, sha256, sync_folder
from searchengine.trainer.files import file_state, user_cache, write_at_once

_CHUNK = 1 << 24  # bytes per read
_SEGMENT = re.compile(r"[0-9]+(\.[0-9a-f]{32}\.new)?")
# Bytes from which a checksum is remembered, smaller files take 10 ms; and in which file.
_REMEMBERED, _CHECKSUMS = 16 << 20, "checksums.json"
# A file changed this recently (ns) may change again within one tick of the clock: it is read again.
_SETTLED = 1_000_000_000


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


@contextmanager
def beside(path: Path, store: Store) -> Iterator[int]:
    """Open the folder of segments next to this database, even if its name is taken meanwhile."""
    with os_errors(path), ExitStack() as stack:
        folder = stack.enter_context(open_folder(path / "segments"))
        if not store.in_place:
            raise store.replaced()
        opened = stack.pop_all()
    with opened:
        yield folder


def segment_folders(folder: int) -> dict[str, int]:
    """The folders of segments in an open folder, name → inode; removes those half written."""
    inodes = {}
    for name in os.listdir(folder):
        if not _SEGMENT.fullmatch(name):
            continue  # not a segment
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            continue
        if name.isdigit():
            inodes[name] = status.st_ino
        else:  # no commit can name it, and its writer does not have the lock any more
            shutil.rmtree(name, dir_fd=folder)
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
        for name, inode in segment_folders(folder).items():
            if name not in named and before.get(name) == inode:
                shutil.rmtree(name, dir_fd=folder)


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


@contextmanager
def reading_errors() -> Iterator[None]:
    """Raise a PermissionError on reading as CollectionError, with the way out."""
    try:
        yield
    except PermissionError as error:
        raise CollectionError(f"{error.filename}: {FORBIDDEN}") from error


ALLOW = "SEARCHENGINE_ALLOW_NETWORK"
_MOUNTS = Path("/proc/self/mountinfo")  # Linux; elsewhere nothing is detected
_NETWORK = frozenset(
    "9p acfs afs afpfs beegfs ceph cifs coda gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 "
    "orangefs pvfs2 smb2 smb3 smbfs".split()
)
_FUSE = frozenset(
    "beegfs blobfuse blobfuse2 ceph ceph-fuse curlftpfs davfs davfs2 gcsfuse glusterfs goofys "
    "gvfsd-fuse hdfs juicefs lizardfs mfs moosefs mount-s3 mountpoint-s3 nfs rclone s3fs s3ql "
    "seaweedfs smbnetfs sshfs weed".split()
)
_log = logging.getLogger(__name__)


def network_kind(path: Path) -> str | None:
    """The type of the network file system of a path, such as nfs4; None if it is local.

    The path need not exist. None on all systems but Linux.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # no Linux, or /proc is not mounted
        return None
    kind = kind_of(path.resolve(), mounts)
    return kind if kind is not None and is_network(kind) else None


def kind_of(path: Path, mounts: str) -> str | None:
    """The file-system type of an absolute path, by the text of /proc/self/mountinfo.

    The longest mount point above the path counts; of two at the same place, the later one.
    """
    kind, depth = None, 0
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = after.split(" ")[0], len(point.parts)
    return kind


def is_network(kind: str) -> bool:
    """Whether a file system of this type may be written by other machines."""
    kind, _, server = kind.lower().partition(".")
    return kind in _NETWORK or (kind == "fuse" and server in _FUSE)


def refuse_network(path: Path) -> None:
    """Raise CollectionError if a collection at this path must not be written."""
    kind = network_kind(path)
    if kind is not None and not _allowed():
        raise CollectionError(
            f"{path} is on {kind}, a network file system, where processes on two machines can "
            "corrupt it; choose a folder on a local disk, or, if only this machine ever opens it, "
            f"set {ALLOW}=1"
        )


def warn_network(path: Path) -> None:
    """Log a warning if reading is safe only while no other machine writes."""
    kind = network_kind(path)
    if kind is not None and not _allowed():
        _log.warning(
            "%s is on %s, a network file system: results may be wrong while another machine "
            "writes to it",
            path,
            kind,
        )


def _allowed() -> bool:
    return os.environ.get(ALLOW, "") == "1"


def _unescaped(field: str) -> str:
    r"""A field decoded: the kernel writes space, tab, newline and \ in octal, as \040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


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
        remove_dead_scratch(home)
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
    remove_dead_scratch(path)
    found = [entry.name for entry in path.iterdir()]
    names = [n for n in found if not (_LOCK.fullmatch(n) or _LOCK.fullmatch(f"{n}.lock"))]
    if set(names) - set(_EMPTY):
        return False
    return "segments" not in names or not any((path / "segments").iterdir())


def remove_dead_scratch(parent: Path) -> None:
    """Remove the scratch folders in `parent` that belong to dead processes.

    A scratch folder without a lock file is left alone: it may be somebody's own.
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
        # While locked: a process that waits for it sees that it is gone, and creates another.
        lock.unlink()


def _rename(scratch: Path, path: Path) -> None:
    try:
        scratch.rename(path)
    except OSError as error:
        if not path.exists():
            raise
        raise _created_meanwhile(path) from error
    sync_folder(path.parent)


def _move_up(scratch: Path, path: Path) -> None:
    """Move the contents of a scratch folder into its parent, which is empty; the database last."""
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
            lock.unlink()


def _created_meanwhile(path: Path) -> CollectionBusy:
    return CollectionBusy(
        f"{path} was created by another process just now; "
        "run this again to add to it, or choose another folder"
    )


def stored_bytes(path: Path) -> int:
    """Size of all files in a folder; hard links count once."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # removed by a writer just now
                file = os.stat(os.path.join(folder, name))
                sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())


def read_all(folder: Path) -> int:
    """Read the files of a segment into the system's cache; returns bytes."""
    read = 0
    with suppress(FileNotFoundError):  # replaced by a newer commit; the one shown stays mapped
        for path in folder.iterdir():
            read += _read(path)
    return read


def _read(path: Path) -> int:
    read = 0
    with path.open("rb", buffering=0) as file:
        while size := len(file.read(_CHUNK)):
            read += size
    return read
