"""Copies of a collection: `backup` for another collection, `export` for other programs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from indexer.arrays import Floats, RowNumbers
from indexer.storage.durable import sha256, sync_file, sync_folder
from indexer.storage.manifest import MANIFEST
from searchengine.errors import CollectionError
from searchengine.maintenance.check import check_pages, check_texts, damaged
from searchengine.storage.collection import Collection
from searchengine.storage.documents.pending import drop_all
from searchengine.storage.documents.store import SegmentRow, Store
from searchengine.storage.folders import folder_of, segment_errors
from searchengine.storage.scratch import new_folder
from searchengine.storage.snapshot import Snapshot

_BLOCK = 4096  # passages read at a time
_TRIES = 5  # a backup starts again if segments were replaced meanwhile


def backup(collection: Collection, path: Path) -> None:
    """Copy the last commit to a new folder, whole or not at all."""
    with _new_folder(path, collection.path) as scratch:
        for tries_left in reversed(range(_TRIES)):
            try:
                with collection.newest() as snapshot:
                    _copy(snapshot, scratch)
                return
            except FileNotFoundError:  # replaced and removed by writers meanwhile
                if not tries_left:
                    raise
                shutil.rmtree(scratch)
                scratch.mkdir()


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
        vectors = np.lib.format.open_memmap(
            folder / "vectors.npy", "w+", np.float32, (passages, dim)
        )
        done = 0
        for row in snapshot.segments:
            done += _export_segment(snapshot, row, vectors, positions[done:])
        if done != passages:
            raise damaged(snapshot.store.path, f"{passages - done} passages have no row")
        vectors.flush()
        del vectors
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


def _copy(snapshot: Snapshot, target: Path) -> None:
    for row, segment in snapshot.segments.items():
        folder = folder_of(target, row.id)
        folder.mkdir(parents=True)
        checksums = {name: entry.sha256 for name, entry in segment.manifest.files.items()}
        for name, checksum in (checksums | {MANIFEST: row.manifest_sha256}).items():
            source = folder_of(snapshot.path, row.id) / name
            shutil.copyfile(source, folder / name)
            sync_file(folder / name)
            if sha256(folder / name) != checksum:
                raise CollectionError(
                    f"{source} does not match its checksum; nothing was copied; run "
                    f"searchengine verify {snapshot.path}"
                )
        sync_folder(folder)
    (target / "segments").mkdir(exist_ok=True)
    sync_folder(target / "segments")
    snapshot.store.copy_to(target / "documents.db")
    with Store(target / "documents.db") as store:
        with store.transaction():
            drop_all(store)  # what others are doing belongs to the folder that was copied
        check_pages(store, snapshot.path / "documents.db", "quick_check")


def _export_segment(
    snapshot: Snapshot, row: SegmentRow, vectors: Floats, positions: RowNumbers
) -> int:
    """Write the vectors of a segment to their positions in the array; returns how many."""
    live = snapshot.live[row]
    expected = np.arange(row.rows) if live is None else live.rows
    if len(positions) < len(expected) or not _are_passages(snapshot.store, row, expected):
        raise damaged(snapshot.store.path, f"segment {row.id} has other rows than passages")
    done = 0
    with segment_errors(snapshot.path):
        for block in snapshot.segments[row].verified(live):
            vectors[positions[done : done + len(block)]] = block
            done += len(block)
    return done


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
