"""A segment: unit vectors on disk, searched coarse to fine.

search = rerank ∘ shortlist ∘ rotate: a short prefix of the rotated query picks a shortlist, and
the stored full-width rows of the shortlist give the scores (adaptive retrieval, Kusupati et al.
2022). The returned score is always the full-width cosine.
"""

import hashlib
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from indexer import gpu
from indexer.arrays import Floats, RowNumbers, at_least_one, row_numbers, unit_rows
from indexer.build import (
    MANIFEST,
    ROTATION,
    Blocks,
    Progress,
    finish_segment,
    new_folder,
    write_segment,
)
from indexer.cascade import Cascade
from indexer.certify import certify, scan, score_slack
from indexer.coarse import CoarseIndex
from indexer.config import Code, Device, RotationKind, SegmentConfig, Storage, Structure
from indexer.durable import link_or_copy, sha256
from indexer.errors import SegmentConfigError, SegmentError
from indexer.manifest import Manifest
from indexer.parts import Parts, check_file
from indexer.rerank import SearchResult, narrow, rerank
from indexer.vectors import Prefixes, VectorFile

__all__ = [
    "Code",
    "Device",
    "RotationKind",
    "SearchResult",
    "Segment",
    "SegmentConfig",
    "Storage",
    "Structure",
]

EXACT_ALLOWED = 1000
"""A filter that leaves at most this many rows makes the coarse stage pointless: score them all."""


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
            provenance: free text pairs kept in the manifest, e.g. the encoder's fingerprint.
            progress: called with the step, rows just done and rows in all.

        Raises:
            SegmentError: the folder exists.
            SegmentConfigError: the prefix is wider than the vectors.
            VectorError: a row is zero, not finite or of another width; or there is none.
            OSError: the disk does not take it.
        """
        write_segment(Path(path), vectors, config, dict(provenance or {}), progress)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, *, device: Device | str = Device.CPU) -> Self:
        """Open a folder after checking it: format, sizes, and the checksums of all but the vectors.

        The vectors are mapped, not read: their size and header are checked here, their checksum
        by `verify`. On the device "gpu" scans without a filter run there, from copies in its
        memory; graphs are walked on the CPU all the same.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown.
        """
        folder = Path(path)
        try:
            text = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            raise SegmentError(f"{folder / MANIFEST} is missing: {folder} is no segment") from None
        manifest = Manifest.from_json(text, str(folder / MANIFEST))
        parts = Parts.open(folder, manifest, Device(device))
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

        The vectors and the rotation are linked, not copied, where the file system can.

        Args:
            path: the folder to make; must not exist.
            config: the new recipe, of the same rotation and storage.
            tuning: what the operating point is founded on, kept in the manifest.
            progress: called with the step, rows just done and rows in all.

        Raises:
            SegmentError: the folder exists. SegmentConfigError: another rotation or storage.
        """
        for name in ("rotation", "blocks", "storage"):
            made, asked = getattr(self.manifest.config, name), getattr(config, name)
            if made != asked:
                raise SegmentConfigError(
                    f"{name} is {made} in the stored vectors, got {asked}; index again to change it"
                )
        folder = Path(path)
        with new_folder(folder):
            for name in (self.manifest.vectors_file, ROTATION):
                if (self.path / name).exists():
                    link_or_copy(self.path / name, folder / name)
            file = self._opened().file
            stored = VectorFile(folder / file.path.name, file.rows, file.dim, file.storage)
            finish_segment(
                folder,
                stored,
                config,
                self.manifest.provenance,
                tuning=tuning,
                progress=progress,
            )
        return self.open(folder)

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
            coarse = self._opened().scanner("coarse", size, numbers is not None)
            return coarse.shortlist(head, size, numbers, self._config.effort)
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
        parts = self._opened()
        if self._config.stages or not parts.coarse.walks(available):
            if numbers is not None and not parts.coarse.selects:
                return self.exact(queries, k, numbers)
            candidates = self.shortlist(rotated, size, numbers)
            for width, keep in self._config.stages:
                candidates = narrow(parts.file, rotated, candidates, width, max(keep, k))
            return self.rerank(rotated, candidates, k)
        found = parts.cascade.search(rotated, k, size, self._config.effort, numbers)
        short = np.flatnonzero(found.rows[:, -1] < 0)  # the walk ended before it found enough
        if short.size:
            again = self.shortlist(rotated[short], size, numbers)
            mended = self.rerank(rotated[short], again, k)
            found.rows[short], found.scores[short] = mended.rows, mended.scores
        return found

    def exact(
        self, queries: npt.ArrayLike, k: int, allowed: npt.ArrayLike | None = None
    ) -> SearchResult:
        """The best k of all (allowed) rows, proven.

        With bounds (SegmentConfig.bounds) only rows that can be among the best are read at full
        width, and `read` says how many; without, all of them are.
        """
        at_least_one("k", k)
        numbers = None if allowed is None else row_numbers(allowed, self.rows)
        rotated = self.rotate(queries)
        available = self.rows if numbers is None else numbers.size
        parts = self._opened()
        startable = numbers is None or parts.coarse.selects
        if parts.bounds is not None and startable and available > max(EXACT_ALLOWED, k):
            size = max(k, self._config.shortlist)
            start = self.shortlist(rotated, min(size, available), numbers)
            proof = certify(parts.bounds, parts.file, parts.full, rotated, k, start, numbers)
            read = np.rint(proof.touched * self.rows).astype(np.int64)
            return replace(proof.result, proven=True, read=read)
        if available == 0:
            nothing = self.rerank(rotated, np.full((len(rotated), 1), -1), k)
            return replace(nothing, proven=True, read=np.zeros(len(rotated), np.int64))
        slack = score_slack(self.dim) + (gpu.SLACK if parts.gpu_full is not None else 0)

        def shortlist(some: Floats, size: int) -> RowNumbers:
            return parts.scanner("full", size, numbers is not None).shortlist(some, size, numbers)

        result = scan(shortlist, parts.file, rotated, k, available, slack)
        return replace(result, proven=True, read=np.full(len(rotated), available))

    def prefix_rows(self, p: int) -> Prefixes:
        """The re-normalised prefixes of all rows."""
        return Prefixes(self._opened().file, p)

    def take(self, rows: RowNumbers) -> Floats:
        """Stored rows as they lie, rotated: row numbers of any shape (...) to (..., D) float32."""
        return self._opened().file.take(rows)

    def vectors(self, rows: npt.ArrayLike) -> Floats:
        """Stored rows in the encoder's own basis: (n,) row numbers to (n, D) float32.

        Raises:
            VectorError: `rows` is not strictly rising within the segment.
        """
        turn = self._opened().turn
        stored = self._opened().file.take(row_numbers(rows, self.rows))
        return stored if turn is None else stored @ turn.matrix.T

    def over(self, config: SegmentConfig, kept: npt.ArrayLike | None = None) -> "Segment":
        """The same rows searched by another recipe; its coarse stage is built in memory.

        Rotation and storage stay as they are. Where only the operating point differs (shortlist,
        effort, stages), the coarse stage is this one's.

        Args:
            config: the recipe.
            kept: the rows that the coarse stage shall hold, strictly rising, for a trial; None for
                all, or for those that it holds already.
        """
        config = config.fitting(self.rows, self.dim)
        parts = self._opened()
        if kept is not None or config.coarse_stage() != self._config.coarse_stage():
            rows = None if kept is None else row_numbers(kept, self.rows)
            coarse = CoarseIndex.build(self.prefix_rows(config.prefix), config, kept=rows)
            parts = parts._replace(coarse=coarse, cascade=Cascade(coarse, parts.full))
        view = copy(self)  # shares the mapped rows and the turn; closing one leaves the other open
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

    def _opened(self) -> Parts:
        if self._parts is None:
            raise SegmentError(f"the segment {self.path} is closed; open it again")
        return self._parts
