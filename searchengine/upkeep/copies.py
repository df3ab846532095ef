"""Copies of a collection: a backup, an export for other programs, a copy on another backend.

A copy from one backend to another runs in batches, each a commit. Documents that the target already
has are compared by their checksums and not written again, so after an interruption, or when the
source has changed, the same call writes only what differs. At the end both sides are read again and
compared."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from searchengine.backends.contract import Backend, Entry, has_words
from searchengine.backends.contract import Snapshot as AnySnapshot
from searchengine.backends.entries import all_entries, entries, keys_of, known
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.folders import folder_of, new_folder, segment_errors
from searchengine.backends.folder.pending import drop_all
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.backends.mode import CHOSEN, Mode
from searchengine.backends.opening import create_backend, exists, is_url, open_backend
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.synonym_groups import SETTING
from searchengine.errors import CollectionError, EncoderMismatch
from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.storage.durable import sha256, sync_file, sync_folder
from searchengine.upkeep.question_map import QUERY_MAP
from searchengine.upkeep.verify import HeldFile, check_pages, check_texts, damaged, held

_BLOCK = 4096  # passages read at a time
_CHUNK = 1 << 20  # bytes copied at a time
Progress = Callable[[str, int, int | None], None]
"""Progress callback: the step, the documents just done, and those in all."""


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


def export(snapshot: AnySnapshot, path: Path, collection: Path | str) -> int:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder; returns documents.

    `searchengine index` can read all of them. Line i of passages.jsonl (key, start, end) describes
    row i of the vectors, float32. Documents and their passages come in the
    same order. Raises CollectionError if anything is damaged.
    """
    count, passages = snapshot.count(), snapshot.sizes()["passages"]
    with _new_folder(path, collection) as folder:
        with (folder / "vectors.npy").open("xb") as file:
            shape = (passages, snapshot.settings["encoder"]["dim"])
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            if isinstance(snapshot, Snapshot):
                _export_folder(snapshot, folder, file, passages)
            else:
                _export_entries(snapshot, folder, file)
        for file_path in folder.iterdir():
            sync_file(file_path)
    return count


def _export_folder(snapshot: Snapshot, folder: Path, vectors: BinaryIO, passages: int) -> None:
    """Write what a folder holds; its files are read in their order, and compared with checksums."""
    check_texts(snapshot.store)
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        for document in snapshot.store.all_documents():
            _write_line(file, document.as_record())
    positions = _positions(snapshot.store)
    _export_passages(snapshot.store, folder / "passages.jsonl")
    start, done = vectors.tell(), 0
    for row in snapshot.segments:
        for block in _verified(snapshot, row, positions[done:]):
            _write_rows(vectors, start, block, positions[done : done + len(block)])
            done += len(block)
    if done != passages:
        raise damaged(snapshot.store.path, f"{passages - done} passages have no row")


def _export_entries(snapshot: AnySnapshot, folder: Path, vectors: BinaryIO) -> None:
    """Write what a server holds, document by document."""
    with (
        (folder / "documents.jsonl").open("w", encoding="utf-8") as documents,
        (folder / "passages.jsonl").open("w", encoding="utf-8") as passages,
    ):
        for batch in all_entries(snapshot):
            for entry in batch:
                _write_line(documents, entry.document.as_record())
                for start, end in entry.spans:
                    _write_line(passages, {"key": entry.document.key, "start": start, "end": end})
                vectors.write(np.ascontiguousarray(entry.vectors, "<f4").data)


def _write_line(file: TextIO, record: Mapping[str, Any]) -> None:
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


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
                _write_line(file, {"key": key, "start": start, "end": end})
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
    """Whether a segment has exactly the passages `expected`, ascending."""
    after, done = row.base - 1, 0
    sql = f"SELECT id FROM passages WHERE id > ? AND id <= ? ORDER BY id LIMIT {_BLOCK}"
    while (ids := store.numbers(sql, (after, row.ends[1]))).size:
        if not np.array_equal(ids - row.base, expected[done : done + len(ids)]):
            return False
        after, done = int(ids[-1]), done + len(ids)
    return done == len(expected)


@contextmanager
def _new_folder(path: Path, collection: Path | str) -> Iterator[Path]:
    """A new folder outside of the collection, whole or not at all; a URL is outside of any."""
    path = path.absolute()
    if isinstance(collection, Path) and path.resolve().is_relative_to(collection.resolve()):
        raise CollectionError(
            f"{path} is inside the collection, whose next writer would remove it; "
            "choose a folder elsewhere"
        )
    if path.exists():
        raise CollectionError(f"{path} exists already; choose another folder or remove it")
    with new_folder(path) as scratch:
        yield scratch


_BATCH = 2000  # documents in a commit
NEAR = 2e-3
"""Maximum distance between two unit vectors, both rounded to float16; with a margin."""
_SAME = ("encoder", "passages")  # settings that must agree


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did, and what the comparison of both sides found.

    Attributes:
        documents, passages: in the target, as in the source.
        written: documents written; the others were there already.
        removed: documents removed, which the source did not have.
        checksum: SHA-256 of all documents and passages but the vectors, equal on both sides.
        farthest: the largest distance between the two copies of a vector.
    """

    documents: int
    passages: int
    written: int
    removed: int
    checksum: str
    farthest: float

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def copy(
    source: str | Path,
    target: str | Path,
    progress: Progress | None = None,
    *,
    prune: bool = False,
) -> Copied:
    """Copy all documents, with their vectors, to the path or URL `target`, created if needed.

    `prune`: delete the documents of the target that the source does not have. Nothing is encoded. A
    target on a server takes over the shortlist of the source; a folder measures its own.

    Raises:
        CollectionError: without `prune`, the target holds documents that the source does not have;
            it was made with other settings, or differs after the copy.
        EncoderMismatch: the target was built by another encoder.
    """
    with closing(open_backend(source)) as origin:
        if not exists(target):
            _create(origin, target).close()
        with closing(open_backend(target)) as copied:
            _check_settings(origin, copied)
            with origin.reading() as snapshot:
                total = snapshot.count()

            def report(step: str, done: int) -> None:
                if progress is not None:
                    progress(step, done, total)

            written = 0
            for keys in _keys(origin):
                written += _copy_batch(origin, copied, keys)
                report("Copying", len(keys))
            extra = _extra(origin, copied)
            if extra and not prune:
                raise CollectionError(
                    f"{copied.path} holds {len(extra)} documents that {origin.path} does not have, "
                    f"such as {extra[0]!r:.80}; delete them with --prune (prune=True), or copy to "
                    "a new collection"
                )
            removed = copied.delete(extra, None) if extra else 0
            copied.upsert((), finished=0)
            return _compare(origin, copied, written, removed, report)


def _create(origin: Backend, target: str | Path) -> Backend:
    """Create a collection with the collection settings and the tokenizer of another."""
    names = ("encoder", "index", "passages", "tokenizer_auto", "weight", SETTING, CHOSEN, QUERY_MAP)
    settings = {name: origin.settings[name] for name in names if name in origin.settings}
    analyzer = Analyzer.parse(origin.settings["tokenizer"])
    words = analyzer.tokenizer is not Tokenizer.NONE
    settings["mode"] = Mode.HYBRID if words else Mode.VECTOR
    if has_words(origin.settings) and "mode" in origin.settings:
        settings["mode"] = origin.settings["mode"]
    if is_url(target):
        with origin.reading() as snapshot:  # a shortlist of all rows would not suit more of them
            few = snapshot.shortlist >= snapshot.sizes()["passages"]
            settings["shortlist"] = None if few else snapshot.shortlist
    return create_backend(target, settings, analyzer)


def _check_settings(origin: Backend, copied: Backend) -> None:
    for name in _SAME:
        expected, actual = (
            _comparable(name, collection.settings) for collection in (origin, copied)
        )
        if expected != actual:
            error = EncoderMismatch if name == "encoder" else CollectionError
            raise error(
                f"{copied.path} was made with other settings than {origin.path} ({name}: {actual} "
                f"instead of {expected}); copy to a new collection"
            )


def _comparable(name: str, settings: Mapping[str, Any]) -> Any:
    value = settings.get(name)
    return (value["fingerprint"], value["dim"]) if name == "encoder" and value else value


def _keys(origin: Backend) -> Iterator[list[str]]:
    """The keys of all documents, in the order in which they were first added, in batches."""
    last = -1
    while True:
        with origin.reading() as snapshot:
            ids = snapshot.ids_after(last, None, _BATCH)
            keys = keys_of(snapshot, ids.tolist())
        if not keys:
            return
        last = int(ids[-1])
        yield keys


def _copy_batch(origin: Backend, copied: Backend, keys: list[str]) -> int:
    """Write the documents that differ, or that the target lacks; returns how many."""
    originals, copies = known(origin, keys), known(copied, keys)
    differing = [
        key
        for key in keys
        if key in originals
        and (key not in copies or originals[key][1:] != copies[key][1:])  # all but the id
    ]
    if differing:
        copied.upsert(entries(origin, differing))
    return len(differing)


def _extra(origin: Backend, copied: Backend) -> list[str]:
    """The keys of the target's documents that the source does not have."""
    with origin.reading() as before, copied.reading() as after:
        if before.count() == after.count():  # all of the source's were copied
            return []
    extra: list[str] = []
    for keys in _keys(copied):
        stored = known(origin, keys)
        extra += [key for key in keys if key not in stored]
    return extra


def _compare(
    origin: Backend,
    copied: Backend,
    written: int,
    removed: int,
    report: Callable[[str, int], None],
) -> Copied:
    """Read both sides again. Raises CollectionError for the first difference."""
    digest, documents, passages, farthest = hashlib.sha256(), 0, 0, 0.0
    for keys in _keys(origin):
        originals = entries(origin, keys)
        copies = {entry.document.key: entry for entry in entries(copied, keys)}
        for entry in originals:
            farthest = max(farthest, _distance(entry, copies.get(entry.document.key), copied))
            digest.update(entry.checksum)
            documents, passages = documents + 1, passages + len(entry.spans)
        report("Comparing", len(originals))
    with copied.reading() as snapshot:
        counts = snapshot.count(), snapshot.sizes()["passages"]
    if counts != (documents, passages):
        raise _differs(
            copied, f"it holds {counts} documents and passages, not {documents, passages}"
        )
    return Copied(documents, passages, written, removed, digest.hexdigest(), farthest)


def _distance(entry: Entry, other: Entry | None, copied: Backend) -> float:
    """The largest distance between two copies of a vector. Raises CollectionError."""
    key = entry.document.key
    if other is None or entry.checksum != other.checksum:
        raise _differs(
            copied, f"the document {key!r:.80} is {'missing' if other is None else 'other'}"
        )
    if not entry.spans:
        return 0.0
    farthest = float(np.linalg.norm(entry.vectors - other.vectors, axis=1).max())
    if farthest > NEAR:
        raise _differs(copied, f"a vector of the document {key!r:.80} is {farthest:.4f} off")
    return farthest


def _differs(copied: Backend, how: str) -> CollectionError:
    return CollectionError(
        f"{copied.path} differs from its source after the copy: {how}; if the source was changed "
        "meanwhile, run the same command again, which copies the rest"
    )
