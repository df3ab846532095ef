"""Check a collection (`verify`), and read all of it into the system's cache (`warm`)."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from searchengine.errors import CollectionError
from searchengine.storage.collection import Collection
from searchengine.storage.documents.store import Store
from searchengine.storage.snapshot import Snapshot

_AT_ONCE = 1 << 24  # bytes read to warm up

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
        check_pages(snapshot.store, path, "integrity_check")
        for sql, what in _INVARIANTS.items():
            count = snapshot.store.scan(sql)[0][0]
            if count:
                raise damaged(path, f"it has {count} {what}")
        check_texts(snapshot.store)
        # FTS5 checks itself by a statement that takes the write lock: on a copy, it can.
        with TemporaryDirectory() as scratch:
            copy = Path(scratch) / "documents.db"
            snapshot.store.copy_to(copy)
            with Store(copy) as own:
                complaint = own.index_complaint()
        if complaint is not None:
            raise damaged(path, " ".join(complaint.split()))
        for row, segment in snapshot.segments.items():
            with collection.named_segment(row):
                segment.verify()


def check_pages(store: Store, path: Path, pragma: str) -> None:
    """Have SQLite check the file of a store; what is wrong with it is said of `path`."""
    complaint = store.scan(f"PRAGMA {pragma}")[0][0]
    if complaint != "ok":
        raise damaged(path, " ".join(complaint.split()))


def check_texts(store: Store) -> None:
    altered = store.altered()
    if altered is not None:
        raise CollectionError(
            f"{store.path}: the text of {altered!r} is not the one that was stored; "
            "restore it from a copy, add the document again, or encode the text that is there "
            f"with: searchengine repair {store.path.parent}"
        )


def damaged(path: Path, how: str) -> CollectionError:
    return CollectionError(
        f"{path} is damaged ({how}); restore it from a copy, or mend it with: "
        f"searchengine repair {path.parent}"
    )
