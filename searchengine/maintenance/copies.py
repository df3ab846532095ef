"""Copies of a collection: `backup` for another collection, `export` for other programs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from indexer.arrays import Floats
from indexer.storage.durable import sha256, sync_file, sync_folder
from indexer.storage.manifest import MANIFEST
from searchengine.errors import CollectionError
from searchengine.maintenance.check import check_pages, check_texts, damaged
from searchengine.storage.collection import Collection
from searchengine.storage.documents.store import SegmentRow, Store
from searchengine.storage.folders import folder_of, segment_errors
from searchengine.storage.scratch import new_folder
from searchengine.storage.snapshot import Snapshot

_BLOCK = 4096  # passages exported at a time
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

    `searchengine index` can read the documents. Line i of passages.jsonl (key, start, end)
    describes row i of the vectors, float32 in the encoder's basis. Raises CollectionError if
    anything is damaged.
    """
    check_texts(snapshot.store)
    count, passages = snapshot.store.counts()
    dim = snapshot.settings["encoder"]["dim"]
    with _new_folder(path, snapshot.path) as folder:
        with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
            for document in snapshot.store.all_documents():
                file.write(json.dumps(document.as_record(), ensure_ascii=False) + "\n")
        vectors = np.lib.format.open_memmap(
            folder / "vectors.npy", "w+", np.float32, (passages, dim)
        )
        with (folder / "passages.jsonl").open("w", encoding="utf-8") as file:
            done = sum(_export_segment(snapshot, row, file, vectors) for row in snapshot.segments)
        if done != passages:
            raise damaged(snapshot.store.path, f"{passages - done} passages have no row")
        vectors.flush()
        del vectors
        for file_path in folder.iterdir():
            sync_file(file_path)
    return count


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
        check_pages(store, snapshot.path / "documents.db", "quick_check")


def _export_segment(snapshot: Snapshot, row: SegmentRow, file: TextIO, vectors: Floats) -> int:
    """Write the passages of a segment, and their vectors into the rows of the array."""
    live = snapshot.live[row]
    expected = range(row.rows) if live is None else live.rows.tolist()
    sql = "SELECT count(*) FROM passages WHERE id < ?"
    first = done = int(snapshot.store.read(sql, (row.base,))[0][0])
    for ids, lines in _passages(snapshot, row):
        if ids != [row.base + number for number in expected[done - first :][: len(ids)]]:
            raise damaged(snapshot.store.path, f"segment {row.id} has other rows than passages")
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        done += len(ids)
    if done - first != len(expected):
        raise damaged(snapshot.store.path, f"segment {row.id} has more rows than passages")
    position = first
    with segment_errors(snapshot.path):
        for block in snapshot.segments[row].verified(live):
            vectors[position : position + len(block)] = block
            position += len(block)
    return done - first


def _passages(
    snapshot: Snapshot, row: SegmentRow
) -> Iterator[tuple[list[int], list[dict[str, object]]]]:
    """Ids of a segment's passages, ascending, with their documents' keys and offsets."""
    after, last = row.base - 1, row.base + row.rows - 1
    sql = (
        "SELECT passages.id, key, start, end FROM passages "
        "JOIN documents ON documents.id = passages.document "
        "WHERE passages.id > ? AND passages.id <= ? ORDER BY passages.id LIMIT ?"
    )
    while rows := snapshot.store.read(sql, (after, last, _BLOCK)):
        yield (
            [row[0] for row in rows],
            [{"key": key, "start": start, "end": end} for _, key, start, end in rows],
        )
        after = rows[-1][0]


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
