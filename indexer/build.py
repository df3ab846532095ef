"""Writing a segment: rotate, store, index, and only then the manifest."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indexer import rotation
from indexer.arrays import BLOCK_ROWS, Floats, evenly_in_blocks, unit_rows
from indexer.certify import Bounds
from indexer.coarse import CoarseIndex
from indexer.config import RotationKind, SegmentConfig, Storage
from indexer.durable import sync_file, sync_folder
from indexer.errors import SegmentError, VectorError
from indexer.manifest import FileEntry, Manifest
from indexer.vectors import DTYPES, Prefixes, VectorFile, VectorWriter

MANIFEST = "manifest.json"
VECTORS = "vectors.faiss"
ROTATION = "rotation.npy"
COARSE = "coarse.faiss"
BOUNDS = "bounds.faiss"
_SPOOL = "spool.tmp"
_BOUNDS_SAMPLE = 20_000  # whole rows, held in float64 at once

ROTATION_SAMPLE = 100_000
"""Most rows that a rotation is fitted on; more are sampled evenly."""

Blocks = npt.NDArray[np.floating] | Iterable[npt.NDArray[np.floating]]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many rows were just done, and of how many."""


class _Source(Protocol):
    """Unit rows that can be walked and sampled, in blocks of the same sizes whatever came in."""

    rows: int

    def blocks(self) -> Iterator[Floats]: ...

    def sample(self) -> Iterator[Floats]: ...


class _Array:
    """Rows that are already in one array."""

    def __init__(self, vectors: npt.NDArray[np.floating]) -> None:
        self._vectors = vectors
        self.rows = len(vectors)

    def blocks(self) -> Iterator[Floats]:
        for start in range(0, len(self._vectors), BLOCK_ROWS):
            yield unit_rows(self._vectors[start : start + BLOCK_ROWS], first=start)

    def sample(self) -> Iterator[Floats]:
        for numbers in evenly_in_blocks(len(self._vectors), ROTATION_SAMPLE):
            try:
                yield unit_rows(self._vectors[numbers])
            except VectorError:
                for _ in self.blocks():  # fails too, and names the row by its number in the array
                    pass
                raise


class _Spool:
    """Rows that come as a stream, written to a temporary file of the segment's own folder."""

    def __init__(self, path: Path, stream: Iterable[npt.NDArray[np.floating]], dim: int) -> None:
        with VectorWriter(path, dim, Storage.FLOAT32) as writer:
            for block in stream:
                writer.append(block)
            writer.seal()
        self._file = VectorFile(path, writer.rows, dim, Storage.FLOAT32)
        self.rows = writer.rows

    def blocks(self) -> Iterator[Floats]:
        return self._file.blocks()

    def sample(self) -> Iterator[Floats]:
        return self._file.sample(ROTATION_SAMPLE)


def write_segment(
    path: Path,
    vectors: Blocks,
    config: SegmentConfig,
    provenance: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Write a whole segment into a new folder; see Segment.build for the contract."""
    with new_folder(path):
        stored = _write_vectors(path, vectors, config, progress or _silent)
        finish_segment(path, stored, config, provenance, progress=progress)


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Make a segment's folder; it is synced at the end of the block, or removed if that fails."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise SegmentError(
            f"{path} already exists and segments never change: name a new folder"
        ) from None
    try:
        yield
        sync_folder(path)
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def finish_segment(
    path: Path,
    stored: VectorFile,
    config: SegmentConfig,
    provenance: Mapping[str, str],
    *,
    tuning: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Build what is searched over vectors (and a rotation) that are there, and the manifest."""
    config = config.fitting(stored.rows, stored.dim)
    heard = progress or _silent
    coarse = CoarseIndex.build(
        Prefixes(stored, config.prefix),
        config,
        lambda done: heard("Building", done, stored.rows),
    )
    coarse.save(path / COARSE)
    names = [VECTORS, COARSE]
    if config.rotation is not RotationKind.IDENTITY:
        names.append(ROTATION)
    if config.bounds:
        sample = np.concatenate(list(stored.sample(_BOUNDS_SAMPLE)))
        Bounds.build(stored.blocks(), min(config.bounds, stored.dim), sample).save(path / BOUNDS)
        names.append(BOUNDS)
        sync_file(path / BOUNDS)
    sync_file(path / COARSE)
    manifest = Manifest(
        rows=stored.rows,
        dim=stored.dim,
        config=config,
        vectors_file=VECTORS,
        vectors_offset=stored.offset,
        vectors_dtype=DTYPES[config.storage],
        files={name: FileEntry.of(path / name) for name in names},
        provenance=provenance,
        tuning=tuning,
    )
    (path / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    sync_file(path / MANIFEST)


def _silent(_doing: str, _done: int, _total: int) -> None:
    """No progress is wanted."""


def _write_vectors(
    path: Path, vectors: Blocks, config: SegmentConfig, progress: Progress
) -> VectorFile:
    """Store the (rotated) unit rows, and the rotation if there is one."""
    dim, stream = _opened(vectors)
    config.check_width(dim)
    with VectorWriter(path / VECTORS, dim, config.storage) as writer:
        if config.rotation is RotationKind.IDENTITY:
            for block in stream:
                writer.append(block)
        else:
            spool = path / _SPOOL
            source: _Source
            if isinstance(vectors, np.ndarray):
                source = _Array(vectors)
            else:
                source = _Spool(spool, stream, dim)
            turn = _fitted(source, config)
            # In float64, rounded once: BLAS sums a row in an order that depends on its place in
            # the block, and in float32 equal rows would be stored as different ones.
            wide = turn.astype(np.float64)
            for block in source.blocks():
                writer.append((block.astype(np.float64) @ wide).astype(np.float32))
                progress("Rotating", len(block), source.rows)
            np.save(path / ROTATION, turn, allow_pickle=False)
            sync_file(path / ROTATION)
            del source  # unmap before the file goes
            spool.unlink(missing_ok=True)
        writer.seal()
    return VectorFile(path / VECTORS, writer.rows, dim, config.storage)


def _fitted(source: _Source, config: SegmentConfig) -> Floats:
    """The rotation that the recipe names."""
    if config.rotation is RotationKind.BLOCKS:
        return rotation.blockwise(source.sample(), config.blocks)
    turn = rotation.pca(source.sample())
    if config.rotation is RotationKind.ITQ:
        return rotation.itq(turn, source.sample(), config.prefix)
    return turn


def _opened(vectors: Blocks) -> tuple[int, Iterator[npt.NDArray[np.floating]]]:
    """The width of the vectors, and all of them as blocks, the first one included."""
    if isinstance(vectors, np.ndarray):
        unit_rows(vectors[:1])  # names what is wrong with the whole array, not with a block of it
        blocks = (vectors[i : i + BLOCK_ROWS] for i in range(0, len(vectors), BLOCK_ROWS))
        return vectors.shape[1], blocks
    stream = iter(vectors)
    first = next(stream, None)
    if first is None:
        raise VectorError("a segment needs at least one vector, got none")
    dim = unit_rows(first).shape[1]

    def chained() -> Iterator[npt.NDArray[np.floating]]:
        yield first
        yield from stream

    return dim, chained()
