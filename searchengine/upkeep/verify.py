"""The checks of verify: files, checksums, tables, and that the encoder gives the stored vectors."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np

from searchengine.backends.contract import Backend, Entry, Ids
from searchengine.backends.contract import Snapshot as AnySnapshot
from searchengine.backends.entries import all_entries, keys_of
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.schema import BEHIND
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.folders import folder_of
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.backends.opening import in_folder, is_url
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.errors import CollectionError, EncoderMismatch, QueryError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.durable import altered
from searchengine.indexer.storage.manifest import MANIFEST
from searchengine.indexer.storage.passages_file import PASSAGES
from searchengine.ingest.passages import BATCH, PassageReader
from searchengine.ingest.settings import CollectionSettings

_TRIES = 20  # segments may be replaced between the opening of a commit and that of its files


@dataclass(frozen=True, slots=True)
class HeldFile:
    """An open file of a segment.

    Attributes:
        row: the segment.
        path: the name under which it was opened.
        sha256: the checksum that it must have.
        file: the bytes.
    """

    row: SegmentRow
    path: Path
    sha256: str
    file: BufferedReader

    @property
    def intact(self) -> bool:
        """Whether it has its checksum; reads all of it."""
        self.file.seek(0)
        return hashlib.file_digest(self.file, "sha256").hexdigest() == self.sha256


class Held(NamedTuple):
    """A commit and the files of its segments."""

    snapshot: Snapshot
    files: list[HeldFile]


@contextmanager
def held(collection: Collection) -> Iterator[Held]:
    """The newest commit, with all files of its segments open during the block.

    Raises CollectionError if a file is missing.
    """
    for tries_left in reversed(range(_TRIES)):
        with ExitStack() as stack:
            try:
                snapshot = stack.enter_context(collection.reading(newest=True))
                files = list(_opened(collection, snapshot, stack))
            except CollectionError:
                if tries_left:
                    continue
                raise
            yield Held(snapshot, files)
            return


def _opened(collection: Collection, snapshot: Snapshot, stack: ExitStack) -> Iterator[HeldFile]:
    for row, segment in snapshot.segments.items():
        checksums = {name: entry.sha256 for name, entry in segment.manifest.files.items()}
        for name, checksum in (checksums | {MANIFEST: row.manifest_sha256}).items():
            path = folder_of(snapshot.path, row.id) / name
            with collection.named_segment(row):
                try:
                    file = stack.enter_context(path.open("rb"))
                except FileNotFoundError:
                    raise SegmentError(f"{path} is missing") from None
            yield HeldFile(row, path, checksum, file)


_ROWS = 1 << 16  # passages compared at a time

# SQLite's length of a text ends at a NUL; the length of its bytes does not.
_INVARIANTS = {
    "SELECT count(*) FROM live_passages AS p WHERE NOT EXISTS (SELECT 1 FROM segments WHERE p.id "
    "BETWEEN base AND base + rows - 1)": "passages without a row",
    "SELECT count(*) FROM passages WHERE document NOT IN (SELECT id FROM documents)": (
        "passages without a document"
    ),
    "SELECT count(*) FROM documents WHERE vectors IS NOT x'' "
    "AND id NOT IN (SELECT document FROM live_passages)": "documents without a passage",
    "SELECT count(*) FROM passages JOIN tombstones ON tombstones.passage = passages.id": (
        "passages that are deleted"
    ),
    "SELECT count(*) FROM segments WHERE rows != "
    "(SELECT count(*) FROM passages WHERE id BETWEEN base AND base + rows - 1) + "
    "(SELECT count(*) FROM tombstones WHERE passage BETWEEN base AND base + rows - 1)": (
        "segments with rows that are neither passages nor deleted"
    ),
    "SELECT count(*) FROM passages JOIN documents ON documents.id = passages.document "
    "WHERE start < 0 OR start > end OR end > length(CAST(text AS BLOB))": (
        "passages outside of their text"
    ),
    BEHIND: "next ids that are used already",
}


def verify(collection: Backend) -> None:
    """Check checksums, tables and the index of words, and that they agree.

    Raises CollectionError on the first fault.
    """
    if not is_url(collection.path):
        _verify_folder(in_folder(collection))
        return
    with collection.reading() as snapshot:
        passages = 0
        for entries in all_entries(snapshot):
            passages += sum(len(entry.spans) for entry in entries)
            if (fault := _entry_fault(snapshot, entries)) is not None:
                raise _broken(collection, fault)
        stored = snapshot.sizes()["passages"]
        if stored != passages:
            raise _broken(collection, f"{stored - passages} passages belong to no document")


def _entry_fault(snapshot: AnySnapshot, entries: Sequence[Entry]) -> str | None:
    """What is wrong with stored entries: checksums, offsets and vectors."""
    known = snapshot.known([entry.document.key for entry in entries])
    for entry in entries:
        name, length = f"the document {entry.document.key!r:.80}", len(entry.document.text)
        if known[entry.document.key].digest != entry.document.digest:
            return f"{name} has another text than was stored"
        if not entry.spans and entry.supplied != b"":
            return f"{name} has no passage"
        if not all(0 <= start <= end <= length for start, end in entry.spans):
            return f"{name} has a passage outside of its text"
        if not np.allclose(np.linalg.norm(entry.vectors, axis=1), 1, atol=_UNIT):
            return f"{name} has a vector that is not of unit length"
    return None


def _broken(collection: Backend, fault: str) -> CollectionError:
    return CollectionError(
        f"{collection.path} is damaged ({fault}); restore the database from a backup, or add the "
        "documents again"
    )


def _verify_folder(collection: Collection) -> None:
    with held(collection) as (snapshot, files):
        path = snapshot.store.path
        check_pages(snapshot.store, path, "integrity_check")
        for sql, what in _INVARIANTS.items():
            count = snapshot.store.scan(sql)[0][0]
            if count:
                raise damaged(path, f"it has {count} {what}")
        check_texts(snapshot.store)
        for row, segment in snapshot.segments.items():
            if differing(snapshot.store, row, segment).size:
                raise damaged(path, f"segment {row.id:06d} has other passages in {PASSAGES}")
        if fault := snapshot.store.index_complaint() or snapshot.word_fault():
            raise damaged(path, fault)
        for file in files:
            if not file.intact:
                with collection.named_segment(file.row):
                    raise altered(file.path)


def check_pages(store: Store, path: Path, pragma: str) -> None:
    """Have SQLite check the file of a store; an error names `path`."""
    complaint = store.scan(f"PRAGMA {pragma}")[0][0]
    if complaint != "ok":
        raise damaged(path, " ".join(complaint.split()))


def check_texts(store: Store) -> None:
    altered = store.altered()
    if altered is not None:
        raise CollectionError(
            f"{store.path}: the text of {altered!r} differs from what was stored; "
            "restore it from a copy, add the document again, or encode the present text "
            f"with: searchengine repair {store.path.parent}"
        )


def differing(store: Store, row: SegmentRow, segment: Segment) -> Ids:
    """The passages that differ from those in the segment's passages file, if it has one.

    Returns (n, 3): the id, and the document in the table and in the file.
    """
    found, file = [np.empty((0, 3), np.int64)], segment.passages
    if file is None:
        return found[0]
    for low in range(0, row.rows, _ROWS):
        told = file.columns[:, low : low + _ROWS]
        ids = np.arange(low, low + told.shape[1]) + row.base
        stored = store.columns(ids)
        differs = (stored[0] >= 0) & (stored != told).any(axis=0)
        found.append(np.stack([ids, stored[0], told[0]])[:, differs].T)
    return np.concatenate(found)


def damaged(path: Path, how: str) -> CollectionError:
    return CollectionError(
        f"{path} is damaged ({how}); restore it from a copy, or repair it: "
        f"searchengine repair {path.parent}"
    )


MIN_COSINE = 0.95
"""Of a stored vector and the encoder's. An int8 runtime may have 0.99 to float32, and so two of
different machines cos(2 · acos(0.99)) = 0.96 to each other; bf16 and float16 lose far less."""
_UNIT = 5e-3  # distance of a stored vector's length from 1: it is rounded to float16
_NAMED = 20  # documents that an error names; the others are counted


def check_encoded(collection: Backend, encoder: CollectionEncoder, count: int) -> int:
    """Encode at most `count` passages of the newest commit again; returns how many.

    They are chosen at random, in turn from every segment. Vectors that came with their documents
    are left out. Raises CollectionError, with the keys of the documents with other vectors,
    QueryError (no encoder) and EncoderMismatch.
    """
    with collection.reading(newest=True) as snapshot:
        if snapshot.settings["encoder"]["fingerprint"] == NO_ENCODER:
            raise QueryError(
                f"{collection.path} has no encoder, so no vector can be computed again; leave "
                "encode out"
            )
        passages = CollectionSettings.from_stored(snapshot.settings).passages
        try:
            reader = PassageReader(encoder.load(snapshot.settings), passages)
        except EncoderMismatch:
            if snapshot.settings["encoder"] == collection.settings["encoder"]:
                raise
            return check_encoded(collection, encoder, count)  # reindexed meanwhile
        chosen, least = _chosen(snapshot, count), dict[str, float]()
        for start in range(0, len(chosen), BATCH):
            for key, cosine in _cosines(snapshot, reader, chosen[start : start + BATCH]):
                least[key] = min(cosine, least.get(key, 1.0))
        if far := {key: cosine for key, cosine in least.items() if cosine < MIN_COSINE}:
            raise _differ(collection, snapshot, far)
        return len(chosen)


def _chosen(snapshot: AnySnapshot, count: int) -> Ids:
    """Ids of encoded passages: one of each segment, then a second one of each, and so on.

    On a server, those of random documents.
    """
    random = np.random.default_rng()
    if not isinstance(snapshot, Snapshot):
        documents = snapshot.ids_after(-1, None, snapshot.count())
        return _encoded_ids(snapshot, random.permutation(documents), count)
    sql = (
        "SELECT p.id FROM live_passages AS p JOIN documents ON documents.id = p.document "
        "WHERE p.id BETWEEN ? AND ? AND documents.vectors IS NULL"
    )
    ids = [random.permutation(snapshot.store.numbers(sql, row.ends)) for row in snapshot.segments]
    if not ids:
        return np.empty(0, np.int64)
    together = np.concatenate(ids)
    places = np.concatenate([np.arange(len(segment_ids)) for segment_ids in ids])
    return together[np.lexsort((random.random(len(together)), places))[:count]]


def _encoded_ids(snapshot: AnySnapshot, documents: Ids, count: int) -> Ids:
    """Ids of at most `count` passages of these documents whose vectors the encoder computed."""
    chosen: list[int] = []
    for start in range(0, len(documents), BATCH):
        if len(chosen) >= count:
            break
        part = documents[start : start + BATCH].tolist()
        known = snapshot.known(keys_of(snapshot, part)).values()
        encoded = [state.id for state in known if state.vectors is None]
        chosen += snapshot.passages(of=encoded).ids.tolist()
    return np.array(chosen[:count], np.int64)


def _cosines(snapshot: AnySnapshot, reader: PassageReader, ids: Ids) -> list[tuple[str, float]]:
    """The key of each passage's document, and the cosine of the stored and the new vector."""
    _, *columns = (column.tolist() for column in snapshot.passages(ids))
    numbers = list(dict.fromkeys(columns[0]))
    documents = dict(zip(numbers, snapshot.documents(numbers), strict=True))
    pairs = [
        (replace(documents[document], origin="verify"), (start, end))
        for document, start, end in zip(*columns, strict=True)
    ]
    encoded = reader.encode(pairs, reader.texts(pairs), lambda _: None)
    stored = snapshot.vectors(ids)
    norms = np.linalg.norm(encoded, axis=1) * np.linalg.norm(stored, axis=1)
    cosines = (encoded * stored).sum(axis=1) / norms
    return [(doc.key, float(c)) for (doc, _), c in zip(pairs, cosines, strict=True)]


def _differ(
    collection: Backend, snapshot: AnySnapshot, far: Mapping[str, float]
) -> CollectionError:
    worst = sorted(far, key=lambda key: (round(far[key], 2), key))
    named = ", ".join(f"{key!r} (cosine {far[key]:.2f})" for key in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    source = snapshot.settings["encoder"]["source"] or "ENCODER"
    return CollectionError(
        f"{collection.path} holds vectors that its encoder does not give, of "
        f"{'this document' if len(worst) == 1 else 'these documents'}: {named}{more}; delete and "
        "add them again, or encode all documents again: "
        f"searchengine reindex {collection.path} --encoder {source}"
    )
