"""The checks of verify: files, checksums, and that the tables agree."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from searchengine.backends.contract import Backend, Entry, Snapshot
from searchengine.backends.entries import all_entries
from searchengine.backends.filters import sqlite as fields
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import folder_errors
from searchengine.backends.folder.schema import BEHIND, CATCH_UP
from searchengine.backends.folder.snapshot import Snapshot as FolderSnapshot
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.folder.view import open_committed
from searchengine.backends.opening import in_folder, is_url
from searchengine.errors import CollectionError
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.vectors_file import PASSAGES

_UNIT = 5e-3  # distance of a stored vector's length from 1: it is rounded to float16
_TRIES = 20  # segments may be replaced between the opening of a commit and that of its files
_ROWS_READ = 1 << 16  # passages compared at a time
ENCODED = "encoded again"


class Rule(NamedTuple):
    """A rule of the tables of a folder.

    Attributes:
        broken: selects what breaks it: mostly ids of documents.
        action: what a repair does. ENCODED: these documents are to be encoded besides.
        mend: statements of the repair.
    """

    broken: str
    action: str
    mend: tuple[str, ...] = ()


def _is_object(column: str) -> str:
    json = f"typeof({column}) = 'text' AND json_valid({column})"
    return f"(iif({json}, json_type({column}), '') = 'object')"


_METADATA, _SOURCE = _is_object("metadata"), _is_object("source")
_NO_OBJECT = f"NOT {_METADATA} OR source NOT NULL AND NOT {_SOURCE}"
_NO_TEXT = "typeof(title) || typeof(text) <> 'texttext'"
_ROW = "EXISTS (SELECT 1 FROM segments WHERE {} BETWEEN base AND base + rows - 1)"
_DELETE = "DELETE FROM passages WHERE id IN (SELECT passage FROM tombstones)"
_OUTSIDE = (
    "FROM passages JOIN documents ON documents.id = passages.document WHERE "
    # The length of a text ends at a NUL; of bytes, not.
    "start < 0 OR start > end OR end > length(CAST(text AS BLOB))"
)
_ALONE = "FROM passages WHERE document NOT IN (SELECT id FROM documents)"
_PLACED = _ROW.format("passages.id")
COLUMN_RULES = {
    "settings that are no JSON": Rule(
        "SELECT name FROM settings WHERE NOT json_valid(value)",
        "removed",
        ("DELETE FROM settings WHERE NOT json_valid(value)",),
    ),
    "next ids that are used already": Rule(BEHIND, "they are larger than all now", CATCH_UP),
    "documents with metadata that are no JSON object": Rule(
        f"SELECT id FROM documents WHERE {_NO_OBJECT}",
        "those last added are taken, else none",
        (
            f"UPDATE documents SET metadata = CASE WHEN {_METADATA} THEN metadata "
            f"WHEN {_SOURCE} THEN source ELSE '{{}}' END, "
            f"source = iif({_METADATA} AND {_SOURCE}, source, NULL) WHERE {_NO_OBJECT}",
        ),
    ),
    "documents with a title or text that is not text": Rule(
        f"SELECT id FROM documents WHERE {_NO_TEXT}",
        "read as text",
        (
            "UPDATE documents SET title = CAST(title AS TEXT), text = CAST(text AS TEXT) "
            f"WHERE {_NO_TEXT}",
        ),
    ),
    "documents with other values in the index of metadata fields": Rule(
        fields.FAULTS, "built again", fields.REBUILD
    ),
}
"""What breaks a rule of columns and ids → the rule, in the order in which they are mended."""
PASSAGE_RULES = {
    "passages without a row": Rule(
        f"SELECT document FROM passages WHERE NOT {_PLACED}",
        ENCODED,
        (
            f"DELETE FROM passages WHERE NOT {_PLACED}",
            f"DELETE FROM tombstones WHERE NOT {_ROW.format('passage')}",
        ),
    ),
    "passages that are deleted": Rule(
        "SELECT document FROM passages JOIN tombstones ON tombstones.passage = passages.id",
        "kept",
        ("DELETE FROM tombstones WHERE passage IN (SELECT id FROM passages)",),
    ),
    "passages without a document": Rule(
        f"SELECT document {_ALONE}",
        "deleted",
        (f"INSERT INTO tombstones (passage) SELECT id {_ALONE}", _DELETE),
    ),
    "passages outside of their text": Rule(
        f"SELECT document {_OUTSIDE}",
        ENCODED,
        (f"INSERT INTO tombstones (passage) SELECT passages.id {_OUTSIDE}", _DELETE),
    ),
    "documents without a passage": Rule(
        "SELECT id FROM documents WHERE vectors IS NOT x'' "
        "AND id NOT IN (SELECT document FROM passages)",
        ENCODED,
    ),
}
"""The same of passages, whose segments are checked before."""
_ROWS = {
    "segments with rows that are neither passages nor deleted": Rule(
        "SELECT id FROM segments WHERE rows != "
        "(SELECT count(*) FROM passages WHERE id BETWEEN base AND base + rows - 1) + "
        "(SELECT count(*) FROM tombstones WHERE passage BETWEEN base AND base + rows - 1)",
        ENCODED,
    )
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
            if fault := snapshot.word_fault():
                raise snapshot.store.damaged(fault)
        return
    with collection.reading() as snapshot:
        for entries in all_entries(snapshot):
            if fault := _entry_fault(snapshot, entries):
                raise CollectionError(
                    f"{collection.path} is damaged ({fault}); restore the database from a backup, "
                    "or delete the document and add it again"
                )


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
                        with folder_errors(collection.path):
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
    store.works()  # raises for one that makes no sense
    _check_rules(store, COLUMN_RULES)
    if (altered := store.altered()) is not None:
        raise altered_text(store.path.parent, altered)
    _check_rules(store, PASSAGE_RULES | _ROWS)
    encoder = snapshot.settings["encoder"]
    for row, segment in snapshot.segments.items():
        built_by = segment.manifest.provenance.get("encoder"), segment.manifest.dim
        if built_by != (encoder["fingerprint"], encoder["dim"]):
            raise store.damaged(f"in its settings: encoder: is not that of segment {row.id:06d}")
        if _differs(store, row, segment):
            raise store.damaged(f"segment {row.id:06d} has other passages in {PASSAGES}")


def _check_rules(store: Store, rules: Mapping[str, Rule]) -> None:
    """Raise CollectionError for the first rule that is broken."""
    for what, rule in rules.items():
        if count := store.scan(f"SELECT count(*) FROM ({rule.broken})")[0][0]:
            raise store.damaged(f"it has {count} {what}")


def altered_text(path: Path | str, key: str) -> CollectionError:
    """The error for a text that does not have its checksum."""
    present = "" if is_url(path) else f", or encode the present one: searchengine repair {path}"
    return CollectionError(
        f"{path}: the text of {key!r:.80} differs from what was stored; restore a backup, or "
        f"delete the document and add it again{present}"
    )


def _differs(store: Store, row: SegmentRow, segment: Segment) -> bool:
    """Whether passages differ from those in the segment's file."""
    file = segment.passages
    assert file is not None  # a snapshot refuses a segment without one
    for low in range(0, row.rows, _ROWS_READ):
        in_file = file[:, low : low + _ROWS_READ]
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
