"""What keeps a collection trustworthy: a check of everything, copies, and what it holds."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import numpy as np

from indexer.config import SegmentConfig
from indexer.storage.durable import sha256, sync_file, sync_folder
from indexer.storage.manifest import MANIFEST
from indexer.tuning.footprint import footprint
from searchengine.errors import CollectionError
from searchengine.maintenance.guarantee import guarantee
from searchengine.maintenance.stats import Stats
from searchengine.storage.collection import Collection
from searchengine.storage.documents.store import SegmentRow, Store
from searchengine.storage.folders import folder_of, segment_errors
from searchengine.storage.scratch import new_folder
from searchengine.storage.snapshot import Snapshot, Vectors

_AT_ONCE = 1 << 24  # bytes read to warm up
_BLOCK = 4096  # passages exported at a time
_TRIES = 5  # a backup starts again where segments were replaced under its hands

# length of a text ends at NUL, that of its bytes does not.
_INVARIANTS = {
    "SELECT count(*) FROM passages WHERE NOT EXISTS (SELECT 1 FROM segments WHERE passages.id "
    "BETWEEN segments.base AND segments.base + segments.rows - 1)": "passages without a row",
    "SELECT count(*) FROM passages WHERE document NOT IN (SELECT id FROM documents)": (
        "passages without a document"
    ),
    "SELECT count(*) FROM documents WHERE id NOT IN (SELECT document FROM passages)": (
        "documents without a passage"
    ),
    "SELECT count(*) FROM passages JOIN tombstones ON tombstones.passage = passages.id": (
        "passages that are deleted"
    ),
    "SELECT count(*) FROM segments WHERE rows != "
    "(SELECT count(*) FROM passages WHERE id BETWEEN base AND base + rows - 1) + "
    "(SELECT count(*) FROM tombstones WHERE passage BETWEEN base AND base + rows - 1)": (
        "segments with rows of which nothing is known"
    ),
    "SELECT count(*) FROM passages JOIN documents ON documents.id = passages.document "
    "WHERE start < 0 OR start > end OR end > length(CAST(text AS BLOB))": (
        "passages outside of their text"
    ),
}


def warm(snapshot: Snapshot) -> int:
    """Read the tables and segments once, in order, so that they lie in the system's cache; bytes.

    A search touches pages here and there, and would wait for each (a question 8 to 12 ms instead
    of 3, for hundreds of them: 200,000 passages). Raises CollectionError where the disk fails.
    """
    folders = [segment.path for segment in snapshot.segments.values()]
    try:
        return snapshot.store.warm() + sum(map(_read_all, folders))
    except OSError as error:
        raise CollectionError(f"{snapshot.store.path.parent} cannot be read: {error}") from error


def _read_all(folder: Path) -> int:
    read = 0
    with suppress(FileNotFoundError):  # a newer commit has done with it; what is shown stays mapped
        for path in folder.iterdir():
            read += _read(path)
    return read


def _read(path: Path) -> int:
    read = 0
    with path.open("rb", buffering=0) as file:
        while some := len(file.read(_AT_ONCE)):
            read += some
    return read


def verify(collection: Collection) -> None:
    """Check checksums, SQLite's integrity, the index of words, and that all of these agree.

    Raises CollectionError on the first fault.
    """
    with collection.newest() as snapshot:
        path = snapshot.store.path
        _check_pages(snapshot.store, path, "integrity_check")
        for sql, what in _INVARIANTS.items():
            count = snapshot.store.scan(sql)[0][0]
            if count:
                raise _damaged(path, f"it has {count} {what}")
        _check_texts(snapshot.store)
        # FTS5 checks itself by a statement that takes the write lock: on a copy, it can.
        with TemporaryDirectory() as scratch:
            copy = Path(scratch) / "documents.db"
            snapshot.store.copy_to(copy)
            with Store(copy) as own:
                complaint = own.index_complaint()
        if complaint is not None:
            raise _damaged(path, " ".join(complaint.split()))
        for row, segment in snapshot.segments.items():
            with collection.named_segment(row):
                segment.verify()


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
                    f"{source} does not match its checksum; nothing was copied, see what "
                    "searchengine verify says"
                )
        sync_folder(folder)
    (target / "segments").mkdir(exist_ok=True)
    sync_folder(target / "segments")
    snapshot.store.copy_to(target / "documents.db")
    with Store(target / "documents.db") as store:
        _check_pages(store, snapshot.path / "documents.db", "quick_check")


def _check_pages(store: Store, path: Path, pragma: str) -> None:
    """Have SQLite check the file of a store; what is wrong with it is said of `path`."""
    complaint = store.scan(f"PRAGMA {pragma}")[0][0]
    if complaint != "ok":
        raise _damaged(path, " ".join(complaint.split()))


def _check_texts(store: Store) -> None:
    altered = store.altered()
    if altered is not None:
        raise CollectionError(
            f"{store.path}: the text of {altered!r} is not the one that was stored; "
            "restore it from a copy, add the document again, or encode the text that is there "
            f"with: searchengine repair {store.path.parent}"
        )


def _damaged(path: Path, how: str) -> CollectionError:
    return CollectionError(
        f"{path} is damaged ({how}); restore it from a copy, or mend it with: "
        f"searchengine repair {path.parent}"
    )


def export(snapshot: Snapshot, path: Path) -> int:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder; count documents.

    The documents are what `searchengine index` reads; line i of passages.jsonl (key, start, end)
    is row i of the vectors, float32 in the encoder's own basis. What is copied is verified: raises
    CollectionError where `verify` would.
    """
    _check_texts(snapshot.store)
    count, passages = snapshot.store.counts()
    dim = snapshot.settings["encoder"]["dim"]
    with _new_folder(path, snapshot.path) as folder:
        with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
            for document in snapshot.store.all_documents():
                record = {**document.metadata, "_id": document.key}
                record |= {"title": document.title, "text": document.text}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        vectors = np.lib.format.open_memmap(
            folder / "vectors.npy", "w+", np.float32, (passages, dim)
        )
        with (folder / "passages.jsonl").open("w", encoding="utf-8") as file:
            done = sum(_export_segment(snapshot, row, file, vectors) for row in snapshot.segments)
        if done != passages:
            raise _damaged(snapshot.store.path, f"{passages - done} passages have no row")
        vectors.flush()
        del vectors
        for file_path in folder.iterdir():
            sync_file(file_path)
    return count


def _export_segment(snapshot: Snapshot, row: SegmentRow, file: TextIO, vectors: Vectors) -> int:
    """Write the passages of a segment and, to the last rows of an array, their vectors."""
    live = snapshot.live[row]
    expected = range(row.rows) if live is None else live.rows.tolist()
    sql = "SELECT count(*) FROM passages WHERE id < ?"
    first = done = int(snapshot.store.read(sql, (row.base,))[0][0])
    for ids, lines in _passages(snapshot, row):
        if ids != [row.base + number for number in expected[done - first :][: len(ids)]]:
            raise _damaged(snapshot.store.path, f"segment {row.id} has other rows than passages")
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        done += len(ids)
    if done - first != len(expected):
        raise _damaged(snapshot.store.path, f"segment {row.id} has more rows than passages")
    at = first
    with segment_errors(snapshot.path):
        for block in snapshot.segments[row].verified(live):
            vectors[at : at + len(block)] = block
            at += len(block)
    return done - first


def _passages(
    snapshot: Snapshot, row: SegmentRow
) -> Iterator[tuple[list[int], list[dict[str, object]]]]:
    """Ids of a segment's passages, rising, and where they are in their documents."""
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


def stats(snapshot: Snapshot) -> Stats:
    """What a collection holds and how it is searched."""
    settings, segments = snapshot.settings, snapshot.segments.values()
    recipe = SegmentConfig.from_dict(settings["index"])
    rows = sum(segment.rows for segment in segments)
    sizes = [footprint(segment.config, segment.rows, segment.dim) for segment in segments]
    tuning = next((s.manifest.tuning for s in segments if s.manifest.tuning is not None), None)
    documents, passages = snapshot.store.counts()
    return Stats(
        path=str(snapshot.path),
        documents=documents,
        passages=passages,
        segments=len(segments),
        tombstones=rows - passages,
        commit=snapshot.commit,
        cut=settings.get("passages"),
        tokenizer=settings["tokenizer"],
        fields=snapshot.store.fields(),
        dim=settings["encoder"]["dim"],
        recipe=recipe.as_dict(),
        scanned=sum(recipe.fitting(each.rows, each.dim) != recipe for each in segments),
        hot_row=sum(size.rows * size.hot_row for size in sizes) / rows if rows else None,
        cold_row=sum(size.cold for size in sizes) / rows if rows else None,
        tuning=tuning,
        guarantee=None if tuning is None else guarantee(snapshot, float(tuning["goal"]["recall"])),
        encoder=settings["encoder"]["source"],
        layers=settings["encoder"].get("layers"),
        fingerprint=settings["encoder"]["fingerprint"],
        bytes=_bytes(snapshot.path),
    )


def _bytes(path: Path) -> int:
    """Of all files below a folder; one that has two names counts once."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # removed by a writer just now
                file = os.stat(os.path.join(folder, name))
                sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())


@contextmanager
def _new_folder(path: Path, collection: Path) -> Iterator[Path]:
    """A new folder outside of the collection, whole or not at all."""
    path = path.absolute()
    if path.resolve().is_relative_to(collection.resolve()):
        raise CollectionError(
            f"{path} lies inside the collection, whose next writer would remove it; "
            "choose a folder elsewhere"
        )
    if path.exists():
        raise CollectionError(f"{path} exists already; choose another folder or remove it")
    with new_folder(path) as scratch:
        yield scratch
