"""Writing a segment: its vectors, what is made from them, and the manifest last.

In a merge, rows are copied byte for byte; the rest is made from them. The coarse stage is what is
searched first, over re-normalised prefixes.

With shortlist 0 in its config, the shortlist of a segment is measured: a sample of the rows is used
as queries, and the shortest of a ladder is taken that finds enough of their true neighbours, or of
rows that score as high. A small segment is searched exactly instead: reading its full-width rows
takes less time than encoding a question.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import (
    BLOCK_ROWS,
    RowNumbers,
    evenly,
    float_rows,
    locality,
    unit_rows,
)
from searchengine.indexer.config import (
    CANDIDATES,
    Code,
    RotationKind,
    SegmentConfig,
    Storage,
    Structure,
)
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.native.hnsw import build_graph
from searchengine.indexer.native.library import chosen_level, faiss
from searchengine.indexer.search.cascade import Parts
from searchengine.indexer.search.postings import Moved, Postings, WriteWords, moved, write_postings
from searchengine.indexer.search.scoring import CoarseIndex, open_coarse
from searchengine.indexer.storage.files import (
    COARSE,
    DTYPES,
    MANIFEST,
    PASSAGES,
    ROTATION,
    VECTORS,
    WORDS,
    FileEntry,
    Manifest,
    link_verified,
    sync_file,
    sync_folder,
)
from searchengine.indexer.storage.vectors import (
    ROTATION_SAMPLE,
    Prefixes,
    VectorFile,
    as_floats,
    pca,
    shared,
    write_passages,
    write_vectors,
)

_WRITTEN = 1 << 20  # bytes passed to Python at a time

Blocks = npt.NDArray[np.floating] | Iterable[npt.NDArray[np.floating]]
Passages = Callable[[int], RowNumbers]
"""Number of rows to document, start and end of each row's passage: (3, rows)."""
Progress = Callable[[str, int, int], None]
"""Called with the step, the rows just done and the total."""


def write_segment(
    path: Path,
    dim: int,
    vectors: VectorFile | Iterable[npt.NDArray[Any]],
    config: SegmentConfig,
    provenance: Mapping[str, str],
    *,
    linked: Mapping[str, FileEntry] | None = None,
    like: Prefixes | None = None,
    tuning: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    words: WriteWords | None = None,
    passages: Passages | None = None,
) -> None:
    """Write a segment into a new folder; see Segment.build for the contract.

    Args:
        vectors: the rows as they are stored, for `write_vectors`; or the file of another segment.
        linked: the files of that one to link, its vectors among them.
        like: of a segment whose rotation is taken if it suits.
    """
    config.check_width(dim)
    files, report = dict(linked or {}), progress or silent
    with new_folder(path) as folder:
        if isinstance(vectors, VectorFile):
            for name, entry in files.items():
                link_verified(vectors.path.with_name(name), folder / name, entry)
            stored = VectorFile(folder / VECTORS, vectors.rows, dim, config.storage)
        else:
            stored = write_vectors(folder / VECTORS, dim, config.storage, vectors)
        if words is not None:
            words.write(folder / WORDS)
        if passages is not None:
            write_passages(folder / PASSAGES, passages(stored.rows), stored.rows)
        config = _write_prefixes(stored, config, like, report)
        for file in folder.iterdir():
            if file.name not in files:
                sync_file(file)
                files[file.name] = FileEntry.from_file(file)
        manifest = Manifest(stored.rows, dim, config, files, provenance, tuning)
        manifest.write(folder / MANIFEST)


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

    It is then synced; if the block fails, it is removed. The temporary name is unique.
    """
    if path.exists():
        raise SegmentError(f"{path} already exists and segments never change; name a new folder")
    scratch = path.with_name(f"{path.name}.{uuid4().hex}.new")
    scratch.mkdir()
    try:
        yield scratch
        sync_folder(scratch)
        scratch.rename(path)
        scratch = path
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_prefixes(
    stored: VectorFile, config: SegmentConfig, like: Prefixes | None, report: Progress
) -> SegmentConfig:
    """Write rotation and coarse stage; returns the config of these rows, its shortlist measured."""
    folder = stored.path.parent
    config = config.fitting(stored.rows, stored.dim)
    rotation = None
    if config.rotation is not RotationKind.IDENTITY:
        rotation = None if like is None else shared(like, stored, config.prefix)
        if rotation is None:
            rotation = pca(stored.sample(ROTATION_SAMPLE), config.prefix)
        np.save(folder / ROTATION, rotation, allow_pickle=False)
    prefixes = Prefixes(stored, config.prefix, rotation)
    _write_coarse(folder / COARSE, prefixes, config, report)
    if config.shortlist:
        return config
    if stored.path.stat().st_size <= EXACT_BYTES:
        return replace(config, shortlist=stored.rows)
    coarse = open_coarse(folder / COARSE)
    parts = Parts.of(prefixes, coarse, "the new coarse stage")
    return replace(config, shortlist=measured_shortlist(parts, config))


def silent(_step: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def _write_coarse(path: Path, prefixes: Prefixes, config: SegmentConfig, report: Progress) -> None:
    rows = prefixes.rows
    if config.structure is not Structure.FLAT or config.code is not Code.FP16:
        coarse = build_coarse(prefixes, config, lambda done: report("Building", done, rows))
        write_index(coarse.index, path)
        return

    def blocks() -> Iterator[npt.NDArray[np.floating]]:
        for block in prefixes.blocks():
            yield block.astype(DTYPES[Storage.FLOAT16])
            report("Building", len(block), rows)

    # Its file has the layout of the vectors file: written row by row, memory stays bounded.
    write_vectors(path, config.prefix, Storage.FLOAT16, blocks())


class Part(NamedTuple):
    """The rows of one segment that go into a merged one.

    Attributes:
        file: the stored rows of the segment.
        checksum: of the whole file, from its manifest.
        rows: the rows to take, rising; None for all.
        words: its postings, if it has them.
    """

    file: VectorFile
    checksum: str
    rows: RowNumbers | None
    words: Postings | None

    @property
    def size(self) -> int:
        """Number of rows to take."""
        return self.file.rows if self.rows is None else self.rows.size


def merged_blocks(
    parts: Sequence[Part], storage: Storage, progress: Progress | None
) -> tuple[int, Iterator[npt.NDArray[Any]]]:
    """The dimension of the parts, and their rows in that order as they are stored, verified.

    No part is empty.

    Raises:
        VectorError: no rows.
    """
    if not parts:
        raise VectorError("a segment needs at least one vector, got none")
    dim, total = parts[0].file.dim, sum(part.size for part in parts)
    report = progress or silent

    def blocks() -> Iterator[npt.NDArray[Any]]:
        for file, checksum, only, _ in parts:
            for stored in file.verified(checksum, only):
                if file.storage is storage:
                    yield stored
                else:
                    yield unit_rows(as_floats(stored, file.storage)).astype(DTYPES[storage])
                report("Merging", len(stored), total)

    return dim, blocks()


def merged_words(parts: Sequence[Part], words: WriteWords | None) -> WriteWords | None:
    """Merges the postings of the parts; `words` unless all have them, made as it makes them."""
    pieces: list[Moved] = []
    notes, base = None if words is None else words.notes, 0
    for part in parts:
        if part.words is None or notes not in (None, part.words.notes):
            return words
        pieces.append(moved(part.words, part.rows, base))
        notes, base = part.words.notes, base + part.size
    if notes is None:
        return None
    return WriteWords(partial(write_postings, parts=pieces, notes=notes), notes)


EXACT_BYTES = 8 << 20
"""A segment with a vectors file of at most this many bytes is searched exactly: some 5,000 rows of
768 dimensions in float16, read in half a millisecond."""

NEIGHBOURS = 10
RECALL = 0.995
"""Share of the true neighbours that the sample must find. Documents stand for questions here, and
users' questions are further from their documents: so it is above the 0.99 to give them."""

SAMPLE = 400
"""Rows that are searched for: 4,000 neighbours."""

_FIRST, _STEP = 25, 1.25  # the ladder: 25, 32, 40, 49, … rows
_LOSS = 0.001  # of recall that is given for a shorter one, where none finds enough


def measured_shortlist(parts: Parts, config: SegmentConfig) -> int:
    """The shortlist for the rows of a coarse stage over all of them.

    `config`: how it is searched: its effort.
    """
    file, coarse = parts.file, parts.coarse
    sample = evenly(file.rows, SAMPLE)
    queries = file.take(sample)
    nearest = parts.exact(queries, NEIGHBOURS + 1, None)  # a row finds itself, no neighbour, too
    others = np.where(nearest.rows == sample[:, None], -np.inf, nearest.scores)
    # Rows are not compared: of many equal ones, any will do.
    needed = np.sort(others, axis=1)[:, -NEIGHBOURS, None]
    most = coarse.rows
    if coarse.structure is Structure.IVF:  # a longer one would be filled by a scan, each time
        most = max(1, coarse.rows * coarse.nprobe(config.effort) // coarse.lists)
    recalls: dict[int, float] = {}
    for step in count():
        size = min(round(_FIRST * _STEP**step), most)
        length = min(size + 1, file.rows)
        candidates = parts.shortlist(queries, length, None, config.effort)
        candidates[candidates == sample[:, None]] = -1
        best = parts.rerank(queries, candidates, NEIGHBOURS).scores
        recalls[size] = float(np.mean(best >= needed))
        if recalls[size] >= RECALL:
            return size
        if size == most:
            return next(s for s, recall in recalls.items() if recall >= recalls[most] - _LOSS)
    raise AssertionError("a shortlist of all rows finds all neighbours")


TRAIN_ROWS = 50_000
"""Rows that the ranges of a code are fitted on; k-means takes 40 per list."""


def build_coarse(
    prefixes: Prefixes,
    config: SegmentConfig,
    progress: Callable[[int], None] = lambda done: None,
    kept: RowNumbers | None = None,
) -> CoarseIndex:
    """Index the prefixes of all rows, or of the rows `kept`.

    A graph is stored in the order of `locality`: neighbours are stored close together, and a walk
    touches fewer pages (12 to 17 % more queries per second, 200k real sentences, two cores).

    Memory: the finished index, its training sample, 10 bytes per row and one block.

    Args:
        prefixes: re-normalised prefixes of all rows.
        config: the index config.
        progress: called with the number of rows just added.
        kept: rising row numbers; None for all.
    """
    rows = prefixes.rows if kept is None else kept.size
    index = empty(config, rows)
    if not index.is_trained:
        index.train(prefixes.sample(max(TRAIN_ROWS, 40 * getattr(index, "nlist", 0))))
    order = kept
    if config.structure is Structure.HNSW:
        order = locality(prefixes.blocks(kept), prefixes.sample(TRAIN_ROWS))
        order = order if kept is None else kept[order]
        level = chosen_level()
        if config.code is Code.INT8 and level is not None:
            graph = build_graph(index, prefixes.blocks(order), order, level, progress)
            return CoarseIndex(graph)
    if order is not None and config.structure is not Structure.IVF:
        inner, index = index, faiss.IndexIDMap(index)
        inner.this.disown()
        index.own_fields = True
    done = 0
    for block in prefixes.blocks(order):
        if order is None:
            index.add(block)
        else:
            index.add_with_ids(block, order[done : done + len(block)])
        done += len(block)
        progress(len(block))
    return CoarseIndex(index)


def empty(config: SegmentConfig, rows: int) -> Any:
    """An empty, untrained faiss index for the coarse stage of `rows` rows."""
    index = faiss.index_factory(config.prefix, config.factory(rows), faiss.METRIC_INNER_PRODUCT)
    if isinstance(index, faiss.IndexHNSW):
        index.hnsw.efConstruction = CANDIDATES
    elif isinstance(index, faiss.IndexIVF):
        index.cp.min_points_per_centroid = 1  # faiss prints a warning of fewer than 39
    return index


def write_index(index: Any, path: Path) -> None:
    """A faiss index to a file. OSError if the disk does not take it.

    By Python's own writes: faiss passes over an error when it closes the file, and with it up to
    4 KB that found no room.
    """
    with path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, _WRITTEN))
