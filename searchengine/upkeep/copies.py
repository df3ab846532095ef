"""Copies of a collection: `backup` for another collection, `export` for other programs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.pending import drop_all
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.folders import folder_of, segment_errors
from searchengine.backends.folder.scratch import new_folder
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.storage.durable import sha256, sync_file, sync_folder
from searchengine.upkeep.verify import HeldFile, check_pages, check_texts, damaged, held

_BLOCK = 4096  # passages read at a time
_CHUNK = 1 << 20  # bytes copied at a time


def backup(collection: Collection, path: Path) -> None:
    """Copy the last commit to a new folder, whole or not at all, while others read and write."""
    with _new_folder(path, collection.path) as scratch, held(collection) as (snapshot, files):
        for file in files:
            _copy_file(file, folder_of(scratch, file.row.id))
        segments = scratch / "segments"
        segments.mkdir(exist_ok=True)
        for folder in (*segments.iterdir(), segments):
            sync_folder(folder)
        snapshot.store.copy_to(scratch / "documents.db")
        with Store(scratch / "documents.db") as store:
            with store.transaction():
                drop_all(store)  # what others are doing belongs to the folder that was copied
            check_pages(store, snapshot.path / "documents.db", "quick_check")


def export(snapshot: Snapshot, path: Path) -> int:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder; returns documents.

    `searchengine index` can read all of them. Line i of passages.jsonl (key, start, end) describes
    row i of the vectors, float32 in the encoder's basis. Documents and their passages come in the
    same order. Raises CollectionError if anything is damaged.
    """
    check_texts(snapshot.store)
    count, passages = snapshot.store.counts()
    dim = snapshot.settings["encoder"]["dim"]
    with _new_folder(path, snapshot.path) as folder:
        with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
            for document in snapshot.store.all_documents():
                file.write(json.dumps(document.as_record(), ensure_ascii=False) + "\n")
        positions = _positions(snapshot.store)
        _export_passages(snapshot.store, folder / "passages.jsonl")
        with (folder / "vectors.npy").open("xb") as file:
            shape = {"descr": "<f4", "fortran_order": False, "shape": (passages, dim)}
            np.lib.format.write_array_header_1_0(file, shape)
            start = file.tell()
            done = 0
            for row in snapshot.segments:
                for block in _verified(snapshot, row, positions[done:]):
                    _write_rows(file, start, block, positions[done : done + len(block)])
                    done += len(block)
        if done != passages:
            raise damaged(snapshot.store.path, f"{passages - done} passages have no row")
        for file_path in folder.iterdir():
            sync_file(file_path)
    return count


def _positions(store: Store) -> RowNumbers:
    """(passages,) int64: the place of each passage, by ascending id, in the order of documents."""
    blocks, after = [], (-1, -1)
    sql = (
        "SELECT document, id FROM live_passages WHERE (document, id) > (?, ?) "
        f"ORDER BY document, id LIMIT {_BLOCK}"
    )
    while rows := store.read(sql, after):
        blocks.append(np.array([i for _, i in rows], np.int64))
        after = rows[-1]
    ids = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
    return np.argsort(ids)


def _export_passages(store: Store, path: Path) -> None:
    after = (-1, -1)
    sql = (
        "SELECT document, passages.id, key, start, end FROM live_passages AS passages "
        "JOIN documents ON documents.id = document WHERE (document, passages.id) > (?, ?) "
        f"ORDER BY document, passages.id LIMIT {_BLOCK}"
    )
    with path.open("w", encoding="utf-8") as file:
        while rows := store.read(sql, after):
            for _, _, key, start, end in rows:
                line = {"key": key, "start": start, "end": end}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            after = rows[-1][:2]


def _copy_file(source: HeldFile, folder: Path) -> None:
    """Copy a file of a segment, and compare the copy with its checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.path.name
    with path.open("xb") as file:
        shutil.copyfileobj(source.file, file, _CHUNK)
    sync_file(path)
    if sha256(path) != source.sha256:
        raise CollectionError(
            f"{source.path} does not match its checksum; nothing was copied; run "
            f"searchengine verify {source.path.parents[2]}"
        )


def _verified(snapshot: Snapshot, row: SegmentRow, positions: RowNumbers) -> Iterator[Floats]:
    """The vectors of a segment in blocks; there must be as many `positions`, or more."""
    live = snapshot.live[row]
    expected = np.arange(row.rows) if live is None else live.rows
    if len(positions) < len(expected) or not _are_passages(snapshot.store, row, expected):
        raise damaged(snapshot.store.path, f"segment {row.id} has other rows than passages")
    with segment_errors(snapshot.path):
        yield from snapshot.segments[row].verified(live)


def _write_rows(file: BinaryIO, start: int, block: Floats, positions: RowNumbers) -> None:
    """Write rows (n, D) to their positions (n,) in an array that begins at byte `start`.

    Not mapped into memory: a full disk would then end the process by a signal.
    """
    rows = np.ascontiguousarray(block, "<f4")
    runs = np.flatnonzero(np.diff(positions) != 1) + 1  # where rows do not follow each other
    for first, end in pairwise([0, *runs.tolist(), len(rows)]):
        file.seek(start + int(positions[first]) * rows[0].nbytes)
        file.write(rows[first:end].data)


def _are_passages(store: Store, row: SegmentRow, expected: RowNumbers) -> bool:
    """Whether a segment's passages are those of the `expected` rows, ascending."""
    after, done = row.base - 1, 0
    sql = f"SELECT id FROM passages WHERE id > ? AND id <= ? ORDER BY id LIMIT {_BLOCK}"
    while (ids := store.numbers(sql, (after, row.ends[1]))).size:
        if not np.array_equal(ids - row.base, expected[done : done + len(ids)]):
            return False
        after, done = int(ids[-1]), done + len(ids)
    return done == len(expected)


@contextmanager
def _new_folder(path: Path, collection: Path) -> Iterator[Path]:
    """A new folder outside of the collection, whole or not at all."""
    path = path.absolute()
    if path.resolve().is_relative_to(collection.resolve()):
        raise CollectionError(
            f"{path} is inside the collection, whose next writer would remove it; "
            "choose a folder elsewhere"
        )
    if path.exists():
        raise CollectionError(f"{path} exists already; choose another folder or remove it")
    with new_folder(path) as scratch:
        yield scratch
