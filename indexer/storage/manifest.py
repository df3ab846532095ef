"""manifest.json: what a segment holds. Unknown formats are refused."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from searchengine.indexer.config import MAX_DIM, SegmentConfig, whole_number
from searchengine.indexer.errors import (
    SegmentConfigError,
    SegmentError,
    SegmentFormatError,
    shortened,
    shown,
)
from searchengine.indexer.storage.files import FileEntry, sync_file
from searchengine.indexer.storage.vectors_file import DTYPES, PASSAGES, header
from searchengine.indexer.storage.words_file import WORDS

FORMAT = 5
"""The format that is written, and the only one that is opened."""
MANIFEST = "manifest.json"
VECTORS = "vectors.faiss"
ROTATION = "rotation.npy"
COARSE = "coarse.faiss"
_FILES = {VECTORS, ROTATION, COARSE, WORDS, PASSAGES}

MAX_ROWS = 2**40
"""Maximum rows of a segment: a file's header can still count the bytes of its float32 rows."""


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
            raise SegmentError(
                f"{source} is not valid JSON ({shortened(str(error))}); restore it"
            ) from error
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
            raise SegmentError(f"{source} was altered after it was written; restore it")
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
                f"{source} has a missing or invalid value: {shortened(what)}; index again"
            ) from error


def _checksum(values: Mapping[str, Any]) -> str:
    """SHA-256 of the values as JSON with sorted keys and no spaces, in UTF-8."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
