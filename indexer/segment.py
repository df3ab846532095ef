"""A segment: unit vectors on disk, searched coarse to fine.

A short prefix of the rotated query picks a shortlist, and the stored full-width rows of the
shortlist give the scores (adaptive retrieval, Kusupati et al. 2022). The returned score is always
the full-width cosine.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, RowNumbers, at_least_one, result_size, row_numbers
from searchengine.indexer.building.build import (
    Blocks,
    Passages,
    Progress,
    add_passages,
    check_same,
    rewrite_segment,
    write_segment,
)
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.building.merge import Part, write_merged
from searchengine.indexer.building.words_file import WriteWords
from searchengine.indexer.config import Code, Device, RotationKind, SegmentConfig, Storage
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.search.allowed import Allowed, restriction
from searchengine.indexer.search.cascade import SearchResult, narrow, rerank
from searchengine.indexer.search.exact import EXACT_ALLOWED
from searchengine.indexer.search.native_search import walk_totals
from searchengine.indexer.search.rotating import Queries
from searchengine.indexer.search.segment_files import Parts, read_manifest
from searchengine.indexer.storage.basis import Basis
from searchengine.indexer.storage.durable import sha256
from searchengine.indexer.storage.manifest import MANIFEST, ROTATION, Checksum, Manifest
from searchengine.indexer.storage.passages_file import RowPassages
from searchengine.indexer.storage.vectors_file import Prefixes
from searchengine.indexer.storage.words_format import Postings

__all__ = ["Code", "Device", "RotationKind", "SearchResult", "Segment", "SegmentConfig", "Storage"]


class Segment:
    """An immutable folder of vectors, from `build`, `merge` or `open`. A context manager.

    Attributes:
        path: the folder.
        manifest: the contents of manifest.json.
        manifest_sha256: the checksum of manifest.json, which identifies the segment.
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
        words: WriteWords | None = None,
        passages: Passages | None = None,
    ) -> Self:
        """Write vectors into a new folder and open it.

        The manifest is written last, after all other files are synced; on failure the folder is
        removed. A stream passes through a temporary file in the folder, so memory stays bounded.

        Args:
            path: a folder that does not exist yet.
            vectors: (n, D) array, or an iterable of blocks (n_i, D); rows of any length > 0.
            config: how to build and search.
            rotation_of: an open segment; its rotation is verified, linked and used.
            provenance: text pairs kept in the manifest, e.g. the encoder's fingerprint.
            progress: called with the step, the rows just done and the total.
            words: writes the words file (indexer.building.words_file), if there is to be one.
            passages: returns the passage of each row (indexer.storage.passages_file), if the
                segment is to tell them; called when the vectors are written.

        Raises:
            SegmentError: the folder exists, or the linked rotation was altered.
            SegmentConfigError: the prefix is wider than the vectors, or `rotation_of` has another
                kind of rotation.
            VectorError: no rows, or a row that is zero, not finite or of another width.
            OSError: the folder could not be written.
        """
        adopted = None
        if rotation_of is not None:
            check_same(rotation_of.manifest.config, config, ("rotation",))
            adopted = rotation_of.basis()
        noted = dict(provenance or {})
        write_segment(Path(path), vectors, config, noted, progress, adopted, words, passages)
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
        words: WriteWords | None = None,
        passages: Passages | None = None,
    ) -> Self:
        """Write rows of several segments into a new one and open it, safely as `build` does.

        The rotation fitted on most rows is kept. Rows stored in it are copied byte for byte, the
        others are rotated, and every file that is read is verified.

        Args:
            path: a folder that does not exist yet.
            parts: open segments, each with the rows to take, rising; None takes all. Their rows
                are numbered through in this order. They may be closed afterwards.
            config: how to build and search.
            refit: fit the rotation again on all rows; None does so when there are enough new rows
                (indexer.building.merge.GROWTH), or no part has a rotation of this kind.
            provenance, tuning, progress: as for `build` and `rebuild`.
            words: writes the words file unless it can be merged from those of the parts.
            passages: as for `build`.

        Raises as `build`; also SegmentError for a part that is closed or was altered, and
        VectorError for parts of different widths, or row numbers that a part lacks.
        """
        manifest = write_merged(
            Path(path),
            [segment._part(rows) for segment, rows in parts],
            config,
            refit=refit,
            provenance=dict(provenance or {}),
            tuning=tuning,
            progress=progress,
            words=words,
            passages=passages,
        )
        equal = (s for s, _ in parts if s.manifest.rotation_sha256 == manifest.rotation_sha256)
        return cls.open(path, rotation_of=next(equal, None))

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        device: Device | str = Device.CPU,
        rotation_of: "Segment | None" = None,
        checksum: Checksum | None = None,
    ) -> Self:
        """Open a folder after checking its format, its sizes and all checksums but the vectors'.

        The vectors are mapped: their size and header are checked here, their checksum by `verify`.
        On the device "gpu" scans without a filter run there; graphs stay on the CPU. An open
        segment `rotation_of` that has the same rotation shares it in memory. `checksum` computes
        or remembers the SHA-256 of a file. Raises SegmentError, naming a file that is missing,
        truncated, altered or unknown.
        """
        folder = Path(path)
        manifest, manifest_sha256 = read_manifest(folder)
        shared = None
        if rotation_of and rotation_of.manifest.rotation_sha256 == manifest.rotation_sha256:
            shared = rotation_of._opened().rotation
        parts = Parts.open(folder, manifest, Device(device), shared, checksum)
        return cls(folder, manifest, manifest_sha256, parts)

    @staticmethod
    def add_passages(path: Path, passages: Passages) -> None:
        """Add the passages of its rows to a segment that was built and is in use nowhere yet.

        Raises VectorError (there are more passages than rows, or fewer), SegmentError and OSError.
        """
        manifest, _ = read_manifest(path)
        add_passages(path, manifest, passages)

    def rebuild(
        self,
        path: str | Path,
        config: SegmentConfig,
        *,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Write a segment of the same vectors with another index config, and open it.

        The vectors and the rotation are hard-linked where the file system can, and verified.

        Args:
            path, progress: as for `build`.
            config: the new index config and operating point; same rotation and storage.
            tuning: how the operating point was measured, kept in the manifest.

        Raises SegmentError (the folder exists, or this segment was altered) and SegmentConfigError
        (another rotation or storage).
        """
        source = self._opened().file, self.basis(), self.manifest
        rewrite_segment(Path(path), *source, config, tuning=tuning, progress=progress)
        return self.open(path, rotation_of=self)

    @property
    def rows(self) -> int:
        """Number of vectors; row numbers start at 0."""
        return self.manifest.rows

    @property
    def dim(self) -> int:
        """The full width D."""
        return self.manifest.dim

    @property
    def lists(self) -> int:
        """Number of k-means lists of an IVF; 0 for other structures."""
        return self._opened().coarse.lists

    @property
    def words(self) -> Postings | None:
        """Which documents have which terms; None if the segment was built without."""
        return self._opened().words

    @property
    def passages(self) -> RowPassages | None:
        """The passages that its rows are the vectors of; None if the segment does not tell."""
        return self._opened().passages

    @property
    def config(self) -> SegmentConfig:
        """Index config and operating point of this segment or view."""
        return self._config

    def rotate(self, queries: npt.ArrayLike | Queries) -> Floats:
        """Queries (q, D) as float32 unit rows in the basis of the stored rows.

        Queries are rotated once for all segments that share a rotation. VectorError: empty or bad.
        """
        if not isinstance(queries, Queries):
            queries = Queries(queries)
        return queries.rotated(self._opened().rotation, self.dim)

    def shortlist(
        self, rotated: Floats, size: int, allowed: Allowed | npt.ArrayLike | None = None
    ) -> RowNumbers:
        """Candidates for rotated queries (q, D), found by their prefix.

        Args:
            rotated: what `rotate` returned.
            size: candidates per query, >= 1.
            allowed: the rows that may be found: an Allowed, which many searches can reuse, or
                strictly rising row numbers; None for all.

        Returns (q, size) int64: min(size, number of allowed rows) rows per query, then -1. Raises
        VectorError: size < 1, or `allowed` is not a rising set of this segment's rows.
        """
        size = result_size("shortlist", size, self.rows)
        return self._shortlist(rotated, size, self._opened().restricted(allowed))

    def rerank(self, rotated: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """The best k candidates (q, s) by full-width cosine, padded with -1 and -inf."""
        return rerank(self._opened().file, rotated, candidates, result_size("k", k, self.rows))

    def search(
        self,
        queries: npt.ArrayLike | Queries,
        k: int,
        shortlist: int | None = None,
        allowed: Allowed | npt.ArrayLike | None = None,
    ) -> SearchResult:
        """The best k rows (q, k) by (-full-width cosine, row): rerank ∘ shortlist ∘ rotate.

        Where the shortlist would hold all allowed rows, or few are allowed, the search is `exact`.

        Args:
            queries: (q, D), any length > 0; or as for `rotate`.
            k: rows per query, >= 1; with fewer allowed rows the rest is padding.
            shortlist: candidates to score, at least k; None takes the configured number.
            allowed: the rows that may be found, as for `shortlist`.

        Raises VectorError: bad queries, k, shortlist or allowed rows.
        """
        parts, config = self._opened(), self._config
        shortlist = config.shortlist if shortlist is None else shortlist
        k = result_size("k", k, self.rows)
        size = max(at_least_one("shortlist", shortlist), k)
        only = parts.restricted(allowed)
        rotated = self.rotate(queries)
        available = parts.available(only)
        if available <= size or (only is not None and available <= EXACT_ALLOWED):
            return self._exact(rotated, k, only)
        if config.stages or not parts.one_call(size, config.effort, only):
            candidates = self._shortlist(rotated, size, only)
            for width, keep in config.stages:
                candidates = narrow(parts.file, rotated, candidates, width, max(keep, k))
            return parts.rerank(rotated, candidates, k)
        result = parts.cascade.search(rotated, k, size, config.effort, only)
        short = np.flatnonzero(result.rows[:, -1] < 0)  # the walk ended before it found k rows
        if short.size:
            candidates = self._shortlist(rotated[short], size, only)
            full = parts.rerank(rotated[short], candidates, k)
            result.rows[short], result.scores[short] = full.rows, full.scores
        return result

    def prefix_ranks(
        self, query: npt.ArrayLike | Queries, rows: RowNumbers, allowed: Allowed | None = None
    ) -> tuple[RowNumbers, Floats]:
        """How the prefix alone ranks rows for a query (1, D): what a walk approximates.

        `rows`: (n,) int64, different ones that `allowed` has. Returns ranks from 1 among the
        allowed rows, (n,) int64, and the cosines of the prefixes, (n,) float32.
        """
        parts = self._opened()
        only = parts.searched(parts.restricted(allowed))
        return parts.coarse.ranks(self.rotate(query)[:, : parts.coarse.width], rows, only)

    def walks(self, size: int, allowed: Allowed | None = None) -> bool:
        """Whether a search for a shortlist of `size` walks a graph or lists, which may miss rows.

        Otherwise it scans prefixes.
        """
        parts = self._opened()
        return parts.cascade.walks(size, self._config.effort, parts.restricted(allowed))

    def walk_totals(self) -> tuple[int, int]:
        """Counters of graph walks: codes compared, and nodes expanded."""
        return walk_totals(self._opened().cascade)

    def exact(
        self,
        queries: npt.ArrayLike | Queries,
        k: int,
        allowed: Allowed | npt.ArrayLike | None = None,
    ) -> SearchResult:
        """The true best k of all (allowed) rows."""
        only = self._opened().restricted(allowed)
        return self._exact(self.rotate(queries), result_size("k", k, self.rows), only)

    def _shortlist(self, rotated: Floats, size: int, only: Allowed | None) -> RowNumbers:
        return self._opened().shortlist(rotated, size, only, self._config.effort)

    def _exact(self, rotated: Floats, k: int, only: Allowed | None) -> SearchResult:
        return replace(self._opened().exact(rotated, k, only), exact=True)

    def prefix_rows(self, p: int) -> Prefixes:
        """The re-normalised prefixes of all rows."""
        return Prefixes(self._opened().file, p)

    def take(self, rows: RowNumbers) -> Floats:
        """Stored (rotated) rows: row numbers of any shape (...) to (..., D) float32."""
        return self._opened().file.take(rows)

    def vectors(self, rows: npt.ArrayLike) -> Floats:
        """Stored rows in the encoder's basis: (n,) rising row numbers to (n, D) float32."""
        file, rotation = self._opened().file, self._opened().rotation
        stored = file.take(row_numbers(rows, self.rows))
        return stored if rotation is None else rotation.undo(stored)

    def verified(self, rows: Allowed | npt.ArrayLike | None = None) -> Iterator[Floats]:
        """Rows (all by default) in the encoder's basis, verified as they are read: blocks (n, D).

        SegmentError: a row is not a unit vector; at the end, the file was altered.
        """
        rotation = self._opened().rotation
        for _, stored in self._part(rows).blocks():
            yield stored if rotation is None else stored @ rotation.matrix.T

    def over(self, config: SegmentConfig, kept: Allowed | npt.ArrayLike | None = None) -> "Segment":
        """The same rows with another index config; its coarse stage is built in memory.

        Where only the operating point differs (shortlist, effort, stages), the coarse stage is
        shared with this segment. The rotation and the storage stay as they are.

        Args:
            config: the index config and operating point; a shortlist of 0 takes this segment's.
            kept: the rows that the view may find, and its coarse stage holds; None for all.
        """
        config, parts = config.fitting(self.rows, self.dim), self._opened()
        config = replace(config, shortlist=config.shortlist or self._config.shortlist)
        if kept is not None or config.coarse_stage() != self._config.coarse_stage():
            rows = parts.searched(parts.restricted(kept))
            numbers = None if rows is None else rows.rows
            coarse = build_coarse(self.prefix_rows(config.prefix), config, kept=numbers)
            parts = parts.with_coarse(coarse, rows)
        return self._view(config, parts)

    def remapped(self, vectors: Path) -> "Segment":
        """This segment over a copy of its vectors file, mapped now: no page of it has been read."""
        return self._view(self._config, self._opened().remapped(vectors))

    def _view(self, config: SegmentConfig, parts: Parts) -> "Segment":
        view = copy(self)  # shares the maps; closing one leaves the other open
        view._config, view._parts = config, parts
        return view

    def verify(self) -> None:
        """Read all files and compare checksums; SegmentError names the first that differs."""
        path = self.path / MANIFEST
        if not path.is_file() or sha256(path) != self.manifest_sha256:
            raise SegmentError(f"{path} is missing or changed since it was opened")
        for name, entry in self.manifest.files.items():
            entry.check(self.path / name)

    def close(self) -> None:
        """Release the mapped files."""
        self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def basis(self) -> Basis:
        """The basis of the stored rows; a writer may have removed its file."""
        rotation, manifest = self._opened().rotation, self.manifest
        if rotation is None:
            return Basis()
        file, entry = self.path / ROTATION, manifest.files[ROTATION]
        return Basis(rotation.matrix, manifest.fitted_on, file, entry)

    def _part(self, rows: Allowed | npt.ArrayLike | None) -> Part:
        only = restriction(rows, self.rows)
        numbers = None if only is None else only.rows
        checksum = self.manifest.files[self.manifest.vectors_file].sha256
        parts, config = self._opened(), self.manifest.config
        return Part(parts.file, checksum, numbers, self.basis(), config, parts.words)

    def _opened(self) -> Parts:
        if self._parts is None:
            raise SegmentError(f"the segment {self.path} is closed; open it again")
        return self._parts
