"""A segment: unit vectors on disk, searched coarse to fine.

A short prefix of the query, rotated, picks a shortlist, and the stored full-width rows of the
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

from searchengine.indexer.arrays import (
    Floats,
    RowNumbers,
    at_least_one,
    float_rows,
    result_size,
    row_numbers,
    unit_rows,
)
from searchengine.indexer.building import (
    Blocks,
    Part,
    Passages,
    Progress,
    add_passages,
    build_coarse,
    given_blocks,
    merged_blocks,
    merged_words,
    write_segment,
)
from searchengine.indexer.config import Device, RotationKind, SegmentConfig
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.cascade import Parts, restriction
from searchengine.indexer.search.postings import Postings, WriteWords
from searchengine.indexer.search.scoring import Allowed, SearchResult, rerank
from searchengine.indexer.storage.files import (
    MANIFEST,
    PASSAGES,
    VECTORS,
    WORDS,
    Checksum,
    Manifest,
    read_manifest,
)
from searchengine.indexer.storage.vectors import (
    ROTATION_SAMPLE,
    Prefixes,
    VectorFile,
    as_floats,
    pca,
)

__all__ = ["Segment", "SegmentConfig"]


class Segment:
    """An immutable folder of vectors, or a view of one. A context manager.

    From `build`, `merge`, `rebuild` or `open`; `over` gives a view.

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
        self._directions: list[Floats] = []  # (D, D) of trials, once computed; views share the list

    @classmethod
    def build(
        cls,
        path: str | Path,
        vectors: Blocks,
        config: SegmentConfig,
        *,
        like: "Segment | None" = None,
        provenance: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        words: WriteWords | None = None,
        passages: Passages | None = None,
    ) -> Self:
        """Write vectors into a new folder and open it.

        The manifest is written last, after all other files are synced; on failure the folder is
        removed. Memory stays bounded.

        Args:
            path: a folder that does not exist yet.
            vectors: (n, D) array, or an iterable of blocks (n_i, D); rows of any length > 0. They
                are scaled to length one and rounded to the storage.
            config: how to build and search.
            like: an open segment, whose rotation is taken if it suits these rows as well: to fit
                one takes as long as a commit of few rows.
            provenance: text pairs kept in the manifest, e.g. the encoder's fingerprint.
            progress: called with the step, the rows just done and the total.
            words: writes the words file (indexer.search.postings), if there is to be one.
            passages: returns the passage of each row (indexer.storage.vectors), if the
                segment is to tell them; called when the vectors are written.

        Raises:
            SegmentError: the folder exists.
            SegmentConfigError: the prefix is wider than the vectors.
            VectorError: no rows, or a row that is zero, not finite or of another width.
            OSError: the folder could not be written.
        """
        write_segment(
            Path(path),
            *given_blocks(vectors, config.storage),
            config,
            provenance or {},
            like=None if like is None else like._opened().prefixes,
            progress=progress,
            words=words,
            passages=passages,
        )
        return cls.open(path)

    @classmethod
    def merge(
        cls,
        path: str | Path,
        parts: "Sequence[tuple[Segment, Allowed | npt.ArrayLike | None]]",
        config: SegmentConfig,
        *,
        provenance: Mapping[str, str] | None = None,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        words: WriteWords | None = None,
        passages: Passages | None = None,
    ) -> Self:
        """Write rows of several segments into a new one and open it, safely as `build` does.

        Rows are copied byte for byte where the storage is the same, and every file that is read is
        verified.

        Args:
            path: a folder that does not exist yet.
            parts: open segments, each with the rows to take, rising; None takes all. Their rows
                are numbered through in this order. They may be closed afterwards.
            config: how to build and search.
            provenance, tuning, progress: as for `build` and `rebuild`.
            words: writes the words file unless it can be merged from those of the parts.
            passages: as for `build`.

        Raises as `build`; also SegmentError for a part that is closed, was altered or is of
        another width, and VectorError for row numbers that a part lacks.
        """
        taken = [segment._part(rows) for segment, rows in parts]
        taken = [part for part in taken if part.size]
        write_segment(
            Path(path),
            *merged_blocks(taken, config.storage, progress),
            config,
            provenance or {},
            tuning=tuning,
            progress=progress,
            words=merged_words(taken, words),
            passages=passages,
        )
        return cls.open(path)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        device: Device | str = Device.CPU,
        checksum: Checksum | None = None,
    ) -> Self:
        """Open a folder after checking its format, its sizes and all checksums but the vectors'.

        The vectors are mapped: their size and header are checked here, their checksum by
        `verified`. On the device "gpu" scans without a filter run there; graphs stay on the CPU.
        `checksum` computes or remembers the SHA-256 of a file. Raises SegmentError, naming a file
        that is missing, truncated, altered or unknown.
        """
        folder = Path(path)
        manifest, manifest_sha256 = read_manifest(folder)
        parts = Parts.open(folder, manifest, Device(device), checksum)
        return cls(folder, manifest, manifest_sha256, parts)

    @staticmethod
    def add_passages(path: Path, passages: Passages) -> None:
        """Add the passages of its rows to a segment that was built and is in use nowhere yet.

        Raises VectorError (there are more passages than rows, or fewer), SegmentError and OSError.
        """
        manifest, _ = read_manifest(path)
        add_passages(path, manifest, passages)

    @classmethod
    def rebuild(
        cls,
        path: str | Path,
        source: Path,
        config: SegmentConfig | None = None,
        *,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        words: WriteWords | None = None,
        passages: Passages | None = None,
    ) -> Self:
        """Write a segment of the same vectors as another one, which may be damaged, and open it.

        The vectors are hard-linked where the file system can, and verified.

        Args:
            path, progress: as for `build`.
            source: the folder of the other one, of which the manifest and the vectors are intact.
            config: the new index config and operating point; same storage. None: as they are.
            tuning: how the operating point was measured, kept in the manifest; of a new config.
            words, passages: write these files; by default they are taken from the other one.

        Raises SegmentError (the folder exists, or a file that is taken was altered) and
        SegmentConfigError (another storage).
        """
        manifest, _, file = _stored(source)
        if config is None:
            config, tuning = manifest.config, manifest.tuning
        if config.storage is not file.storage:
            raise SegmentConfigError(
                f"storage must be {file.storage}, as in the stored vectors, got {config.storage}; "
                "index again to change it"
            )
        kept = {VECTORS: True, WORDS: words is None, PASSAGES: passages is None}
        write_segment(
            Path(path),
            file.dim,
            file,
            config,
            manifest.provenance,
            linked={name: entry for name, entry in manifest.files.items() if kept.get(name)},
            tuning=tuning,
            progress=progress,
            words=words,
            passages=passages,
        )
        return cls.open(path)

    @staticmethod
    def verify_vectors(path: Path) -> tuple[str, int]:
        """Read the manifest and all vectors of a segment that cannot be opened.

        Returns the checksum of the manifest, and the number of rows. Raises SegmentError if one of
        the two files is damaged.
        """
        manifest, manifest_sha256, file = _stored(path)
        for _ in file.verified(manifest.files[VECTORS].sha256):
            pass
        return manifest_sha256, file.rows

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
        """Which documents have which terms; None: the segment has no words file."""
        return self._opened().words

    @property
    def passages(self) -> RowNumbers | None:
        """Document, start and end of each row's passage, (3, rows); None: no passages.npy."""
        return self._opened().passages

    @property
    def config(self) -> SegmentConfig:
        """Index config and operating point of this segment or view."""
        return self._config

    @property
    def reranked(self) -> int:
        """Rows that are scored at full width: the shortlist, or what the last stage keeps of it."""
        return self._config.stages[-1][1] if self._config.stages else self._config.shortlist

    def shortlist(
        self, queries: npt.ArrayLike, size: int, allowed: Allowed | npt.ArrayLike | None = None
    ) -> RowNumbers:
        """Candidates for queries, found by their prefix.

        Args:
            queries: (q, D), any length > 0.
            size: candidates per query, >= 1.
            allowed: the rows that may be found: an Allowed, which many searches can reuse, or
                strictly rising row numbers; None for all.

        Returns (q, size) int64: min(size, number of allowed rows) rows per query, then -1. Raises
        VectorError: bad queries, size < 1, or `allowed` is not a rising set of this segment's rows.
        """
        size, parts = result_size("shortlist", size, self.rows), self._opened()
        unit = unit_rows(queries, dim=self.dim)
        return parts.shortlist(unit, size, parts.restricted(allowed), self._config.effort)

    def rerank(self, queries: npt.ArrayLike, candidates: RowNumbers, k: int) -> SearchResult:
        """The best k candidates (q, s) by full-width cosine, padded with -1 and -inf.

        `queries`: (q, D), any length > 0. Raises VectorError.
        """
        unit, k = unit_rows(queries, dim=self.dim), result_size("k", k, self.rows)
        if candidates.size and not -1 <= candidates.min() <= candidates.max() < self.rows:
            raise VectorError(f"candidates must be rows of {self.rows}, or -1")
        return self._opened().rerank(unit, candidates, k)

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        shortlist: int | None = None,
        allowed: Allowed | npt.ArrayLike | None = None,
    ) -> SearchResult:
        """The best k rows (q, k) by (−full-width cosine, row): a shortlist, reranked.

        Where the shortlist would hold all allowed rows, or few are allowed, the search is `exact`.

        Args:
            queries: (q, D), any length > 0.
            k: rows per query, >= 1; with fewer allowed rows the rest is padding.
            shortlist: candidates to score, at least k; None takes the configured number. The stages
                of the config narrow either, but keep k: k = shortlist scores all of it.
            allowed: the rows that may be found, as for `shortlist`.

        Raises VectorError: bad queries, k, shortlist or allowed rows.
        """
        parts, config = self._opened(), self._config
        shortlist = config.shortlist if shortlist is None else shortlist
        k = result_size("k", k, self.rows)
        size = max(at_least_one("shortlist", shortlist), k)
        only = parts.restricted(allowed)
        rows = float_rows(queries, dim=self.dim)
        if parts.compares_all(size, only):
            return self._exact(rows, k, only)
        if parts.graph is not None and not config.stages:
            return SearchResult(*parts.graph.search(rows, k, size, config.effort, only))
        unit = unit_rows(rows)
        candidates = parts.shortlist(unit, size, only, config.effort)
        for width, keep in config.stages:
            store = Prefixes(parts.file, width)  # the encoder's own dimensions
            candidates = rerank(store, store.of(unit), candidates, max(keep, k)).rows
        return parts.rerank(unit, candidates, k)

    def prefix_ranks(
        self, query: npt.ArrayLike, rows: RowNumbers, allowed: Allowed | None = None
    ) -> RowNumbers:
        """The ranks of rows by the prefix, from 1, among the allowed rows, for a query (1, D).

        `rows`: (n,) int64 that `allowed` has. Returns (n,) int64. Reads all rows for it.
        """
        parts = self._opened()
        only = parts.searched(parts.restricted(allowed))
        unit = parts.prefixes.of(unit_rows(query, dim=self.dim))[0]
        scores = np.concatenate([block @ unit for block in parts.prefixes.blocks()])
        others = scores if only is None else scores[only.rows]
        ranks: RowNumbers = 1 + (others > scores[rows, None]).sum(axis=1)
        return ranks

    def exact(
        self,
        queries: npt.ArrayLike,
        k: int,
        allowed: Allowed | npt.ArrayLike | None = None,
    ) -> SearchResult:
        """The true best k of all (allowed) rows, as they are stored: by default in float16."""
        only = self._opened().restricted(allowed)
        return self._exact(queries, result_size("k", k, self.rows), only)

    def _exact(self, queries: npt.ArrayLike, k: int, only: Allowed | None) -> SearchResult:
        unit = unit_rows(queries, dim=self.dim)
        best = self._opened().exact(unit, k, only)
        return SearchResult(best.rows, best.scores, True)

    def prefixes(self, config: SegmentConfig) -> Prefixes:
        """The prefixes of all rows as a config wants them."""
        stored = self._opened().prefixes
        if config.rotation is RotationKind.IDENTITY:
            return Prefixes(stored.file, config.prefix)
        if stored.matrix is not None and config.prefix <= stored.dim:
            return Prefixes(stored.file, config.prefix, stored.matrix[: config.prefix])
        if not self._directions:
            self._directions.append(pca(stored.file.sample(ROTATION_SAMPLE), self.dim))
        return Prefixes(stored.file, config.prefix, self._directions[0][: config.prefix])

    def vectors(self, rows: npt.ArrayLike) -> Floats:
        """Stored rows: (n,) rising row numbers, checked, to (n, D) float32."""
        return self._opened().file.take(row_numbers(rows, self.rows))

    def verified(self, rows: Allowed | npt.ArrayLike | None = None) -> Iterator[Floats]:
        """Rows (all by default), verified as they are read: blocks (n, D).

        SegmentError, at the end: the file was altered.
        """
        file, checksum, only, _ = self._part(rows)
        return (as_floats(stored, file.storage) for stored in file.verified(checksum, only))

    def over(self, config: SegmentConfig, kept: Allowed | npt.ArrayLike | None = None) -> "Segment":
        """The same rows with another index config; its coarse stage is built in memory.

        Where only the operating point differs (shortlist, effort, stages), the coarse stage is
        shared with this segment. The storage stays as it is.

        Args:
            config: the index config and operating point; a shortlist of 0 takes this segment's.
            kept: the rows that the view may find, and its coarse stage holds; None for all.
        """
        config, parts = config.fitting(self.rows, self.dim), self._opened()
        config = replace(config, shortlist=config.shortlist or self._config.shortlist)
        if kept is not None or config.coarse_stage() != self._config.coarse_stage():
            rows, prefixes = parts.searched(parts.restricted(kept)), self.prefixes(config)
            coarse = build_coarse(prefixes, config, kept=None if rows is None else rows.rows)
            parts = parts.with_coarse(prefixes, coarse, rows)
        view = copy(self)  # shares the maps; closing one leaves the other open
        view._config, view._parts = config, parts
        return view

    def close(self) -> None:
        """Release the mapped files."""
        self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _part(self, rows: Allowed | npt.ArrayLike | None) -> Part:
        only = restriction(rows, self.rows)
        numbers = None if only is None else only.rows
        parts = self._opened()
        return Part(parts.file, self.manifest.files[VECTORS].sha256, numbers, parts.words)

    def _opened(self) -> Parts:
        if self._parts is None:
            raise SegmentError(f"the segment {self.path} is closed; open it again")
        return self._parts


def rows_beside(documents: RowNumbers, rows: RowNumbers) -> RowNumbers:
    """All rows of some documents, document by document.

    `documents`: (n,) of each row of the segment. `rows`: (d,) one row of each of the documents.
    """
    owners, found = documents.data, list[int]()
    for row in rows.tolist():
        owner, first, end = owners[row], row, row + 1
        while first and owners[first - 1] == owner:
            first -= 1
        while end < len(owners) and owners[end] == owner:
            end += 1
        found += range(first, end)
    return np.array(found, np.int64)


def _stored(folder: Path) -> tuple[Manifest, str, VectorFile]:
    """The manifest of a folder, its checksum and the vectors, which are not verified yet."""
    manifest, manifest_sha256 = read_manifest(folder)
    if VECTORS not in manifest.files:
        raise SegmentError(f"{folder / MANIFEST} lists no {VECTORS}")
    storage = manifest.config.storage
    file = VectorFile(folder / VECTORS, manifest.rows, manifest.dim, storage)
    return manifest, manifest_sha256, file
