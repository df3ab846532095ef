"""Network file systems, where SQLite's write-ahead log does not work.

All processes that open a collection share memory (`documents.db-shm`), which two machines cannot:
each would see part of what the other writes, and overwrite it.
"""

import logging
import os
import re
from pathlib import Path

from searchengine.errors import CollectionError

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
