"""Copies of a collection: a backup, an export for other programs, a copy on another backend.

A copy from one backend to another runs in batches, each a commit. Documents that the target already
has are compared and not written again, so after an interruption, or when the source has changed,
the same call writes only what differs."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from searchengine.backends.contract import Backend, Snapshot, has_words
from searchengine.backends.entries import all_entries, entries, ids, keys_of
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import check_name, folder_of, new_folder
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.mode import CHOSEN, Mode
from searchengine.backends.opening import create_backend, exists, open_backend
from searchengine.corpus.analyzer import Analyzer
from searchengine.encoders.loading import QUERY_MAP
from searchengine.errors import CollectionError, EncoderMismatch
from searchengine.indexer.building import Progress
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage import files
from searchengine.upkeep.verify import check_pages, settled, verify

_BATCH = 2000  # documents in a commit


def backup(collection: Collection, path: Path) -> None:
    """Copy the last commit to a new folder, whole or not at all, while others read and write.

    The files of segments, which never change, are linked where the file system can.
    """
    with _new_folder(path, collection.path) as scratch:
        segments = scratch / "segments"
        segments.mkdir()

        def link(row: SegmentRow) -> None:
            (segment,) = collection.open_segments([row]).values()
            link_segment(folder_of(collection.path, row.id), segment, segments)

        with settled(collection, link) as snapshot:
            files.sync_folder(segments)
            check_pages(snapshot.store, "quick_check")
            snapshot.store.copy_to(scratch / "documents.db")
            with Store(scratch / "documents.db") as store, store.transaction():
                # What others are doing belongs to the folder that was copied.
                store.execute("DELETE FROM pending")


def link_segment(source: Path, segment: Segment, parent: Path, *, passages: bool = True) -> Path:
    """Link a segment, whose folder is `source`, into another parent; returns its folder there.

    Its files are compared with their checksums. Raises SegmentError and OSError.
    """
    target = parent / source.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    manifest = files.FileEntry((source / files.MANIFEST).stat().st_size, segment.manifest_sha256)
    for name, entry in {**segment.manifest.files, files.MANIFEST: manifest}.items():
        if passages or name != files.PASSAGES:
            files.link_verified(source / name, target / name, entry)
    files.sync_folder(target)
    return target


def export(collection: Backend, path: Path) -> int:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder; returns documents.

    `searchengine index` can read all of them. Line i of passages.jsonl (key, start, end) describes
    row i of the vectors, float32. Documents and their passages come in the
    same order. Raises CollectionError if anything is damaged.
    """
    with _new_folder(path, collection.path) as folder, collection.reading() as snapshot:
        verify(collection)
        count, passages = snapshot.count(), snapshot.sizes()["passages"]
        with (
            (folder / "documents.jsonl").open("w", encoding="utf-8") as documents,
            (folder / "passages.jsonl").open("w", encoding="utf-8") as lines,
            (folder / "vectors.npy").open("xb") as vectors,
        ):
            shape = (passages, snapshot.settings["encoder"]["dim"])
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(vectors, header)
            for batch in all_entries(snapshot):
                for entry in batch:
                    record = entry.document.as_record()
                    print(json.dumps(record, ensure_ascii=False), file=documents)
                    for start, end in entry.spans:
                        passage = {"key": entry.document.key, "start": start, "end": end}
                        print(json.dumps(passage, ensure_ascii=False), file=lines)
                    vectors.write(np.ascontiguousarray(entry.vectors, "<f4").data)
        for file_path in folder.iterdir():
            files.sync_file(file_path)
    return count


@contextmanager
def _new_folder(path: Path, collection: Path | str) -> Iterator[Path]:
    """A new folder outside of the collection, whole or not at all; a URL is outside of any."""
    check_name(path)
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


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did.

    Attributes:
        documents, passages: in the target, as in the source.
        written: documents written; the others were there already.
        removed: documents removed, which the source did not have.
    """

    documents: int
    passages: int
    written: int
    removed: int


def copy(
    source: str | Path,
    target: str | Path,
    progress: Progress | None = None,
    *,
    prune: bool = False,
) -> Copied:
    """Copy one commit, with its vectors, to the path or URL `target`, created if needed.

    `prune`: delete the documents of the target that the source does not have. Nothing is encoded.
    Fields that are indexed in the source are indexed in the target.

    Raises:
        CollectionError: without `prune`, the target holds documents that the source does not have;
            it was made with other settings, or cannot store a text.
        EncoderMismatch: the target was built by another encoder.
    """
    with closing(open_backend(source)) as origin, origin.reading(newest=True) as snapshot:
        if not exists(target):
            _create(snapshot, target).close()
        with closing(open_backend(target)) as copied:
            _check_settings(origin, copied)
            written, documents, passages, total = 0, 0, 0, snapshot.count()
            for batch in all_entries(snapshot, _BATCH):
                keys = [entry.document.key for entry in batch]
                stored = {entry.state for entry in entries(copied, keys)}
                if differing := [entry for entry in batch if entry.state not in stored]:
                    copied.upsert(differing)
                written, documents = written + len(differing), documents + len(batch)
                passages += sum(len(entry.spans) for entry in batch)
                if progress is not None:
                    progress("Copying", len(batch), total)
            removed = _remove_others(snapshot, copied, origin.path, prune)
            with copied.reading(newest=True) as present:
                fields = {*snapshot.sizes()["fields"]} - {*present.sizes()["fields"]}
            if fields:
                copied.configure({}, fields=sorted(fields))
            copied.upsert((), finished=0)  # on a server, to build the index of vectors
            return Copied(documents, passages, written, removed)


def _create(origin: Snapshot, target: str | Path) -> Backend:
    """Create a collection with the collection settings and the tokenizer of another."""
    names = ("encoder", "index", "passages", "tokenizer_auto", "weight", "synonyms")
    stored = origin.settings
    settings = {each: stored[each] for each in (*names, CHOSEN, QUERY_MAP) if each in stored}
    analyzer = Analyzer.parse(origin.settings["tokenizer"])
    words = has_words(origin.settings)
    settings["mode"] = origin.settings.get("mode", Mode.HYBRID) if words else Mode.VECTOR
    return create_backend(target, settings, analyzer)


def _check_settings(origin: Backend, copied: Backend) -> None:
    """Raise an error unless both have the same encoder and passages."""
    expected, actual = (
        [each.settings["encoder"][name] for name in ("fingerprint", "dim")]
        + [each.settings.get("passages")]
        for each in (origin, copied)
    )
    if expected != actual:
        raise (EncoderMismatch if expected[:2] != actual[:2] else CollectionError)(
            f"{copied.path} was made with another encoder or passages than {origin.path} "
            f"({actual} instead of {expected}); copy to a new collection"
        )


def _remove_others(snapshot: Snapshot, copied: Backend, origin: Path | str, prune: bool) -> int:
    """Delete the documents that the source does not have; without `prune`, refuse them."""
    others = list[str]()
    with copied.reading(newest=True) as stored:
        for block in ids(stored, batch=_BATCH):
            keys = keys_of(stored, block.tolist())
            known = snapshot.known(keys)
            others += [key for key in keys if key not in known]
    if others and not prune:
        raise CollectionError(
            f"{copied.path} holds {len(others)} documents that {origin} does not have, such as "
            f"{others[0]!r:.80}; delete them with --prune (prune=True), or copy to a new collection"
        )
    return copied.delete(others, None) if others else 0
