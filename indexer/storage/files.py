"""The files of a segment: manifest.json, which lists them with sizes and checksums; and syncs.

Unknown formats are refused. Syncs survive a power cut.
"""

import fcntl
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from searchengine.indexer.config import MAX_DIM, SegmentConfig, Storage, whole_number
from searchengine.indexer.errors import (
    SegmentConfigError,
    SegmentError,
    SegmentFormatError,
    shortened,
    shown,
)

FORMAT = 5
"""The format that is written, and the only one that is opened."""
MANIFEST = "manifest.json"
VECTORS = "vectors.faiss"
ROTATION = "rotation.npy"
COARSE = "coarse.faiss"
WORDS = "words.safetensors"
PASSAGES = "passages.npy"
_FILES = {VECTORS, ROTATION, COARSE, WORDS, PASSAGES}

MAX_ROWS = 2**40
"""Maximum rows of a segment: a file's header can still count the bytes of its float32 rows."""

DTYPES: dict[Storage, str] = {Storage.FLOAT16: "<f2", Storage.FLOAT32: "<f4"}

_INNER_PRODUCT = 0
_QT_FP16 = 4
_UNUSED = 1 << 20  # two fields that faiss writes for old readers

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
            raise SegmentError(f"{path} is missing")
        if path.stat().st_size != self.size:
            raise SegmentError(
                f"{path} has {path.stat().st_size} bytes, expected {shown(self.size)}: "
                "the file is truncated or altered"
            )
        if contents and (checksum or sha256)(path) != self.sha256:
            raise altered(path)


def altered(path: Path) -> SegmentError:
    """The error for a file that does not match its checksum."""
    return SegmentError(f"{path} does not match its checksum: it was altered")


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


def header(rows: int, dim: int, storage: Storage) -> bytes:
    """The bytes before the first row: 81 for float16, 45 for float32 (faiss, little-endian)."""
    kind = b"IxSQ" if storage is Storage.FLOAT16 else b"IxFI"
    index = struct.pack("<4siqqqBi", kind, dim, rows, _UNUSED, _UNUSED, 1, _INNER_PRODUCT)
    if storage is Storage.FLOAT32:
        return index + struct.pack("<Q", rows * dim)
    quantizer = struct.pack("<iifQQQ", _QT_FP16, 0, 0.0, dim, 2 * dim, 0)
    return index + quantizer + struct.pack("<Q", rows * dim * 2)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of manifest.json.

    Attributes:
        rows, dim: the shape of the stored vectors.
        config: how the segment was built and is searched; names the rotation.
        files: every file of the folder except the manifest, by name.
        provenance: where the vectors came from, e.g. the encoder's fingerprint.
        tuning: how the operating point was measured (tuning.tune); None if it was not tuned.

    Raises:
        SegmentConfigError: at construction, for an impossible value or an unknown file.
    """

    rows: int
    dim: int
    config: SegmentConfig
    files: Mapping[str, FileEntry]
    provenance: Mapping[str, str]
    tuning: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        whole_number("rows", self.rows, 1, MAX_ROWS)
        self.config.check_width(whole_number("dim", self.dim, 1, MAX_DIM))
        if unknown := self.files.keys() - _FILES:  # it could lead out of the folder
            raise SegmentConfigError(f"a segment has no file {shown(min(unknown))}")
        if self.tuning is not None and not isinstance(self.tuning, Mapping):
            raise SegmentConfigError(f"tuning must be a mapping, got {shown(self.tuning)}")

    def to_json(self) -> str:
        """The text of manifest.json; its last key is the checksum of all others."""
        storage = self.config.storage
        start = header(self.rows, self.dim, storage)
        values: dict[str, Any] = {
            "format": FORMAT,
            "metric": "cosine",
            "rows": self.rows,
            "dim": self.dim,
            "config": self.config.as_dict(),
            # (rows, dim) values of a numpy dtype, from a byte offset on
            "vectors": {"file": VECTORS, "offset": len(start), "dtype": DTYPES[storage]},
            "files": {name: asdict(entry) for name, entry in sorted(self.files.items())},
            "provenance": dict(sorted(self.provenance.items())),
            "tuning": self.tuning,
        }
        values["sha256"] = _checksum(values)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        """Write manifest.json and sync it."""
        path.write_text(self.to_json(), "utf-8")
        sync_file(path)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "manifest.json") -> Self:
        """The inverse of `to_json`.

        Raises:
            SegmentError: naming `source`: not JSON, an unknown format, altered, or a value is
                missing or invalid. SegmentFormatError: another format, not altered.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or too deep
            raise SegmentError(f"{source} is not valid JSON ({shortened(str(error))})") from error
        if not isinstance(values, dict) or "format" not in values:
            raise SegmentError(f"{source} is not the manifest of a segment: it has no format")
        stated = values.pop("sha256", None)
        try:
            sound = stated == _checksum(values)
        except (UnicodeEncodeError, RecursionError):  # it cannot have been written like this
            sound = False
        if values["format"] != FORMAT:
            raise (SegmentFormatError if sound else SegmentError)(
                f"{source} has format {shown(values['format'])} and this version opens format "
                f"{FORMAT} only; install the version that wrote it, or index again"
            )
        if not sound:
            raise SegmentError(f"{source} was altered after it was written")
        try:
            return cls(
                rows=values["rows"],
                dim=values["dim"],
                config=SegmentConfig.from_dict(values["config"]),
                files={
                    name: FileEntry(entry["size"], entry["sha256"])
                    for name, entry in values["files"].items()
                },
                provenance={str(key): str(value) for key, value in values["provenance"].items()},
                tuning=values["tuning"],
            )
        except (KeyError, TypeError, AttributeError, RecursionError, SegmentConfigError) as error:
            what = str(error) if isinstance(error, SegmentConfigError) else repr(error)
            raise SegmentError(
                f"{source} has a missing or invalid value: {shortened(what)}"
            ) from error


def _checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of the values as JSON with sorted keys and no spaces, in UTF-8."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a segment's folder, and its checksum. Raises SegmentError without one."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise SegmentError(f"{path} is missing: {folder} is no segment") from None
    return Manifest.from_json(text, str(path)), hashlib.sha256(text).hexdigest()
