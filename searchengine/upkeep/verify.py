"""The checks of verify: files, checksums, tables, and that the encoder gives the stored vectors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from searchengine.backends.contract import Backend, Entry, Ids, Snapshot
from searchengine.backends.entries import all_entries, keys_of
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import reading_errors
from searchengine.backends.folder.schema import BEHIND
from searchengine.backends.folder.snapshot import Snapshot as FolderSnapshot
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.folder.view import open_committed
from searchengine.backends.opening import in_folder, is_url
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.errors import CollectionError, EncoderMismatch, QueryError
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.passages_file import PASSAGES
from searchengine.ingest.passages import BATCH, PassageReader
from searchengine.ingest.settings import CollectionSettings

MIN_COSINE = 0.95
"""Of a stored vector and the encoder's. An int8 runtime may have 0.99 to float32, and so two of
different machines cos(2 · acos(0.99)) = 0.96 to each other; bf16 and float16 lose far less."""
_UNIT = 5e-3  # distance of a stored vector's length from 1: it is rounded to float16
_NAMED = 20  # documents that an error names; the others are counted
_TRIES = 20  # segments may be replaced between the opening of a commit and that of its files
_ROWS_READ = 1 << 16  # passages compared at a time
_OBJECT = "CASE WHEN json_valid({0}) THEN json_type({0}) ELSE '' END <> 'object'"
NO_METADATA = _OBJECT.format("metadata")
MALFORMED = (
    "typeof(key) || typeof(title) || typeof(text) <> 'texttexttext' OR "
    f"{NO_METADATA} OR source NOT NULL AND {_OBJECT.format('source')}"
)
"""Documents with columns that are not text, or metadata that are no JSON object."""
ENCODED = "encoded again"


_ROW = "EXISTS (SELECT 1 FROM segments WHERE {} BETWEEN base AND base + rows - 1)"
_DELETE = "DELETE FROM passages WHERE id IN (SELECT passage FROM tombstones)"
_OUTSIDE = (
    "FROM passages JOIN documents ON documents.id = passages.document WHERE "
    "typeof(start) || typeof(end) <> 'integerinteger' OR start < 0 OR start > end "
    "OR end > length(CAST(text AS BLOB))"  # the length of a text ends at a NUL; of bytes, not
)
_ALONE = "FROM passages WHERE document NOT IN (SELECT id FROM documents)"
_PLACED = _ROW.format("passages.id")
RULES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "passages without a row": (
        f"SELECT document FROM passages WHERE NOT {_PLACED}",
        ENCODED,
        (
            f"DELETE FROM passages WHERE NOT {_PLACED}",
            f"DELETE FROM tombstones WHERE NOT {_ROW.format('passage')}",
        ),
    ),
    "passages that are deleted": (
        "SELECT document FROM passages JOIN tombstones ON tombstones.passage = passages.id",
        "kept",
        ("DELETE FROM tombstones WHERE passage IN (SELECT id FROM passages)",),
    ),
    "passages without a document": (
        f"SELECT document {_ALONE}",
        "deleted",
        (f"INSERT INTO tombstones (passage) SELECT id {_ALONE}", _DELETE),
    ),
    "passages outside of their text": (
        f"SELECT document {_OUTSIDE}",
        ENCODED,
        (f"INSERT INTO tombstones (passage) SELECT passages.id {_OUTSIDE}", _DELETE),
    ),
    "documents without a passage": (
        "SELECT id FROM documents WHERE vectors IS NOT x'' "
        "AND id NOT IN (SELECT document FROM passages)",
        ENCODED,
        (),
    ),
}
"""What breaks a rule of the tables → the documents of each case, what a repair does, and its
statements. ENCODED: these documents are to be encoded besides."""
_ROWS = (
    "SELECT count(*) FROM segments WHERE rows != "
    "(SELECT count(*) FROM passages WHERE id BETWEEN base AND base + rows - 1) + "
    "(SELECT count(*) FROM tombstones WHERE passage BETWEEN base AND base + rows - 1)"
)
_COUNTS = {f"SELECT count(*) FROM ({query})": what for what, (query, *_) in RULES.items()} | {
    _ROWS: "segments with rows that are neither passages nor deleted",
    BEHIND: "next ids that are used already",
}


def verify(collection: Backend) -> None:
    """Check checksums, tables and the index of words, and that they agree.

    Raises CollectionError on the first fault.
    """
    if not is_url(collection.path):
        folder = in_folder(collection)
        with settled(folder, lambda row: check_segment(folder, row)) as snapshot:
            check_pages(snapshot.store, "integrity_check")
            check_tables(snapshot)
            if fault := snapshot.store.index_complaint() or snapshot.word_fault():
                raise snapshot.store.damaged(fault)
        return
    with collection.reading() as snapshot:
        passages = 0
        for entries in all_entries(snapshot):
            passages += sum(len(entry.spans) for entry in entries)
            _raise(collection, _entry_fault(snapshot, entries))
        lost = snapshot.sizes()["passages"] - passages
        _raise(collection, f"{lost} passages belong to no document" if lost else None)


@contextmanager
def settled(
    collection: Collection, act: Callable[[SegmentRow], object]
) -> Iterator[FolderSnapshot]:
    """The newest commit, when something was done with each of its segments, once.

    Others may merge segments and remove them meanwhile; then those of a newer commit follow.
    """
    done: set[SegmentRow] = set()
    for tries_left in reversed(range(_TRIES)):
        with collection.reading(newest=True) as snapshot:
            try:
                for row in snapshot.segments:
                    if row not in done:
                        with reading_errors(collection.path):
                            act(row)
                        done.add(row)
            except (CollectionError, OSError):
                with Store(collection.path / "documents.db", readers=1) as store:
                    if row in store.segments() or not tries_left:
                        raise
                continue
            yield snapshot
            return


def check_segment(collection: Collection, row: SegmentRow) -> None:
    """Read all files of a segment. Raises SegmentError for one that is missing or altered."""
    with open_committed(collection.path, row) as segment:
        for _ in segment.verified():
            pass


def check_pages(store: Store, pragma: str, source: Store | None = None) -> None:
    """Have SQLite check the file of a store, or of a copy of `source`. Raises CollectionError."""
    if (complaint := store.scan(f"PRAGMA {pragma}")[0][0]) != "ok":
        raise (source or store).damaged(" ".join(complaint.split()))


def check_tables(snapshot: FolderSnapshot) -> None:
    """Check that tables, texts and the passages of segments agree. Raises CollectionError."""
    store = snapshot.store
    try:
        CollectionSettings.from_stored(snapshot.settings)
    except CollectionError as error:
        raise store.damaged(f"in its settings: {error}") from error
    store.works()  # raises for one that makes no sense
    for (key,) in store.scan(f"SELECT key FROM documents WHERE {MALFORMED} LIMIT 1"):
        raise store.damaged(
            f"document {key!r:.80} has a title or text that is not text, or metadata that are no "
            "JSON object"
        )
    check_texts(store)
    for sql, what in _COUNTS.items():
        if count := store.scan(sql)[0][0]:
            raise store.damaged(f"it has {count} {what}")
    for row, segment in snapshot.segments.items():
        if _differs(store, row, segment):
            raise store.damaged(f"segment {row.id:06d} has other passages in {PASSAGES}")


def check_texts(store: Store) -> None:
    """Compare all texts with their checksums. Raises CollectionError."""
    altered = store.altered()
    if altered is not None:
        raise CollectionError(
            f"{store.path}: the text of {altered!r} differs from what was stored; "
            "restore it from a copy, add the document again, or encode the present text "
            f"with: searchengine repair {store.path.parent}"
        )


def _differs(store: Store, row: SegmentRow, segment: Segment) -> bool:
    """Whether passages differ from those in the segment's file."""
    file = segment.passages
    assert file is not None  # a snapshot refuses a segment without one
    for low in range(0, row.rows, _ROWS_READ):
        in_file = file.columns[:, low : low + _ROWS_READ]
        stored = store.columns(np.arange(low, low + in_file.shape[1]) + row.base)
        if ((stored[0] >= 0) & (stored != in_file).any(axis=0)).any():
            return True
    return False


def _entry_fault(snapshot: Snapshot, entries: Sequence[Entry]) -> str | None:
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


def _raise(collection: Backend, fault: str | None) -> None:
    """Raise a fault of a collection on a server, if there is one."""
    if fault is not None:
        raise CollectionError(
            f"{collection.path} is damaged ({fault}); restore the database from a backup, or add "
            "the documents again"
        )


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
        try:
            reader = PassageReader(encoder.load(snapshot.settings), snapshot.settings)
        except EncoderMismatch:
            if snapshot.settings["encoder"] == collection.settings["encoder"]:
                raise
            return check_encoded(collection, encoder, count)  # reindexed meanwhile
        chosen, lowest = _chosen(snapshot, count), dict[str, float]()
        for start in range(0, len(chosen), BATCH):
            for key, cosine in _cosines(snapshot, reader, chosen[start : start + BATCH]):
                lowest[key] = min(cosine, lowest.get(key, 1.0))
        if far := {key: cosine for key, cosine in lowest.items() if cosine < MIN_COSINE}:
            raise _differ(collection, snapshot, far)
        return len(chosen)


def _chosen(snapshot: Snapshot, count: int) -> Ids:
    """Ids of encoded passages: one of each segment, then a second one of each, and so on.

    On a server, those of random documents.
    """
    random = np.random.default_rng()
    if isinstance(snapshot, FolderSnapshot):
        sql = (
            "SELECT p.id FROM passages AS p JOIN documents ON documents.id = p.document "
            "WHERE p.id BETWEEN ? AND ? AND documents.vectors IS NULL"
        )
        rows = snapshot.segments
        ids = [random.permutation(snapshot.store.numbers(sql, row.ends)) for row in rows]
        places = [np.arange(len(of_segment)) for of_segment in ids]
        order = np.argsort(np.concatenate([[], *places]), kind="stable")[:count]
        return np.concatenate([np.empty(0, np.int64), *ids])[order]
    documents = random.permutation(snapshot.ids_after(-1, None, snapshot.count()))
    chosen: list[int] = []
    for start in range(0, len(documents), BATCH):
        if len(chosen) < count:
            keys = keys_of(snapshot, documents[start : start + BATCH].tolist())
            states = snapshot.known(keys).values()
            encoded = [state.id for state in states if state.vectors is None]
            chosen += snapshot.passages(of=encoded).ids.tolist()
    return np.array(chosen[:count], np.int64)


def _cosines(snapshot: Snapshot, reader: PassageReader, ids: Ids) -> list[tuple[str, float]]:
    """The key of each passage's document, and the cosine of the stored and the new vector."""
    _, *columns = (column.tolist() for column in snapshot.passages(ids))
    documents = snapshot.documents(columns[0])
    pairs = [
        (replace(document, origin="verify"), (start, end))
        for document, start, end in zip(documents, *columns[1:], strict=True)
    ]
    encoded = reader.encode(pairs, reader.texts(pairs), lambda _: None)
    stored = snapshot.vectors(ids)
    norms = np.linalg.norm(encoded, axis=1) * np.linalg.norm(stored, axis=1)
    cosines = (encoded * stored).sum(axis=1) / norms
    return [(doc.key, float(c)) for (doc, _), c in zip(pairs, cosines, strict=True)]


def _differ(collection: Backend, snapshot: Snapshot, far: Mapping[str, float]) -> CollectionError:
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
