"""Writing a segment: store, rotate, index, and the manifest last."""

import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import BLOCK_ROWS, Floats, RowNumbers, unit_rows
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.building.shortlist import measured_shortlist
from searchengine.indexer.config import Code, RotationKind, SegmentConfig, Storage, Structure
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.segment_files import open_coarse
from searchengine.indexer.storage.durable import open_folder, sync, sync_file, sync_folder
from searchengine.indexer.storage.manifest import (
    COARSE,
    MANIFEST,
    ROTATION,
    VECTORS,
    FileEntry,
    Manifest,
    link_verified,
)
from searchengine.indexer.storage.passages_file import PASSAGES, write_passages
from searchengine.indexer.storage.rotation import ROTATION_SAMPLE, Prefixes, fit
from searchengine.indexer.storage.vectors_file import DTYPES, VectorFile, VectorWriter, check_unit
from searchengine.indexer.storage.words_file import WORDS, WriteWords

Blocks = npt.NDArray[np.floating] | Iterable[npt.NDArray[np.floating]]
Passages = Callable[[int], RowNumbers]
"""Number of rows to document, start and end of each row's passage: (3, rows)."""
Progress = Callable[[str, int, int], None]
"""Called with the step, the rows just done and the total."""


def write_segment(
    path: Path,
    vectors: Blocks,
    config: SegmentConfig,
    rotation: Floats | None,
    provenance: Mapping[str, str],
    progress: Progress | None = None,
    words: WriteWords | None = None,
    passages: Passages | None = None,
) -> None:
    """Write a whole segment into a new folder; see Segment.build for the contract."""
    dim, blocks = _opened(vectors)
    config.check_width(dim)
    expected = len(vectors) if isinstance(vectors, np.ndarray) else None
    with new_folder(path) as folder:
        with VectorWriter(folder / VECTORS, dim, config.storage, expected) as writer:
            for block in blocks:
                writer.append(block)
            entry = writer.seal()
        stored = VectorFile(folder / VECTORS, writer.rows, dim, config.storage)
        extras = optional_files(stored.rows, words, passages)
        finish_segment(
            stored, entry, config, provenance, rotation=rotation, progress=progress, extras=extras
        )


def rewrite_segment(
    path: Path,
    file: VectorFile,
    manifest: Manifest,
    config: SegmentConfig,
    *,
    tuning: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a segment of the same stored rows in a new folder; see Segment.rebuild."""
    config.check_width(file.dim)
    if config.storage is not file.storage:
        raise SegmentConfigError(
            f"storage must be {file.storage}, as in the stored vectors, got {config.storage}; "
            "index again to change it"
        )
    entry = manifest.files[manifest.vectors_file]
    with new_folder(path) as folder:
        link_verified(file.path, folder / VECTORS, entry)
        linked = VectorFile(folder / VECTORS, file.rows, file.dim, file.storage)
        for i, rows in enumerate(linked.blocks()):
            numbers = np.arange(i * BLOCK_ROWS, i * BLOCK_ROWS + len(rows))
            check_unit(file.path, rows, file.storage, numbers)
        extras = {
            name: partial(link_verified, file.path.with_name(name), entry=manifest.files[name])
            for name in (WORDS, PASSAGES)
            if name in manifest.files
        }
        finish_segment(
            linked,
            entry,
            config,
            manifest.provenance,
            tuning=tuning,
            progress=progress,
            extras=extras,
        )


def add_passages(path: Path, manifest: Manifest, passages: Passages) -> None:
    """Write the passages of the rows of a finished segment, which nobody else uses yet."""
    write_passages(path / PASSAGES, passages(manifest.rows), manifest.rows)
    sync_file(path / PASSAGES)
    files = {**manifest.files, PASSAGES: FileEntry.from_file(path / PASSAGES)}
    text = replace(manifest, files=files).to_json()
    FileEntry.written(path / f"{MANIFEST}.new", text.encode())
    (path / f"{MANIFEST}.new").replace(path / MANIFEST)
    sync_folder(path)


def optional_files(
    rows: int, words: WriteWords | None, passages: Passages | None
) -> dict[str, Callable[[Path], None]]:
    """Name → what writes it, of the files that a segment of these rows may lack."""
    files: dict[str, Callable[[Path], None]] = {}
    if words is not None:
        files[WORDS] = words.write
    if passages is not None:
        files[PASSAGES] = lambda path: write_passages(path, passages(rows), rows)
    return files


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


def finish_segment(
    stored: VectorFile,
    entry: FileEntry,
    config: SegmentConfig,
    provenance: Mapping[str, str],
    *,
    rotation: Floats | None = None,
    tuning: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    extras: Mapping[str, Callable[[Path], None]] | None = None,
) -> Manifest:
    """Write rotation, coarse stage and manifest; measure a shortlist that is left open.

    Args:
        stored: the rows, in the folder of the new segment.
        entry: size and checksum of their file, as written or verified.
        config: the config, before it is fitted to the number of rows.
        provenance, tuning: for the manifest.
        rotation: (prefix, D) to use; None fits one on these rows.
        progress: called with the step "Building".
        extras: names of further files, and what writes them.
    """
    path, files = stored.path.parent, {VECTORS: entry}
    config = config.fitting(stored.rows, stored.dim)
    matrix = rotation
    if matrix is None or config.rotation is RotationKind.IDENTITY:
        matrix = fit(stored.sample(ROTATION_SAMPLE), config)
    elif matrix.shape != (config.prefix, stored.dim):
        raise VectorError(
            f"vectors must have {matrix.shape[1]} dimensions like the rotation, got {stored.dim}"
        )
    if matrix is not None:
        content = io.BytesIO()
        np.save(content, matrix, allow_pickle=False)
        files[ROTATION] = FileEntry.written(path / ROTATION, content.getvalue())
    prefixes = Prefixes(stored, config.prefix, matrix)
    files[COARSE] = _write_coarse(path / COARSE, prefixes, config, progress or silent)
    for name, write in (extras or {}).items():
        write(path / name)
        sync_file(path / name)
        files[name] = FileEntry.from_file(path / name)
    if not config.shortlist:
        coarse = open_coarse(path / COARSE)
        config = replace(config, shortlist=measured_shortlist(prefixes, coarse, config))
    manifest = Manifest(
        rows=stored.rows,
        dim=stored.dim,
        config=config,
        vectors_file=VECTORS,
        vectors_offset=stored.offset,
        vectors_dtype=DTYPES[config.storage],
        files=files,
        provenance=provenance,
        tuning=tuning,
    )
    FileEntry.written(path / MANIFEST, manifest.to_json().encode())
    return manifest


def silent(_step: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def _write_coarse(
    path: Path, prefixes: Prefixes, config: SegmentConfig, report: Progress
) -> FileEntry:
    """Build the coarse stage and force it to the disk."""
    rows = prefixes.rows
    if config.structure is Structure.FLAT and config.code is Code.FP16:
        # Its file has the layout of the vectors file: written row by row, memory stays bounded.
        with VectorWriter(path, config.prefix, Storage.FLOAT16, rows) as writer:
            for block in prefixes.blocks():
                writer.append_stored(block.astype(DTYPES[Storage.FLOAT16]).view(np.uint8))
                report("Building", len(block), rows)
            return writer.seal()
    coarse = build_coarse(prefixes, config, lambda done: report("Building", done, rows))
    coarse.save(path)
    sync_file(path)
    return FileEntry.from_file(path)


def _opened(vectors: Blocks) -> tuple[int, Iterator[npt.NDArray[np.floating]]]:
    """The dimension of the vectors, and all of them as blocks."""
    if isinstance(vectors, np.ndarray):
        unit_rows(vectors[:1])  # an error names the whole array, not a block of it
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
