"""The checks of verify: files, checksums, and that the tables agree."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from searchengine.backends.contract import Backend, Ids
from searchengine.backends.entries import all_entries
from searchengine.backends.filters import sqlite as fields
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import folder_errors, open_committed
from searchengine.backends.folder.schema import BEHIND, CATCH_UP
from searchengine.backends.folder.snapshot import Snapshot as FolderSnapshot
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.opening import in_folder, is_url
from searchengine.errors import CollectionError
from searchengine.indexer.storage.files import PASSAGES

_TRIES = 20  # segments may be replaced between the opening of a commit and that of its files
_ROWS_READ = 1 << 16  # passages compared at a time


_METADATA, _SOURCE = (
    f"(iif(typeof({column}) = 'text' AND json_valid({column}), json_type({column}), '') = 'object')"
    for column in ("metadata", "source")
)
_NO_OBJECT = f"NOT {_METADATA} OR source NOT NULL AND NOT {_SOURCE}"
UNPLACED = "NOT EXISTS (SELECT 1 FROM segments WHERE passages.id BETWEEN base AND base + rows - 1)"
"""Of passages: no segment has a row for them."""
COLUMN_RULES: dict[str, tuple[str, str, Sequence[str]]] = {
    "documents with metadata that are no JSON object": (
        f"SELECT id FROM documents WHERE {_NO_OBJECT}",
        "those last added are taken, else none",
        [
            f"UPDATE documents SET metadata = CASE WHEN {_METADATA} THEN metadata "
            f"WHEN {_SOURCE} THEN source ELSE '{{}}' END, source = NULL WHERE {_NO_OBJECT}"
        ],
    ),
    "passages that are deleted": (
        "SELECT id FROM passages WHERE id IN (SELECT passage FROM tombstones)", "kept",
        ["DELETE FROM tombstones WHERE passage IN (SELECT id FROM passages)"],
    ),
    "next ids that are used already": (BEHIND, "larger than all now", CATCH_UP),
    "documents with other values in the index of metadata fields": (
        fields.FAULTS, "built again", fields.REBUILD,
    ),
}  # fmt: skip
"""What there must not be → selects it; how a repair mends it, and by which statements."""
PASSAGE_RULES = {
    "passages without a row": f"SELECT document FROM passages WHERE {UNPLACED}",
    "passages without a document": (
        "SELECT document FROM passages WHERE document NOT IN (SELECT id FROM documents)"
    ),
    "documents without a passage": (
        "SELECT id FROM documents WHERE vectors IS NOT x'' "
        "AND id NOT IN (SELECT document FROM passages)"
    ),
}
"""What there must not be → selects the documents, which a repair encodes again."""


def verify(collection: Backend) -> None:
    """Check checksums and tables, and that they agree. Raises CollectionError on a fault."""
    if not is_url(collection.path):
        folder = in_folder(collection)

        def check(row: SegmentRow) -> None:
            with open_committed(folder.path, row) as segment:
                for _ in segment.verified():  # raises SegmentError for a file that was altered
                    pass

        with settled(folder, check) as snapshot:
            check_pages(snapshot.store, "integrity_check")
            check_tables(snapshot)
        return
    with collection.reading() as commit:
        for entries in all_entries(commit):
            known = commit.known([entry.document.key for entry in entries])
            for entry in entries:
                if known[entry.document.key].digest != entry.document.digest:
                    raise altered_text(collection.path, entry.document.key)


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


def check_pages(store: Store, pragma: str) -> None:
    """Have SQLite check the file of a store. Raises CollectionError."""
    if (complaint := store.scan(f"PRAGMA {pragma}")[0][0]) != "ok":
        raise store.damaged(" ".join(complaint.split()))


def check_tables(snapshot: FolderSnapshot) -> None:
    """Check that tables, texts and the passages of segments agree. Raises CollectionError."""
    store = snapshot.store
    store.works()  # raises for one that makes no sense
    _check_rules(store, {what: broken for what, (broken, *_) in COLUMN_RULES.items()})
    for _, document in store.altered():
        raise altered_text(store.path.parent, document.key)
    _check_rules(store, PASSAGE_RULES)
    encoder = snapshot.settings["encoder"]
    for row, segment in snapshot.segments.items():
        built_by = segment.manifest.provenance.get("encoder"), segment.manifest.dim
        if built_by != (encoder["fingerprint"], encoder["dim"]):
            raise store.damaged(f"in its settings: encoder: is not that of segment {row.id:06d}")
        assert segment.passages is not None  # a snapshot refuses a segment without them
        if differing_rows(store, row, segment.passages).size:
            raise store.damaged(f"segment {row.id:06d} has other passages in {PASSAGES}")


def _check_rules(store: Store, rules: Mapping[str, str]) -> None:
    """Raise CollectionError for the first rule that is broken."""
    for what, broken in rules.items():
        if count := store.scan(f"SELECT count(*) FROM ({broken})")[0][0]:
            raise store.damaged(f"it has {count} {what}")


def altered_text(path: Path | str, key: str) -> CollectionError:
    """The error for a text that does not have its checksum."""
    repair = f"searchengine repair {shlex.quote(str(path))}"
    present = "" if is_url(path) else f", or encode the present one: {repair}"
    return CollectionError(
        f"{path}: the text of {key!r:.80} differs from what was stored; restore a backup, or "
        f"delete the document and add it again{present}"
    )


def differing_rows(store: Store, row: SegmentRow, file: Ids) -> Ids:
    """The rows of a segment, (n,), whose passages are not those of its file, (3, rows).

    Deleted ones do not count, those that are missing do.
    """
    differing = [np.zeros(0, np.int64)]
    for low in range(0, row.rows, _ROWS_READ):
        rows = np.arange(low, min(low + _ROWS_READ, row.rows))
        differing.append(rows[(store.columns(rows + row.base) != file[:, rows]).any(axis=0)])
    return np.setdiff1d(np.concatenate(differing), store.dead(row), assume_unique=True)
