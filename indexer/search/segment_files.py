"""Opening a segment: its files are checked and mapped; a GPU gets copies of the scanned ones.

Graphs are walked on the CPU: its caches suit them better.
"""

import hashlib
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.config import Device, RotationKind, Structure
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.faiss_calls import faiss, read_index, structure_of
from searchengine.indexer.native.library import chosen_level
from searchengine.indexer.search.allowed import Allowed, restriction
from searchengine.indexer.search.cascade import CoarseIndex, SearchResult, rerank
from searchengine.indexer.search.exact import EXACT_ALLOWED, nearest, scan, score_slack
from searchengine.indexer.search.native_search import (
    LISTED_SHARE,
    SCANNED_SHARE,
    NativeCascade,
    NativeRows,
    native_cascade,
)
from searchengine.indexer.storage.files import Checksum
from searchengine.indexer.storage.manifest import COARSE, MANIFEST, ROTATION, VECTORS, Manifest
from searchengine.indexer.storage.rotation import Prefixes
from searchengine.indexer.storage.vectors_file import PASSAGES, VectorFile, open_npy, open_passages
from searchengine.indexer.storage.words_file import WORDS, Postings

GPU_MAX_SIZE = 2048
"""Maximum rows per query that faiss returns from a GPU."""

GPU_SLACK = 2.0**-9
"""Extra error of scores from a GPU: its copies are scaled and rounded to float16 again."""


class Parts(NamedTuple):
    """The files of an open segment."""

    prefixes: Prefixes  # the rows, and how their prefixes are made
    coarse: CoarseIndex
    graph: NativeCascade | None  # the same, walked by the compiled kernel; None: faiss searches
    native: NativeRows | None  # the rows scored by the compiled kernel; None: numpy does
    words: Postings | None  # None: the segment has no words file
    passages: RowNumbers | None  # (3, rows); None: it does not tell which passages its rows are
    gpu_full: CoarseIndex | None = None  # copies on a GPU, for scans without a filter
    gpu_coarse: CoarseIndex | None = None
    kept: Allowed | None = None  # the rows that a trial may find; None for all

    @classmethod
    def open(
        cls, folder: Path, manifest: Manifest, device: Device, checksum: Checksum | None = None
    ) -> Self:
        """Check every file's size, and the contents of all but the vectors; then map them.

        `checksum` computes or remembers the checksum of a file.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown; or there
                is no GPU.
            SegmentConfigError: the environment asks for a kernel that is not available.
        """
        needed = {VECTORS, COARSE}
        if manifest.config.rotation is not RotationKind.IDENTITY:
            needed.add(ROTATION)
        needed |= {WORDS, PASSAGES} & manifest.files.keys()
        for name in sorted(needed):
            entry = manifest.files.get(name)
            if entry is None:
                raise SegmentError(f"{folder / MANIFEST} lists no {name}; index again")
            entry.check(folder / name, contents=name != VECTORS, checksum=checksum)
        coarse, width = open_coarse(folder / COARSE), manifest.config.prefix
        if (coarse.rows, coarse.width) != (manifest.rows, width):
            raise SegmentError(
                f"{folder / COARSE} must hold {manifest.rows} x {width} prefixes, "
                f"got {coarse.rows} x {coarse.width}; index again"
            )
        file = VectorFile(folder / VECTORS, manifest.rows, manifest.dim, manifest.config.storage)
        prefixes = Prefixes(file, width, load_rotation(folder, manifest))
        parts = cls.of(prefixes, coarse, str(folder / COARSE))
        if WORDS in needed:
            parts = parts._replace(words=Postings.open(folder / WORDS, manifest.rows))
        if PASSAGES in needed:
            parts = parts._replace(passages=open_passages(folder / PASSAGES, manifest.rows))
        return parts.on_gpu() if device is Device.GPU else parts

    @classmethod
    def of(cls, prefixes: Prefixes, coarse: CoarseIndex, name: str) -> Self:
        """Rows and their coarse stage alone. `name`: what that was read from, for errors."""
        level, file = chosen_level(), prefixes.file
        graph = native_cascade(coarse, prefixes, name, level)
        native = None if level is None else NativeRows(file, level)
        return cls(prefixes, coarse, graph, native, words=None, passages=None)

    @property
    def file(self) -> VectorFile:
        """The full-width rows."""
        return self.prefixes.file

    def with_coarse(self, prefixes: Prefixes, coarse: CoarseIndex, kept: Allowed | None) -> Self:
        """These files with another coarse stage, which holds the rows `kept`, None for all.

        It is scanned on the CPU: a GPU's copy holds the old prefixes.
        """
        level = None if self.native is None else self.native.level
        graph = native_cascade(coarse, prefixes, "the coarse stage in memory", level)
        return self._replace(
            prefixes=prefixes, coarse=coarse, graph=graph, gpu_coarse=None, kept=kept
        )

    def restricted(self, allowed: Allowed | npt.ArrayLike | None) -> Allowed | None:
        """The rows that a caller allows, checked; in a trial only those it holds. None: no filter.

        Raises:
            VectorError: as searchengine.indexer.search.allowed.restriction.
        """
        only = restriction(allowed, self.file.rows)
        if only is None or self.kept is None:
            return only
        return Allowed.from_rows(np.flatnonzero(only.mask & self.kept.mask), self.file.rows)

    def searched(self, only: Allowed | None) -> Allowed | None:
        """The rows that a search may find under this filter; None for all."""
        return self.kept if only is None else only

    def available(self, only: Allowed | None) -> int:
        """Number of rows that a search may find under this filter."""
        within = self.searched(only)
        return self.file.rows if within is None else within.size

    def on_gpu(self) -> Self:
        """These files, with copies of the scanned ones in the memory of a GPU."""
        full = gpu_copy(Prefixes(self.file, self.file.dim))
        if self.coarse.structure is not Structure.FLAT:
            return self._replace(gpu_full=full)
        return self._replace(gpu_full=full, gpu_coarse=gpu_copy(self.prefixes))

    def shortlist(
        self, queries: Floats, size: int, only: Allowed | None, effort: int
    ) -> RowNumbers:
        """As Segment.shortlist, for unit queries; where few rows are available, all in order."""
        within, available = self.searched(only), self.available(only)
        if size >= available:
            all_rows = np.full((len(queries), size), -1, np.int64)
            all_rows[:, :available] = np.arange(available) if within is None else within.rows
            return all_rows
        if self.compares_all(size, only):
            return self.exact(queries, size, only).rows
        if self.graph is not None:
            return self.graph.search(queries, size, size, effort, only, reranked=False)[0]
        coarse = self.coarse
        if self.gpu_coarse is not None and only is None and size < GPU_MAX_SIZE:
            coarse = self.gpu_coarse
        rows = coarse.shortlist(self.prefixes.of(queries), size, only, effort)
        short = np.flatnonzero(rows[:, -1] < 0)  # the walk ended too early
        if short.size:
            rows[short] = self.exact(queries[short], size, only).rows
        return rows

    def compares_all(self, size: int, only: Allowed | None) -> bool:
        """Whether a search with a shortlist of `size` compares all (allowed) rows at full width."""
        available = self.available(only)
        walked_by_faiss = self.graph is None and self.coarse.structure is not Structure.FLAT
        few = SCANNED_SHARE * self.coarse.rows if walked_by_faiss else 0
        return available <= size or (only is not None and available <= max(few, EXACT_ALLOWED))

    def exact(self, queries: Floats, k: int, only: Allowed | None) -> SearchResult:
        """The true best k of all (allowed) rows for unit queries, from their full width."""
        within, on_gpu = self.searched(only), self.gpu_full is not None
        if self.native is not None and (within is not None or not on_gpu):
            if within is None or within.size >= LISTED_SHARE * within.total:
                mask = None if within is None else within.mask
                return SearchResult(*self.native.best(queries, k, mask=mask))
            return SearchResult(*self.native.best(queries, k, rows=within.rows))

        def best(batch: Floats, size: int) -> RowNumbers:
            if self.gpu_full is not None and within is None and size < GPU_MAX_SIZE:
                return self.gpu_full.shortlist(batch, size)
            if self.native is not None:
                return self.native.best(batch, size)[0]
            return nearest(self.file, batch, size, within)

        slack = score_slack(self.file.dim) + (GPU_SLACK if on_gpu else 0)
        return scan(best, self.file, queries, k, self.available(only), slack)

    def rerank(self, queries: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """The best k candidates (q, s) for unit queries; their row numbers are not checked."""
        if self.native is None:
            return rerank(self.file, queries, candidates, k)
        return SearchResult(*self.native.rerank(queries, candidates, k))


def open_coarse(path: Path) -> CoarseIndex:
    """Map a saved index. The caller has verified the file's checksum: faiss trusts it.

    Raises:
        SegmentError: faiss cannot read it, or its structure is not one of this package.
    """
    index = read_index(path)
    inner = index.index if isinstance(index, faiss.IndexIDMap) else index
    if (
        structure_of(faiss.downcast_index(inner)) is None
        or index.metric_type != faiss.METRIC_INNER_PRODUCT
    ):
        raise SegmentError(
            f"{path} must hold a coarse stage of this package, "
            f"got {type(index).__name__}; index again"
        )
    return CoarseIndex(index)


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a segment's folder, and its checksum. Raises SegmentError without one."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise SegmentError(f"{path} is missing: {folder} is no segment") from None
    return Manifest.from_json(text, str(path)), hashlib.sha256(text).hexdigest()


def load_rotation(folder: Path, manifest: Manifest) -> Floats | None:
    """The rotation (prefix, dim) of a segment, or None for the identity.

    Raises:
        SegmentError: the file is not a .npy file of such a float32 matrix alone.
    """
    if manifest.config.rotation is RotationKind.IDENTITY:
        return None
    path, shape = folder / ROTATION, (manifest.config.prefix, manifest.dim)
    matrix: Floats = np.array(open_npy(path, "<f4", shape))
    if not np.isfinite(matrix).all():
        raise SegmentError(f"{path} holds NaN or infinity; restore it or index again")
    return matrix


def gpu_copy(rows: Prefixes) -> CoarseIndex:
    """All rows as a flat float16 index in the memory of the first GPU.

    Raises:
        SegmentError: no GPU, or not enough memory on it.
    """
    require_gpu()
    resources, lock = first_gpu()
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    try:
        with lock:
            index = faiss.GpuIndexFlatIP(resources, rows.dim, config)
            for block in rows.blocks():
                index.add(block)
    except RuntimeError as error:
        raise SegmentError(
            f"the GPU has no room for {rows.rows} rows of {2 * rows.dim} bytes: {error}; "
            "search on the CPU"
        ) from error
    return CoarseIndex(index, lock=lock)


@cache
def first_gpu() -> tuple[Any, AbstractContextManager[object]]:
    """The resources of the first GPU, with 1.5 GB of working memory, opened once in a process.

    One thread at a time may use them: whoever uses an index on the GPU holds the lock.
    """
    return faiss.StandardGpuResources(), Lock()


def require_gpu() -> None:
    """Raise SegmentError if faiss sees no GPU, or was built without support for one."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise SegmentError(
            "this faiss was built without GPU support: "
            "pip uninstall faiss-cpu, then pip install faiss-gpu; or leave out the device"
        )
    if not faiss.get_num_gpus():
        raise SegmentError("faiss sees no GPU here; leave out the device to search on the CPU")
