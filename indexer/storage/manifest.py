"""manifest.json: what a segment holds. Unknown formats are refused."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Self

from searchengine.indexer.config import SegmentConfig, whole_number
from searchengine.indexer.errors import SegmentConfigError, SegmentError, shortened, shown
from searchengine.indexer.storage.durable import link_or_copy, sha256, sync_file

FORMAT = 4
"""The format that is written, and the only one that is opened."""
METRIC = "cosine"
MANIFEST = "manifest.json"
VECTORS = "vectors.faiss"
ROTATION = "rotation.npy"
COARSE = "coarse.faiss"

MAX_ROWS = 2**40
MAX_DIM = 2**20
"""Maximum shape of a segment: a file's header can still count the bytes of its float32 rows."""

Checksum = Callable[[Path], str]
"""A file to its hexadecimal SHA-256: `sha256`, or what remembers it while the file stays."""

_MAX_BYTES = 2**63 - 1
_MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and hexadecimal SHA-256 of one file of the segment."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        whole_number("size", self.size, 0, _MAX_BYTES)
        _text("sha256", self.sha256)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Measure a file."""
        return cls(path.stat().st_size, sha256(path))

    @classmethod
    def written(cls, path: Path, data: bytes) -> Self:
        """Write a new file and sync it. The checksum is of `data`, not of the bytes on disk."""
        path.write_bytes(data)
        sync_file(path)
        return cls(len(data), hashlib.sha256(data).hexdigest())

    def check(self, path: Path, *, contents: bool = True, checksum: Checksum | None = None) -> None:
        """Compare a file with this entry: its size, and with `contents` its checksum.

        Raises:
            SegmentError: the file is missing, truncated or altered.
        """
        if not path.is_file():
            raise SegmentError(f"{path} is missing; restore the segment or index again")
        if path.stat().st_size != self.size:
            raise SegmentError(
                f"{path} has {path.stat().st_size} bytes, expected {self.size}: "
                "the file is truncated or altered; restore it or index again"
            )
        if contents and (checksum or sha256)(path) != self.sha256:
            raise altered(path)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of manifest.json.

    Attributes:
        rows, dim: the shape of the stored vectors.
        config: how the segment was built and is searched; names the rotation.
        vectors_file, vectors_offset, vectors_dtype: where the rows are stored: (rows, dim) values
            of that numpy dtype, after `vectors_offset` bytes of the file.
        files: every file of the folder except the manifest, by name.
        provenance: where the vectors came from, e.g. the encoder's fingerprint.
        tuning: how the operating point was measured (tuning.tune); None if it was not tuned.

    Raises:
        SegmentConfigError: at construction, for an impossible value, or the name of a file outside
            the folder.
    """

    rows: int
    dim: int
    config: SegmentConfig
    vectors_file: str
    vectors_offset: int
    vectors_dtype: str
    files: Mapping[str, FileEntry]
    provenance: Mapping[str, str]
    tuning: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        whole_number("rows", self.rows, 1, MAX_ROWS)
        whole_number("dim", self.dim, 1, MAX_DIM)
        whole_number("offset", self.vectors_offset, 0, _MAX_BYTES)
        _text("dtype", self.vectors_dtype)
        for name in (self.vectors_file, *self.files):
            _plain_name(name)
        if self.tuning is not None and not isinstance(self.tuning, Mapping):
            raise SegmentConfigError(f"tuning must be a mapping, got {shown(self.tuning)}")

    def to_json(self) -> str:
        """The text of manifest.json; its last key is the checksum of all others."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "metric": METRIC,
            "rows": self.rows,
            "dim": self.dim,
            "config": self.config.as_dict(),
            "vectors": {
                "file": self.vectors_file,
                "offset": self.vectors_offset,
                "dtype": self.vectors_dtype,
            },
            "files": {
                name: {"size": entry.size, "sha256": entry.sha256}
                for name, entry in sorted(self.files.items())
            },
            "provenance": dict(sorted(self.provenance.items())),
            "tuning": self.tuning,
        }
        values["sha256"] = _checksum(values)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "manifest.json") -> Self:
        """The inverse of `to_json`.

        Raises:
            SegmentError: naming `source`: not JSON, an unknown format, altered, or a value is
                missing or invalid.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or too deep
            raise SegmentError(
                f"{source} is not valid JSON ({shortened(str(error))}); restore it"
            ) from error
        if not isinstance(values, dict) or "format" not in values:
            raise SegmentError(f"{source} is not the manifest of a segment: it has no format")
        if values["format"] != FORMAT:
            raise SegmentError(
                f"{source} has format {shown(values['format'])} and this version opens format "
                f"{FORMAT} only; install the version that wrote it, or index again"
            )
        stated = values.pop("sha256", None)
        try:
            sound = stated == _checksum(values)
        except (UnicodeEncodeError, RecursionError):  # it cannot have been written like this
            sound = False
        if not sound:
            raise SegmentError(f"{source} was altered after it was written; restore it")
        try:
            return cls._from_values(values)
        except (KeyError, TypeError, AttributeError, RecursionError, SegmentConfigError) as error:
            what = str(error) if isinstance(error, SegmentConfigError) else repr(error)
            raise SegmentError(
                f"{source} has a missing or invalid value: {shortened(what)}; index again"
            ) from error

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> Self:
        if values["metric"] != METRIC:
            raise SegmentConfigError(f"metric must be {METRIC!r}, got {shown(values['metric'])}")
        vectors = values["vectors"]
        return cls(
            rows=values["rows"],
            dim=values["dim"],
            config=SegmentConfig.from_dict(values["config"]),
            vectors_file=vectors["file"],
            vectors_offset=vectors["offset"],
            vectors_dtype=vectors["dtype"],
            files={
                name: FileEntry(entry["size"], entry["sha256"])
                for name, entry in values["files"].items()
            },
            provenance={str(key): str(value) for key, value in values["provenance"].items()},
            tuning=values["tuning"],
        )


def altered(path: Path) -> SegmentError:
    """The error for a file that does not match its checksum."""
    return SegmentError(
        f"{path} does not match its checksum: it was altered; restore it or index again"
    )


def link_verified(source: Path, target: Path, entry: FileEntry) -> None:
    """Give a segment's file a second name; the new manifest takes over its entry.

    Raises:
        SegmentError: the file is missing or altered.
    """
    entry.check(source, contents=False)
    link_or_copy(source, target)
    try:
        entry.check(target)
    except SegmentError:
        entry.check(source)  # names the damaged file, not the link
        raise


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise SegmentConfigError(f"{name} must be text, got {shown(value)}")


def _plain_name(name: Any) -> None:
    """Raise SegmentConfigError unless the name is a plain file name on every system."""
    text = isinstance(name, str) and name.isprintable() and 0 < len(name) <= _MAX_NAME
    if not text or name == ".." or PureWindowsPath(name).name != name:
        raise SegmentConfigError(
            f"a segment's files must have plain names without a folder, got {shown(name)}"
        )


def _checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of the values as JSON with sorted keys and no spaces, in UTF-8."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
