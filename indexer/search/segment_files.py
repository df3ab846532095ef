"""Opening a segment: its files are checked and mapped; a GPU gets copies of the scanned ones.

Graphs are walked on the CPU: its caches suit them better.
"""

import hashlib
import os
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, Self
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.config import Device, RotationKind, Structure
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.faiss_calls import faiss, read_index, structure_of
from searchengine.indexer.native.library import chosen_level
from searchengine.indexer.search.allowed import Allowed, restriction
from searchengine.indexer.search.cascade import Cascade, CoarseIndex, SearchResult, rerank
from searchengine.indexer.search.exact import scan, score_slack
from searchengine.indexer.search.native_search import (
    LISTED_SHARE,
    NativeCascade,
    NativeRows,
    native_cascade,
)
from searchengine.indexer.search.rotating import Rotation
from searchengine.indexer.storage.manifest import (
    COARSE,
    MANIFEST,
    ROTATION,
    Checksum,
    Manifest,
)
from searchengine.indexer.storage.passages_file import PASSAGES, RowPassages, npy_start
from searchengine.indexer.storage.vectors_file import Prefixes, VectorFile
from searchengine.indexer.storage.words_format import WORDS, Postings

GPU_MAX_SIZE = 2048
"""Maximum rows per query that faiss returns from a GPU."""

GPU_SLACK = 2.0**-9
"""Extra error of scores from a GPU: its copies are scaled and rounded to float16 again."""


class Parts(NamedTuple):
    """The files of an open segment."""

    file: VectorFile
    full: CoarseIndex  # the same rows, mapped by faiss
    coarse: CoarseIndex
    cascade: Cascade | NativeCascade
    native: NativeRows | None  # the rows scored by the compiled kernel; None: faiss scans
    rotation: Rotation | None  # None is the identity
    level: int | None  # of the compiled kernel; None: faiss searches
    words: Postings | None  # None: the segment has no words file
    passages: RowPassages | None  # None: it does not tell which passages its rows are
    gpu_full: CoarseIndex | None = None  # copies on a GPU, for scans without a filter
    gpu_coarse: CoarseIndex | None = None
    kept: Allowed | None = None  # the rows that a trial may find; None for all

    @classmethod
    def open(
        cls,
        folder: Path,
        manifest: Manifest,
        device: Device,
        shared: Rotation | None = None,
        checksum: Checksum | None = None,
    ) -> Self:
        """Check every file's size, and the contents of all but the vectors; then map them.

        `shared` is the rotation of another open segment with an equal file. This segment's file is
        then not read. `checksum` computes or remembers the checksum of a file.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown; or there
                is no GPU.
            SegmentConfigError: the environment asks for a kernel that is not available.
        """
        needed = {manifest.vectors_file, COARSE}
        if manifest.config.rotation is not RotationKind.IDENTITY:
            needed.add(ROTATION)
        needed |= {WORDS, PASSAGES} & manifest.files.keys()
        unread = {manifest.vectors_file} if shared is None else {manifest.vectors_file, ROTATION}
        for name in sorted(needed):
            check_file(folder, manifest, name, contents=name not in unread, checksum=checksum)
        coarse = open_coarse(folder / COARSE)
        if (coarse.rows, coarse.width) != (manifest.rows, manifest.config.prefix):
            raise SegmentError(
                f"{folder / COARSE} must hold {manifest.rows} x {manifest.config.prefix} prefixes, "
                f"got {coarse.rows} x {coarse.width}; index again"
            )
        file = VectorFile(
            folder / manifest.vectors_file, manifest.rows, manifest.dim, manifest.config.storage
        )
        full = open_coarse(file.path)
        level = chosen_level()
        rotation = load_rotation(folder, manifest) if shared is None else shared
        walked = native_cascade(coarse, file, str(folder / COARSE), level)
        cascade = walked or Cascade(coarse, full)
        native = None if level is None else NativeRows(file, level)
        words = Postings.open(folder / WORDS, manifest.rows) if WORDS in needed else None
        passages = None
        if PASSAGES in needed:
            passages = RowPassages.open(folder / PASSAGES, manifest.rows)
        parts = cls(file, full, coarse, cascade, native, rotation, level, words, passages)
        return parts.on_gpu() if device is Device.GPU else parts

    def remapped(self, path: Path) -> Self:
        """These files with another copy of the vectors, mapped now."""
        file = VectorFile(path, self.file.rows, self.file.dim, self.file.storage)
        full = open_coarse(path)
        walked = native_cascade(self.coarse, file, "the coarse stage", self.level)
        cascade = walked or Cascade(self.coarse, full)
        native = None if self.level is None else NativeRows(file, self.level)
        return self._replace(file=file, full=full, cascade=cascade, native=native)

    def with_coarse(self, coarse: CoarseIndex, kept: Allowed | None) -> Self:
        """These files with another coarse stage, which holds the rows `kept`, None for all.

        It is scanned on the CPU: a GPU's copy holds the old prefixes.
        """
        walked = native_cascade(coarse, self.file, "the coarse stage in memory", self.level)
        cascade = walked or Cascade(coarse, self.full)
        return self._replace(coarse=coarse, cascade=cascade, gpu_coarse=None, kept=kept)

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
        coarse = gpu_copy(Prefixes(self.file, self.coarse.width))
        return self._replace(gpu_full=full, gpu_coarse=coarse)

    def scanner(self, width: Literal["full", "coarse"], size: int, filtered: bool) -> CoarseIndex:
        """The index that scans for the best `size` rows: the copy on a GPU where it can."""
        mapped, copied = self.full, self.gpu_full
        if width == "coarse":
            mapped, copied = self.coarse, self.gpu_coarse
        return mapped if copied is None or filtered or size >= GPU_MAX_SIZE else copied

    def one_call(self, size: int, effort: int, only: Allowed | None) -> bool:
        """Whether the cascade finds and reranks a shortlist in one call."""
        native = isinstance(self.cascade, NativeCascade)
        return native or self.cascade.walks(size, effort, only)

    def shortlist(
        self, rotated: Floats, size: int, only: Allowed | None, effort: int
    ) -> RowNumbers:
        """As Segment.shortlist; where few rows are available, all of them, in their order."""
        within, available = self.searched(only), self.available(only)
        if size >= available:
            all_rows = np.full((len(rotated), size), -1, np.int64)
            all_rows[:, :available] = np.arange(available) if within is None else within.rows
            return all_rows
        coarse = self.scanner("coarse", size, only is not None)
        if coarse is self.coarse and isinstance(self.cascade, NativeCascade):
            return self.cascade.shortlist(rotated, size, only, effort)
        return coarse.shortlist(rotated[:, : coarse.width], size, only, effort)

    def exact(self, rotated: Floats, k: int, only: Allowed | None) -> SearchResult:
        """The true best k of all (allowed) rows, from their full width."""
        within, available = self.searched(only), self.available(only)
        if self.native is None or self.gpu_full is not None:
            slack = score_slack(self.file.dim) + (GPU_SLACK if self.gpu_full is not None else 0)

            def best(batch: Floats, size: int) -> RowNumbers:
                full = self.scanner("full", size, within is not None)
                return full.shortlist(batch, size, within)

            return scan(best, self.file, rotated, k, available, slack)
        if within is None or within.share >= LISTED_SHARE:
            mask = None if within is None else within.mask
            return SearchResult(*self.native.best(rotated, k, mask=mask))
        return SearchResult(*self.native.best(rotated, k, rows=within.rows))

    def rerank(self, rotated: Floats, candidates: RowNumbers, k: int) -> SearchResult:
        """The best k candidates of this segment (q, s); their row numbers are not checked."""
        if self.native is None:
            return rerank(self.file, rotated, candidates, k)
        return SearchResult(*self.native.rerank(rotated, candidates, k))


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


def check_file(
    folder: Path, manifest: Manifest, name: str, *, contents: bool, checksum: Checksum | None = None
) -> None:
    """Compare one file with its entry: its size always, its checksum on request."""
    entry = manifest.files.get(name)
    if entry is None:
        raise SegmentError(f"{folder / MANIFEST} lists no {name}; index again")
    entry.check(folder / name, contents=contents, checksum=checksum)


def load_rotation(folder: Path, manifest: Manifest) -> Rotation | None:
    """The verified rotation, or None for the identity.

    Raises:
        SegmentError: the file is not a .npy file of a float32 matrix (dim, dim) alone.
    """
    if manifest.config.rotation is RotationKind.IDENTITY:
        return None
    path, dim = folder / ROTATION, manifest.dim
    start = npy_start(path, "<f4", (dim, dim))
    matrix: Floats = np.fromfile(path, "<f4", dim * dim, offset=start).reshape(dim, dim)
    if not np.isfinite(matrix).all():
        raise SegmentError(f"{path} holds NaN or infinity; restore it or index again")
    return Rotation(matrix)


def gpu_copy(rows: Prefixes) -> CoarseIndex:
    """All rows as a flat float16 index in the memory of the first GPU.

    Raises:
        SegmentError: no GPU, or not enough memory on it.
    """
    require_gpu()
    gpu = first_gpu()
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    try:
        with gpu.lock:
            index = faiss.GpuIndexFlatIP(gpu.resources, rows.width, config)
            _copies.add(index)
            for block in rows.blocks():
                index.add(block)
    except RuntimeError as error:
        raise SegmentError(
            f"the GPU has no room for {rows.rows} rows of {2 * rows.width} bytes: {error}; "
            "search on the CPU"
        ) from error
    return CoarseIndex(index, lock=gpu.lock)


class Gpu(NamedTuple):
    """What all indexes on a GPU share.

    resources: faiss's, with 1.5 GB of working memory. lock: whoever uses an index on the GPU holds
    it, because one thread at a time may use the resources.
    """

    resources: Any
    lock: AbstractContextManager[object]


@cache
def first_gpu() -> Gpu:
    """The first GPU, opened once in a process."""
    return Gpu(faiss.StandardGpuResources(), Lock())


_copies: WeakSet[Any] = WeakSet()  # every index on the GPU


def _leave_gpu() -> None:
    """In a forked child: the GPU is the parent's; to free what is there would end the child."""
    resources = [first_gpu().resources] if first_gpu.cache_info().currsize else []
    for owner in (*_copies, *resources):
        owner.this.disown()


os.register_at_fork(after_in_child=_leave_gpu)


def require_gpu() -> None:
    """Raise SegmentError if faiss sees no GPU, or was built without support for one."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise SegmentError(
            "this faiss was built without GPU support: "
            "pip uninstall faiss-cpu, then pip install faiss-gpu; or leave out the device"
        )
    if not faiss.get_num_gpus():
        raise SegmentError("faiss sees no GPU here; leave out the device to search on the CPU")
