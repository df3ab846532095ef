"""What a segment is, written in it: manifest.json. Unknown formats are refused."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from indexer.config import SegmentConfig
from indexer.durable import sha256
from indexer.errors import SegmentConfigError, SegmentError

FORMAT = 3
READABLE = (1, 2, 3)
"""Formats this version opens. 2 added settings of the recipe, the bounds file and the tuning; 3
says what the rotation was fitted on, which may be rows of another segment."""
METRIC = "cosine"
ROTATION = "rotation.npy"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and hexadecimal SHA-256 of one file of the segment."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Measure a file."""
        return cls(path.stat().st_size, sha256(path))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of manifest.json.

    Attributes:
        rows, dim: the shape of the stored vectors.
        config: how the segment was built and is searched; names the rotation.
        vectors_file, vectors_offset, vectors_dtype: where the rows lie: (rows, dim) numbers of
            that numpy dtype, after `vectors_offset` bytes of the file.
        files: every other file of the folder, the vectors' too, by name.
        provenance: where the vectors came from, e.g. the encoder's fingerprint.
        tuning: what the operating point is founded on (indexer.tune), None if it was not tuned.
        fitted_on: rows that the rotation was fitted on (a sample of them, if they are many), which
            may be those of another segment; 0 for the identity.
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
    fitted_on: int = 0

    @property
    def rotation_sha256(self) -> str | None:
        """The checksum of the rotation, None for the identity: equal in segments that share one."""
        entry = self.files.get(ROTATION)
        return None if entry is None else entry.sha256

    def to_json(self) -> str:
        """The text of manifest.json; its last key is the checksum of all that precedes it."""
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
            "fitted_on": self.fitted_on,
        }
        values["sha256"] = _checksum(values)
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "manifest.json") -> Self:
        """The inverse of `to_json`.

        Raises:
            SegmentError: naming `source`: no JSON, another format version, altered, or a value
                missing or out of place.
        """
        try:
            values = json.loads(text)
        except ValueError as error:  # no JSON, or no UTF-8
            raise SegmentError(f"{source} is not valid JSON ({error}); restore it") from error
        if not isinstance(values, dict) or "format" not in values:
            raise SegmentError(f"{source} is not the manifest of a segment: it names no format")
        if values["format"] not in READABLE:
            raise SegmentError(
                f"{source} has format {values['format']!r} and this version reads formats 1 to 3; "
                "install the version that wrote it, or index again"
            )
        stated = values.pop("sha256", None)
        if stated != _checksum(values):
            raise SegmentError(f"{source} was altered after it was written; restore it")
        try:
            return cls._from_values(values)
        except (KeyError, TypeError, AttributeError, SegmentConfigError) as error:
            raise SegmentError(
                f"{source} lacks a value or holds a wrong one: {error!r}; index again"
            ) from error

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> Self:
        if values["metric"] != METRIC:
            raise SegmentConfigError(f"metric must be {METRIC!r}, got {values['metric']!r}")
        for name in ("rows", "dim"):
            if not isinstance(values[name], int) or values[name] < 1:
                raise SegmentConfigError(f"{name} must be at least 1, got {values[name]!r}")
        vectors = values["vectors"]
        # Before format 3 every rotation was fitted on the rows beside it.
        fitted_on = values.get("fitted_on", values["rows"] if ROTATION in values["files"] else 0)
        if not isinstance(fitted_on, int) or fitted_on < 0:
            raise SegmentConfigError(f"fitted_on must be at least 0, got {fitted_on!r}")
        return cls(
            rows=values["rows"],
            dim=values["dim"],
            config=SegmentConfig.from_dict(values["config"]),
            vectors_file=str(vectors["file"]),
            vectors_offset=int(vectors["offset"]),
            vectors_dtype=str(vectors["dtype"]),
            files={
                name: FileEntry(int(entry["size"]), str(entry["sha256"]))
                for name, entry in values["files"].items()
            },
            provenance={str(key): str(value) for key, value in values["provenance"].items()},
            tuning=values.get("tuning"),
            fitted_on=fitted_on,
        )


def _checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of the values as JSON with sorted keys and no spaces, in UTF-8."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
