"""A segment: unit vectors on disk, searched coarse to fine.

search = rerank ∘ shortlist ∘ rotate: a short prefix of the rotated query picks a shortlist, and
the stored full-width rows of the shortlist give the scores (adaptive retrieval, Kusupati et al.
2022). The returned score is always the full-width cosine.
"""

import hashlib
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers, at_least_one, row_numbers, unit_rows
from indexer.build import COARSE, MANIFEST, ROTATION, Blocks, write_segment
from indexer.coarse import CoarseIndex
from indexer.config import Code, RotationKind, SegmentConfig, Storage, Structure
from indexer.durable import sha256
from indexer.errors import SegmentError
from indexer.manifest import Manifest
from indexer.prefix import prefix
from indexer.rerank import SearchResult, rerank
from indexer.vectors import VectorFile

__all__ = [
    "Code",
    "RotationKind",
    "SearchResult",
    "Segment",
    "SegmentConfig",
    "Storage",
    "Structure",
]

EXACT_ALLOWED = 1000
"""A filter that leaves at most this many rows makes the coarse stage pointless: score them all."""

_ROUNDING = 32
"""Rows taken beyond k from a full scan, whose rounding differs from rerank's in the last bits."""


class Segment:
    """An immutable folder of vectors. Made by `build` or `open`; usable as a context manager.

    Attributes:
        path: the folder.
        manifest: what it holds.
        manifest_sha256: the checksum of manifest.json, by which the whole segment can be named.
    """

    def __init__(
        self, path: Path, manifest: Manifest, manifest_sha256: str, coarse: CoarseIndex
    ) -> None:
        config = manifest.config
        self.path = path
        self.manifest = manifest
        self.manifest_sha256 = manifest_sha256
        self._config = config
        file = VectorFile(path / manifest.vectors_file, manifest.rows, manifest.dim, config.storage)
        self._parts: _Parts | None = _Parts(file, CoarseIndex.map_rows(file.path), coarse)
        self._turn = _load_rotation(path, manifest)

    @classmethod
    def build(
        cls,
        path: str | Path,
        vectors: Blocks,
        config: SegmentConfig,
        *,
        provenance: Mapping[str, str] | None = None,
    ) -> Self:
        """Write vectors into a new folder and open it.

        Files are complete and synced before the manifest is written, last. If anything fails, the
        folder is removed. Memory stays bounded for a stream: it passes through a temporary file
        in the folder, for the rotation must be fitted before the first row can be stored.

        Args:
            path: the folder to make; must not exist.
            vectors: (n, D) array, or an iterable of blocks (n_i, D); rows of any length > 0.
            config: how to build.
            provenance: free text pairs kept in the manifest, e.g. the encoder's fingerprint.

        Raises:
            SegmentError: the folder exists.
            SegmentConfigError: the prefix is wider than the vectors.
            VectorError: a row is zero, not finite or of another width; or there is none.
            OSError: the disk does not take it.
        """
        write_segment(Path(path), vectors, config, dict(provenance or {}))
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a folder after checking it: format, sizes, and the checksums of all but the vectors.

        The vectors are mapped, not read: their size and header are checked here, their checksum
        by `verify`.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown.
        """
        folder = Path(path)
        try:
            text = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            raise SegmentError(f"{folder / MANIFEST} is missing: {folder} is no segment") from None
        manifest = Manifest.from_json(text, str(folder / MANIFEST))
        needed = {manifest.vectors_file, COARSE}
        if manifest.config.rotation is RotationKind.PCA:
            needed.add(ROTATION)
        for name in sorted(needed):
            _check_file(folder, manifest, name, contents=name != manifest.vectors_file)
        coarse = CoarseIndex.open(folder / COARSE)
        if (coarse.rows, coarse.width) != (manifest.rows, manifest.config.prefix):
            raise SegmentError(
                f"{folder / COARSE} holds {coarse.rows} x {coarse.width} prefixes, the manifest "
                f"says {manifest.rows} x {manifest.config.prefix}; index again"
            )
        return cls(folder, manifest, hashlib.sha256(text).hexdigest(), coarse)

    @property
    def rows(self) -> int:
        """How many vectors there are; they are numbered from 0."""
        return self.manifest.rows

    @property
    def dim(self) -> int:
        """The full width D."""
        return self.manifest.dim

    @property
    def config(self) -> SegmentConfig:
        """How this segment is searched."""
        return self._config

    def rotate(self, queries: npt.ArrayLike) -> Floats:
        """Queries (q, D) as unit rows in the basis of the stored rows, float32.

        Raises:
            VectorError: not (q, D), empty, zero or not finite.
        """
        unit = unit_rows(queries, dim=self.dim)
        # einsum and not BLAS: a query then gives the same bits alone and in a batch, and a single
        # one does not wait for BLAS's other threads (0.05 ms at 768; BLAS 0.03 ms when idle).
        return unit if self._turn is None else np.einsum("qd,de->qe", unit, self._turn)

    def shortlist(
        self, rotated: Floats, size: int, allowed: npt.ArrayLike | None = None
    ) -> RowNumbers:
        """Candidates for rotated queries (q, D), from their prefix alone.

        Args:
            rotated: what `rotate` returned.
            size: candidates per query, >= 1.
            allowed: row numbers that may be found, strictly rising; None for all.

        Returns:
            (q, size) int64 with exactly min(size, number of allowed rows) rows per query, then -1.

        Raises:
            VectorError: size < 1, or `allowed` is no rising set of this segment's rows.
        """
        at_least_one("shortlist", size)
        numbers = None if allowed is None else row_numbers(allowed, self.rows)
        available = self.rows if numbers is None else numbers.size
        if size < available:
            head = rotated[:, : self._config.prefix]
            return self._opened().coarse.shortlist(head, size, numbers)
        everything = np.arange(self.rows) if numbers is None else numbers
        found = np.full((len(rotated), size), -1, np.int64)
        found[:, :available] = everything
        return found

    def rerank(self, rotated: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """Exact cosines of the candidates (q, s), the best k; padded with -1 and -inf."""
        return rerank(self._opened().file, rotated, candidates, at_least_one("k", k))

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        shortlist: int | None = None,
        allowed: npt.ArrayLike | None = None,
    ) -> SearchResult:
        """The best k rows of each query: rerank ∘ shortlist ∘ rotate.

        Where the coarse stage could save nothing (a shortlist of all allowed rows, or a filter
        that leaves few), all of them are scored and the result is `exact`'s.

        Args:
            queries: (q, D), any length > 0.
            k: rows per query, >= 1; with fewer allowed rows the rest is padding.
            shortlist: candidates to score, the configured number if None; raised to k.
            allowed: row numbers that may be found, strictly rising; None for all.

        Returns:
            (q, k) rows and full-width cosines, sorted by (-score, row).

        Raises:
            VectorError: bad queries, k, shortlist or allowed rows.
        """
        wanted = self._config.shortlist if shortlist is None else shortlist
        size = max(at_least_one("shortlist", wanted), at_least_one("k", k))
        numbers = None if allowed is None else row_numbers(allowed, self.rows)
        available = self.rows if numbers is None else numbers.size
        if available <= size or (numbers is not None and available <= EXACT_ALLOWED):
            return self.exact(queries, k, numbers)
        rotated = self.rotate(queries)
        return self.rerank(rotated, self.shortlist(rotated, size, numbers), k)

    def exact(
        self, queries: npt.ArrayLike, k: int, allowed: npt.ArrayLike | None = None
    ) -> SearchResult:
        """The best k of all (allowed) rows by a full-width scan of the mapped file."""
        at_least_one("k", k)
        numbers = None if allowed is None else row_numbers(allowed, self.rows)
        rotated = self.rotate(queries)
        available = self.rows if numbers is None else numbers.size
        size = max(1, min(k + _ROUNDING, available))
        return self.rerank(rotated, self._opened().full.shortlist(rotated, size, numbers), k)

    def prefix_rows(self, p: int) -> Iterator[Floats]:
        """The re-normalised prefixes of all rows in order, in blocks (n_i, p)."""
        for block in self._opened().file.blocks(min(p, self.dim)):
            yield prefix(block, p)

    def take(self, rows: RowNumbers) -> Floats:
        """Stored rows as they lie, rotated: row numbers of any shape (...) to (..., D) float32."""
        return self._opened().file.take(rows)

    def vectors(self, rows: npt.ArrayLike) -> Floats:
        """Stored rows in the encoder's own basis: (n,) row numbers to (n, D) float32.

        Raises:
            VectorError: `rows` is not strictly rising within the segment.
        """
        stored = self._opened().file.take(row_numbers(rows, self.rows))
        return stored if self._turn is None else stored @ self._turn.T

    def over_prefix(self, p: int) -> "Segment":
        """The same rows searched over another prefix; its coarse stage is built in memory.

        Structure and code stay. Returns this segment itself if `p` is its own prefix.
        """
        if p == self._config.prefix:
            return self
        config = replace(self._config, prefix=p)
        coarse = CoarseIndex.build(self.prefix_rows(p), config)
        view = copy(self)  # shares the mapped rows and the turn; closing one leaves the other open
        view._config, view._parts = config, self._opened()._replace(coarse=coarse)
        return view

    def verify(self) -> None:
        """Read every file, the vectors too, and compare checksums.

        Raises:
            SegmentError: naming the first file that differs.
        """
        if not (self.path / MANIFEST).is_file() or (
            sha256(self.path / MANIFEST) != self.manifest_sha256
        ):
            raise SegmentError(f"{self.path / MANIFEST} is missing or changed since it was opened")
        for name in self.manifest.files:
            _check_file(self.path, self.manifest, name, contents=True)

    def close(self) -> None:
        """Let go of the mapped file and the coarse index; searching afterwards is an error."""
        self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> "_Parts":
        if self._parts is None:
            raise SegmentError(f"the segment {self.path} is closed; open it again")
        return self._parts


class _Parts(NamedTuple):
    """What an open segment holds on to."""

    file: VectorFile
    full: CoarseIndex  # the same rows, mapped by faiss
    coarse: CoarseIndex


def _check_file(folder: Path, manifest: Manifest, name: str, *, contents: bool) -> None:
    """Compare one file with its entry: its size always, its checksum on request."""
    path = folder / name
    entry = manifest.files.get(name)
    if entry is None:
        raise SegmentError(f"{folder / MANIFEST} lists no {name}; index again")
    if not path.is_file():
        raise SegmentError(f"{path} is missing; restore the segment or index again")
    if path.stat().st_size != entry.size:
        raise SegmentError(
            f"{path} has {path.stat().st_size} bytes, expected {entry.size}: "
            "the file is truncated or altered; restore it or index again"
        )
    if contents and sha256(path) != entry.sha256:
        raise SegmentError(
            f"{path} does not match its checksum: it was altered; restore it or index again"
        )


def _load_rotation(path: Path, manifest: Manifest) -> Floats | None:
    """The verified (D, D) turn, or None for the identity."""
    if manifest.config.rotation is RotationKind.IDENTITY:
        return None
    turn = np.load(path / ROTATION, allow_pickle=False)
    if turn.shape != (manifest.dim, manifest.dim) or turn.dtype != np.float32:
        raise SegmentError(
            f"{path / ROTATION} is {turn.dtype} {turn.shape}, expected float32 "
            f"({manifest.dim}, {manifest.dim}); index again"
        )
    return np.asarray(turn, np.float32)
