"""Writing a segment: its vectors, what is made from them, and the manifest last."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import BLOCK_ROWS, Floats, RowNumbers, float_rows, unit_rows
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.building.shortlist import measured_shortlist
from searchengine.indexer.config import Code, RotationKind, SegmentConfig, Storage, Structure
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.segment_files import open_coarse
from searchengine.indexer.storage.durable import (
    FileEntry,
    link_verified,
    open_folder,
    sync,
    sync_file,
    sync_folder,
)
from searchengine.indexer.storage.manifest import COARSE, MANIFEST, ROTATION, VECTORS, Manifest
from searchengine.indexer.storage.passages_file import PASSAGES, write_passages
from searchengine.indexer.storage.rotation import ROTATION_SAMPLE, Prefixes, fit
from searchengine.indexer.storage.vectors_file import DTYPES, VectorFile, write_vectors
from searchengine.indexer.storage.words_file import WORDS, WriteWords

Blocks = npt.NDArray[np.floating] | Iterable[npt.NDArray[np.floating]]
Passages = Callable[[int], RowNumbers]
"""Number of rows to document, start and end of each row's passage: (3, rows)."""
Progress = Callable[[str, int, int], None]
"""Called with the step, the rows just done and the total."""


def write_segment(
    path: Path,
    dim: int,
    blocks: Iterable[npt.NDArray[Any]],
    config: SegmentConfig,
    provenance: Mapping[str, str],
    *,
    rotation: Floats | None = None,
    tuning: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    words: WriteWords | None = None,
    passages: Passages | None = None,
) -> None:
    """Write a segment into a new folder; see Segment.build for the contract.

    `blocks`: the rows as they are stored, for `write_vectors`.
    """
    config.check_width(dim)
    with new_folder(path) as folder:
        stored = write_vectors(folder / VECTORS, dim, config.storage, blocks)
        if words is not None:
            words.write(folder / WORDS)
        if passages is not None:
            write_passages(folder / PASSAGES, passages(stored.rows), stored.rows)
        _finish(stored, {}, config, provenance, tuning, progress, rotation)


def rewrite_segment(
    path: Path,
    source: VectorFile,
    manifest: Manifest,
    config: SegmentConfig,
    tuning: Mapping[str, Any] | None,
    progress: Progress | None,
) -> None:
    """Write a segment of the stored rows of another; see Segment.rebuild."""
    config.check_width(source.dim)
    if config.storage is not source.storage:
        raise SegmentConfigError(
            f"storage must be {source.storage}, as in the stored vectors, got {config.storage}; "
            "index again to change it"
        )
    kept = (VECTORS, WORDS, PASSAGES)
    files = {name: manifest.files[name] for name in kept if name in manifest.files}
    with new_folder(path) as folder:
        for name, entry in files.items():
            link_verified(source.path.with_name(name), folder / name, entry)
        for i, rows in enumerate(source.blocks()):
            source.check_unit(rows, np.arange(i * BLOCK_ROWS, i * BLOCK_ROWS + len(rows)))
        stored = VectorFile(folder / VECTORS, source.rows, source.dim, source.storage)
        _finish(stored, files, config, manifest.provenance, tuning, progress)


def given_blocks(
    vectors: Blocks, storage: Storage
) -> tuple[int, Iterator[npt.NDArray[np.floating]]]:
    """The dimension of vectors of any length > 0, and all of them as they are stored."""
    stream = iter(vectors)
    if isinstance(vectors, np.ndarray):
        starts = range(0, max(1, len(vectors)), BLOCK_ROWS)
        stream = (vectors[start : start + BLOCK_ROWS] for start in starts)
    first = next(stream, None)
    if first is None:
        raise VectorError("a segment needs at least one vector, got none")
    dim = float_rows(first).shape[1]

    def blocks() -> Iterator[npt.NDArray[np.floating]]:
        rows = 0
        for block in chain([first], stream):
            unit = unit_rows(block, dim=dim, first=rows)
            yield unit.astype(DTYPES[storage])
            rows += len(unit)

    return dim, blocks()


def add_passages(path: Path, manifest: Manifest, passages: Passages) -> None:
    """Write the passages of the rows of a finished segment, which nobody else uses yet."""
    write_passages(path / PASSAGES, passages(manifest.rows), manifest.rows)
    sync_file(path / PASSAGES)
    files = {**manifest.files, PASSAGES: FileEntry.from_file(path / PASSAGES)}
    replace(manifest, files=files).write(path / f"{MANIFEST}.new")
    (path / f"{MANIFEST}.new").replace(path / MANIFEST)
    sync_folder(path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, which gets the name `path` when the block succeeds.

    It is then synced; if the block fails, it is removed. The temporary name is unique, so nothing
    is overwritten even if another folder takes the place of the parent meanwhile.
    """
    if path.exists():
        raise SegmentError(f"{path} already exists and segments never change; name a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{uuid4().hex}.new")
    with open_folder(path.parent) as parent:
        name = scratch.name
        os.mkdir(name, dir_fd=parent)
        try:
            yield scratch
            sync_folder(scratch)
            os.rename(name, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            name = path.name
            sync(parent)
        except BaseException:
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
            raise


def _finish(
    stored: VectorFile,
    files: dict[str, FileEntry],
    config: SegmentConfig,
    provenance: Mapping[str, str],
    tuning: Mapping[str, Any] | None,
    progress: Progress | None,
    rotation: Floats | None = None,
) -> None:
    """Write rotation, coarse stage and manifest; measure a shortlist that is left open.

    Args:
        stored: the rows, in the folder of the new segment.
        files: the files there that are synced and verified; all others will be.
        config: the config, before it is fitted to the number of rows.
        provenance, tuning: for the manifest.
        progress: called with the step "Building".
        rotation: (prefix, D) to use; None fits one on these rows.
    """
    folder = stored.path.parent
    config = config.fitting(stored.rows, stored.dim)
    matrix = rotation
    if matrix is None or config.rotation is RotationKind.IDENTITY:
        matrix = fit(stored.sample(ROTATION_SAMPLE), config)
    elif matrix.shape != (config.prefix, stored.dim):
        raise VectorError(
            f"vectors must have {matrix.shape[1]} dimensions like the rotation, got {stored.dim}"
        )
    if matrix is not None:
        np.save(folder / ROTATION, matrix, allow_pickle=False)
    prefixes = Prefixes(stored, config.prefix, matrix)
    _write_coarse(folder / COARSE, prefixes, config, progress or silent)
    if not config.shortlist:
        coarse = open_coarse(folder / COARSE)
        config = replace(config, shortlist=measured_shortlist(prefixes, coarse, config))
    for file in folder.iterdir():
        if file.name not in files:
            sync_file(file)
            files[file.name] = FileEntry.from_file(file)
    manifest = Manifest(stored.rows, stored.dim, config, files, provenance, tuning)
    manifest.write(folder / MANIFEST)


def silent(_step: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def _write_coarse(path: Path, prefixes: Prefixes, config: SegmentConfig, report: Progress) -> None:
    rows = prefixes.rows
    if config.structure is not Structure.FLAT or config.code is not Code.FP16:
        build_coarse(prefixes, config, lambda done: report("Building", done, rows)).save(path)
        return

    def blocks() -> Iterator[npt.NDArray[np.floating]]:
        for block in prefixes.blocks():
            yield block.astype(DTYPES[Storage.FLOAT16])
            report("Building", len(block), rows)

    # Its file has the layout of the vectors file: written row by row, memory stays bounded.
    write_vectors(path, config.prefix, Storage.FLOAT16, blocks())
