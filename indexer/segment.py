"""A segment: unit vectors on disk, searched coarse to fine.

search = rerank ∘ shortlist ∘ rotate: a short prefix of the rotated query picks a shortlist, and
the stored full-width rows of the shortlist give the scores (adaptive retrieval, Kusupati et al.
2022). The returned score is always the full-width cosine.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers, at_least_one, result_size, row_numbers, unit_rows
from indexer.building.build import (
    Blocks,
    Progress,
    check_same,
    rewrite_segment,
    write_segment,
)
from indexer.building.merge import Part, write_merged
from indexer.config import Code, Device, RotationKind, SegmentConfig, Storage, Structure
from indexer.errors import SegmentError
from indexer.search import searching
from indexer.search.allowed import Allowed, restriction
from indexer.search.parts import Parts, check_file
from indexer.search.rerank import SearchResult, rerank
from indexer.storage.basis import Basis
from indexer.storage.durable import sha256
from indexer.storage.manifest import MANIFEST, Manifest
from indexer.storage.vectors import Prefixes

__all__ = ["Code", "Device", "RotationKind", "SearchResult", "Segment", "SegmentConfig", "Storage"]
__all__ += ["Structure"]


class Segment:
    """An immutable folder of vectors. Made by `build` or `open`; usable as a context manager.

    Attributes:
        path: the folder.
        manifest: what it holds.
        manifest_sha256: the checksum of manifest.json, by which the whole segment can be named.
    """

    def __init__(self, path: Path, manifest: Manifest, manifest_sha256: str, parts: Parts) -> None:
        self.path = path
        self.manifest = manifest
        self.manifest_sha256 = manifest_sha256
        self._config = manifest.config
        self._parts: Parts | None = parts

    @classmethod
    def build(
        cls,
        path: str | Path,
        vectors: Blocks,
        config: SegmentConfig,
        *,
        rotation_of: "Segment | None" = None,
        provenance: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Write vectors into a new folder and open it.

        Files are complete and synced before the manifest is written, last. If anything fails, the
        folder is removed. Memory stays bounded for a stream: it passes through a temporary file
        in the folder, for the rotation must be fitted before the first row can be stored.

        Args:
            path: the folder to make; must not exist.
            vectors: (n, D) array, or an iterable of blocks (n_i, D); rows of any length > 0.
            config: how to build.
            rotation_of: an open segment whose rotation is verified, linked and used.
            provenance: free text pairs kept in the manifest, e.g. the encoder's fingerprint.
            progress: called with the step, rows just done and rows in all.

        Raises:
            SegmentError: the folder exists, or the rotation that is taken was altered.
            SegmentConfigError: the prefix is wider than the vectors, or the other segment's
                rotation is of another kind.
            VectorError: a row is zero, not finite or of another width; or there is none.
            OSError: the disk does not take it.
        """
        adopted = None
        if rotation_of is not None:
            check_same(rotation_of.manifest.config, config, ("rotation", "blocks"))
            adopted = rotation_of._basis()
        write_segment(Path(path), vectors, config, dict(provenance or {}), progress, adopted)
        return cls.open(path, rotation_of=rotation_of)

    @classmethod
    def merge(
        cls,
        path: str | Path,
        parts: "Sequence[tuple[Segment, Allowed | npt.ArrayLike | None]]",
        config: SegmentConfig,
        *,
        refit: bool | None = None,
        provenance: Mapping[str, str] | None = None,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Write rows of several segments into a new one and open it, safely as `build` does.

        Of the segments' rotations the one fitted on most rows is kept; rows stored in it are
        copied byte for byte, others are turned, and every file that is read is verified.

        Args:
            path: the folder to make; must not exist.
            parts: open segments, each with the rows to take, rising; None takes all. They follow
                each other in this order, numbered from 0, and may be closed afterwards.
            config: how to build.
            refit: fit the rotation again, on all the rows; None does it when they have grown
                enough (indexer.building.merge.GROWTH), or no part has a rotation of this kind.
            provenance, tuning: for the manifest.
            progress: called with the step, rows just done and rows in all.

        Raises:
            SegmentError: the folder exists, or a part is closed or was altered.
            SegmentConfigError: the prefix is wider than the vectors.
            VectorError: no rows, parts of different widths, or rows that a part has not.
            OSError: the disk does not take it.
        """
        made = write_merged(
            Path(path),
            [segment._part(rows) for segment, rows in parts],
            config,
            refit=refit,
            provenance=dict(provenance or {}),
            tuning=tuning,
            progress=progress,
        )
        kept = made.rotation_sha256
        same = (part for part, _ in parts if part.manifest.rotation_sha256 == kept)
        return cls.open(path, rotation_of=next(same, None))

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        device: Device | str = Device.CPU,
        rotation_of: "Segment | None" = None,
    ) -> Self:
        """Open a folder after checking it: format, sizes, and the checksums of all but the vectors.

        The vectors are mapped, not read: their size and header are checked here, their checksum
        by `verify`. On the device "gpu" scans without a filter run there; graphs stay on the CPU.

        `rotation_of` is an open segment; if it has the same rotation, the two share it in memory.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown.
        """
        folder = Path(path)
        try:
            text = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            raise SegmentError(f"{folder / MANIFEST} is missing: {folder} is no segment") from None
        manifest = Manifest.from_json(text, str(folder / MANIFEST))
        shared = None
        if (
            rotation_of is not None
            and rotation_of.manifest.rotation_sha256 == manifest.rotation_sha256
        ):
            shared = rotation_of._opened().turn
        parts = Parts.open(folder, manifest, Device(device), shared)
        return cls(folder, manifest, hashlib.sha256(text).hexdigest(), parts)

    def rebuild(
        self,
        path: str | Path,
        config: SegmentConfig,
        *,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Write a segment of the same vectors that is searched another way, and open it.

        The vectors and the rotation are linked where the file system can, and verified.

        Args:
            path: the folder to make; must not exist.
            config: the new recipe, of the same rotation and storage.
            tuning: what the operating point is founded on, kept in the manifest.
            progress: called with the step, rows just done and rows in all.

        Raises:
            SegmentError: the folder exists, or this segment was altered.
            SegmentConfigError: another rotation or storage.
        """
        rewrite_segment(
            Path(path),
            self._opened().file,
            self._basis(),
            self.manifest,
            config,
            tuning=tuning,
            progress=progress,
        )
        return self.open(path, rotation_of=self)

    @property
    def rows(self) -> int:
        """How many vectors there are; they are numbered from 0."""
        return self.manifest.rows

    @property
    def dim(self) -> int:
        """The full width D."""
        return self.manifest.dim

    @property
    def lists(self) -> int:
        """The k-means lists of an IVF's coarse stage; 0 for other structures."""
        return self._opened().coarse.lists

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
        turn = self._opened().turn
        return unit if turn is None else turn.apply(unit)

    def shortlist(
        self, rotated: Floats, size: int, allowed: Allowed | npt.ArrayLike | None = None
    ) -> RowNumbers:
        """Candidates for rotated queries (q, D), from their prefix alone.

        Args:
            rotated: what `rotate` returned.
            size: candidates per query, >= 1.
            allowed: the rows that may be found: Allowed, made once for many searches, or row
                numbers, strictly rising; None for all.

        Returns:
            (q, size) int64 with exactly min(size, number of allowed rows) rows per query, then -1.

        Raises:
            VectorError: size < 1, or `allowed` is no rising set of this segment's rows.
        """
        size = result_size("shortlist", size, self.rows)
        only = self._opened().restricted(allowed)
        return searching.shortlist(self._opened(), self._config, rotated, size, only)

    def rerank(self, rotated: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """Exact cosines of the candidates (q, s), the best k; padded with -1 and -inf."""
        return rerank(self._opened().file, rotated, candidates, result_size("k", k, self.rows))

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        shortlist: int | None = None,
        allowed: Allowed | npt.ArrayLike | None = None,
    ) -> SearchResult:
        """The best k rows of each query: rerank ∘ shortlist ∘ rotate.

        Where the coarse stage could save nothing (a shortlist of all allowed rows, or a filter
        that leaves few), all of them are scored and the result is `exact`'s.

        Args:
            queries: (q, D), any length > 0.
            k: rows per query, >= 1; with fewer allowed rows the rest is padding.
            shortlist: candidates to score, the configured number if None; raised to k.
            allowed: the rows that may be found, as for `shortlist`.

        Returns:
            (q, k) rows and full-width cosines, sorted by (-score, row).

        Raises:
            VectorError: bad queries, k, shortlist or allowed rows.
        """
        wanted = self._config.shortlist if shortlist is None else shortlist
        k = result_size("k", k, self.rows)
        size = max(at_least_one("shortlist", wanted), k)
        only = self._opened().restricted(allowed)
        rotated = self.rotate(queries)
        return searching.search(self._opened(), self._config, rotated, k, size, only)

    def exact(
        self, queries: npt.ArrayLike, k: int, allowed: Allowed | npt.ArrayLike | None = None
    ) -> SearchResult:
        """The best k of all (allowed) rows, proven.

        With bounds only rows that can be among the best are read; `read` says how many.
        """
        k = result_size("k", k, self.rows)
        only = self._opened().restricted(allowed)
        return searching.exact(self._opened(), self._config, self.rotate(queries), k, only)

    def prefix_rows(self, p: int) -> Prefixes:
        """The re-normalised prefixes of all rows."""
        return Prefixes(self._opened().file, p)

    def take(self, rows: RowNumbers) -> Floats:
        """Stored rows as they lie, rotated: row numbers of any shape (...) to (..., D) float32."""
        return self._opened().file.take(rows)

    def vectors(self, rows: npt.ArrayLike) -> Floats:
        """Stored rows in the encoder's own basis: (n,) rising row numbers to (n, D) float32."""
        turn = self._opened().turn
        stored = self._opened().file.take(row_numbers(rows, self.rows))
        return stored if turn is None else stored @ turn.matrix.T

    def verified(self, rows: Allowed | npt.ArrayLike | None = None) -> Iterator[Floats]:
        """Rows (all by default) as `vectors` gives them, in blocks (n, D), while all are verified.

        Raises:
            SegmentError: a row is no unit vector; at the end, the file was altered.
        """
        turn = self._opened().turn
        for _, stored in self._part(rows).blocks():
            yield stored if turn is None else stored @ turn.matrix.T

    def over(self, config: SegmentConfig, kept: Allowed | npt.ArrayLike | None = None) -> "Segment":
        """The same rows searched by another recipe; its coarse stage is built in memory.

        Rotation and storage stay as they are. Where only the operating point differs (shortlist,
        effort, stages), the coarse stage is this one's.

        Args:
            config: the recipe.
            kept: the rows that the view may find, for a trial; its coarse stage holds no others.
                None for all.
        """
        config = config.fitting(self.rows, self.dim)
        parts = self._opened()
        if kept is not None or config.coarse_stage() != self._config.coarse_stage():
            parts = parts.with_coarse(config, parts.searched(parts.restricted(kept)))
        return self._view(config, parts)

    def unbounded(self) -> "Segment":
        """The same without bounds: exact search scores every row at full width."""
        return self._view(self._config, self._opened()._replace(bounds=None))

    def remapped(self, vectors: Path) -> "Segment":
        """The same over a copy of its rows' file, mapped now: none of its pages has been read."""
        return self._view(self._config, self._opened().remapped(vectors))

    def _view(self, config: SegmentConfig, parts: Parts) -> "Segment":
        view = copy(self)  # shares what is mapped; closing one leaves the other open
        view._config, view._parts = config, parts
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
            check_file(self.path, self.manifest, name, contents=True)

    def close(self) -> None:
        """Let go of the mapped file and the coarse index; searching afterwards is an error."""
        self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _basis(self) -> Basis:
        turn = self._opened().turn
        return Basis.of(self.path, self.manifest, None if turn is None else turn.matrix)

    def _part(self, rows: Allowed | npt.ArrayLike | None) -> Part:
        only = restriction(rows, self.rows)
        numbers = None if only is None else only.rows
        checksum = self.manifest.files[self.manifest.vectors_file].sha256
        return Part(self._opened().file, checksum, numbers, self._basis(), self.manifest.config)

    def _opened(self) -> Parts:
        if self._parts is None:
            raise SegmentError(f"the segment {self.path} is closed; open it again")
        return self._parts
