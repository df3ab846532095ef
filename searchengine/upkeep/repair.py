"""Repair a damaged collection: texts are in SQLite, so every vector can be encoded again.

The tables are made consistent with each other and with the segments that can be read. Intact
segments stay as they are. One of intact vectors is made again from these; the documents of the
others are encoded into one new segment, while the write lock is held, because another writer could
move the passages meanwhile; readers go on. All is one commit: a killed process changes nothing.

Where SQLite itself finds documents.db damaged, nothing is changed: its own program recovers rows.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from searchengine.backends.filters import fields
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.connections import connect
from searchengine.backends.folder.documents.schema import BEHIND, catch_up, outdated
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.folders import check_name, remove_unnamed
from searchengine.backends.folder.pending import Kind, drop_all, works
from searchengine.backends.folder.view import has_vectors, open_committed
from searchengine.backends.folder.writer import Vectors, Writer, writing
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    EncoderArgument,
    check_built_by,
    load_built_by,
    load_given,
)
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.errors import SegmentError, SegmentFormatError
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.passages_file import PASSAGES
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import encoded, in_batches
from searchengine.ingest.settings import CollectionSettings
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep import verify

_MAX_NAMES = 20  # documents named in a report; the others are counted
_OUTSIDE = (
    "typeof(start) || typeof(end) <> 'integerinteger' OR start < 0 OR start > end "
    "OR end > length(CAST(text AS BLOB))"
)
_PLACED = "EXISTS (SELECT 1 FROM segments AS s WHERE {} BETWEEN s.base AND s.base + s.rows - 1)"


@dataclass(slots=True)
class Report:
    """Messages on the damage, the repairs, and lost data."""

    damage: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """The damage found in the tables, and what remains to be done.

    Attributes:
        report: messages.
        opened: the intact segments.
        restored: the others whose vectors are intact: all else is to be made of these again.
        documents: ids of the documents to encode again.
        counts: numbers of documents, passages and segments checked.
    """

    report: Report = field(default_factory=Report)
    opened: dict[SegmentRow, Segment] = field(default_factory=dict)
    restored: list[SegmentRow] = field(default_factory=list)
    documents: set[int] = field(default_factory=set)
    counts: tuple[int, int, int] = (0, 0, 0)

    def close(self) -> None:
        """Close the segments."""
        for segment in self.opened.values():
            segment.close()


def reconcile(path: Path, store: Store) -> Plan:
    """Make the tables consistent with each other and with the segments that can be read.

    Call it in a transaction of the store. Passages without a row are removed; the plan names the
    documents that have lost one. Pending work is dropped.
    """
    plan = Plan()
    with store.named_errors(), _lenient(store):
        reindexing = any(work.kind is Kind.REINDEX for work in works(store))
        drop_all(store)
        _indexes(store, plan)
        _documents(store, plan)
        segments = _segments(path, store, plan)
        _moved(store, plan)
        _passages(store, plan)
        _spans(store, plan)
        if store.read(BEHIND)[0][0]:
            catch_up(store.connection)
            plan.report.damage.append(f"{store.path.name}: next ids are used already")
            plan.report.repaired.append("the next ids are larger than all that are stored")
        lacking = _numbers(
            store,
            "SELECT id FROM documents WHERE vectors IS NOT x'' "
            "AND id NOT IN (SELECT document FROM passages)",
        )
        new = lacking - plan.documents
        if new:
            _report_damage(plan, store, new, "has no passage", "have no passage")
        plan.documents |= lacking
        _without_encoder(store, plan)
        if reindexing and plan.report.damage:  # without damage, nothing is repaired or dropped
            plan.report.lost.append("the pending reindex was dropped; start it again")
        documents, passages = store.counts()
        plan.counts = documents, passages, segments
        if plan.documents:
            plan.report.repaired.append(f"{len(plan.documents)} documents were encoded again")
    return plan


def _without_encoder(store: Store, plan: Plan) -> None:
    """Take documents with supplied vectors out of the plan: they cannot be encoded again.

    They are kept, with the vectors that are left.
    """
    supplied = plan.documents & _numbers(store, "SELECT id FROM documents WHERE vectors NOT NULL")
    if not supplied:
        return
    plan.documents -= supplied
    intact = _numbers(store, "SELECT document FROM passages")
    for number in supplied:
        # Another checksum than that of any vectors: if they come again, they are written.
        digest = b"incomplete" if number in intact else b""
        sql = "UPDATE documents SET vectors = ? WHERE id = ?"
        store.connection.execute(sql, (digest, number))
    sql = (
        "UPDATE passages SET start = 0, end = (SELECT length(text) FROM documents "
        "WHERE id = passages.document) WHERE id IN (SELECT passages.id FROM passages "
        f"JOIN documents ON documents.id = passages.document WHERE document = ? AND ({_OUTSIDE}))"
    )
    store.connection.executemany(sql, ((number,) for number in supplied))
    plan.report.lost.append(
        f"vectors of {_keys(store, supplied)}, which came with them; add them again with vectors"
    )


def _indexes(store: Store, plan: Plan) -> None:
    complaint = store.index_complaint()
    if complaint is None:
        return
    plan.report.damage.append(f"{store.path.name}: {complaint}")
    for name in store.fields():
        fields.drop_field(store.connection, name)
        fields.index_field(store.connection, name)
    plan.report.repaired.append("the indexes of fields were built again")


def _documents(store: Store, plan: Plan) -> None:
    """Check texts against their digests; remove documents without text."""
    after, altered, empty = -1, [], []
    to_encode: set[int] = set()  # altered, and encoded from its text
    sql = (
        "SELECT id, key, title, text, digest, vectors FROM documents WHERE id > ? "
        "ORDER BY id LIMIT 500"
    )
    while rows := store.read(sql, (after,)):
        for number, key, title, text, digest, vectors in rows:
            document = Document(key, text, title)
            if not document.full_text and not vectors:
                empty.append(number)
            elif document.digest != digest:
                altered.append(number)
                to_encode |= {number} if vectors is None else set()
                store.connection.execute(
                    "UPDATE documents SET title = ?, text = ?, digest = ? WHERE id = ?",
                    (title, text, document.digest, number),
                )
        after = rows[-1][0]
    if altered:
        _report_damage(
            plan,
            store,
            set(altered),
            "has a text that differs from what was stored; it was kept",
            "have texts that differ from what was stored; they were kept",
        )
        plan.documents |= to_encode
    if empty:
        keys = _keys(store, set(empty))
        plan.report.damage.append(f"no text is left of {keys}")
        plan.report.lost.append(f"the text of {keys}")
        Changes(store).remove(empty)


def _segments(path: Path, store: Store, plan: Plan) -> int:
    """Verify every segment; plans what is made again, and removes those without vectors."""
    connection = store.connection
    connection.execute(
        "DELETE FROM segments WHERE typeof(id) || typeof(base) || typeof(rows) "
        "<> 'integerintegerinteger'"
    )
    committed = store.segments()
    shifted = _shifted(store, committed)
    for row in committed:
        try:
            if row in shifted:
                raise SegmentError(f"segment {row.id:06d}: its rows do not match its passages")
            plan.opened[row] = _verified(path, row)
        except SegmentFormatError as error:
            raise CollectionError(f"{error}; nothing was changed") from error
        except (SegmentError, OSError) as error:
            plan.report.damage.append(str(error))
            if row not in shifted and has_vectors(path, row):
                plan.restored.append(row)
                plan.report.repaired.append(f"segment {row.id:06d} was made again from its vectors")
                continue
            sql = "SELECT DISTINCT document FROM passages WHERE id BETWEEN ? AND ?"
            plan.documents |= _numbers(store, sql, row.ends)
            connection.execute("DELETE FROM passages WHERE id BETWEEN ? AND ?", row.ends)
            Changes(store).remove_segments([row])
            plan.report.repaired.append(f"segment {row.id:06d} was replaced")
    plan.documents &= _numbers(store, "SELECT id FROM documents")
    return len(committed)


def _shifted(store: Store, committed: Sequence[SegmentRow]) -> set[SegmentRow]:
    """Segments with rows that cannot be assigned to passages.

    They overlap another segment, or lack passages while there are passages without a row. If
    passages are merely lost, the others keep their rows.
    """
    shifted = set()
    for before, row in pairwise(committed):
        if row.base <= before.ends[1]:
            shifted |= {before, row}
    ids = "SELECT id FROM passages UNION SELECT passage FROM tombstones"
    unplaced = f"SELECT count(*) FROM ({ids}) AS p WHERE NOT {_PLACED.format('p.id')}"
    if store.read(unplaced)[0][0]:
        count = f"SELECT count(*) FROM ({ids}) WHERE id BETWEEN ? AND ?"
        shifted |= {row for row in committed if store.read(count, row.ends)[0][0] != row.rows}
    return shifted


def _verified(path: Path, row: SegmentRow) -> Segment:
    """Open a segment and read all of it. Raises SegmentError and OSError."""
    segment = open_committed(path, row)
    for _ in segment.verified():  # the vectors, the only file that was not read
        pass
    return segment


def _passages(store: Store, plan: Plan) -> None:
    """Repair passages without a row, a document or valid offsets, and rows without a passage."""
    connection, placed = store.connection, _PLACED.format("passages.id")
    for where, singular, plural in (
        (f"NOT {placed}", "has a passage without a row", "have passages without a row"),
        (_OUTSIDE, "has a passage outside of its text", "have passages outside of their text"),
    ):
        sql = (
            "SELECT DISTINCT document FROM passages JOIN documents "
            f"ON documents.id = passages.document WHERE {where}"
        )
        wrong = _numbers(store, sql)
        if wrong:
            _report_damage(plan, store, wrong, singular, plural)
            plan.documents |= wrong
    connection.execute(f"DELETE FROM passages WHERE NOT {placed}")
    connection.execute(f"DELETE FROM tombstones WHERE NOT {_PLACED.format('passage')}")
    orphaned = "document NOT IN (SELECT id FROM documents)"
    _count(plan, connection, f"DELETE FROM passages WHERE {orphaned}", "passages of no document")
    sql = "DELETE FROM tombstones WHERE passage IN (SELECT id FROM passages)"
    _count(plan, connection, sql, "passages that were marked as deleted")
    unknown = []
    for row in (*plan.opened, *plan.restored):
        sql = (
            "SELECT id FROM passages WHERE id BETWEEN ? AND ? UNION ALL "
            "SELECT passage FROM tombstones WHERE passage BETWEEN ? AND ?"
        )
        known = store.numbers(sql, (*row.ends, *row.ends))
        unknown += np.setdiff1d(np.arange(row.base, row.base + row.rows), known).tolist()
    if unknown:
        plan.report.damage.append(f"{len(unknown)} rows of segments have no passage")
        plan.report.repaired.append(f"{len(unknown)} rows without a passage were marked as deleted")
    for number in unknown:
        # The passages of a document follow each other: its neighbours may be of the same document.
        sql = "SELECT document FROM passages WHERE id IN (?, ?)"
        plan.documents |= _numbers(store, sql, (number - 1, number + 1))
    connection.executemany("INSERT INTO tombstones (passage) VALUES (?)", ((i,) for i in unknown))


def _moved(store: Store, plan: Plan) -> None:
    """Remove passages that are of another document in their segment's file; encode both again."""
    documents = _numbers(store, "SELECT id FROM documents")
    for row, segment in plan.opened.items():
        for passage, *owners in verify.differing(store, row, segment).tolist():
            if owners[0] != owners[1] and owners[0] in documents:
                store.connection.execute("DELETE FROM passages WHERE id = ?", (passage,))
                plan.documents |= {*owners} & documents


def _spans(store: Store, plan: Plan) -> None:
    """Report segments whose passages files have other offsets than the table, which counts."""
    for row, segment in plan.opened.items():
        if set(verify.differing(store, row, segment)[:, 1].tolist()) - plan.documents:
            plan.report.damage.append(f"segment {row.id:06d} has other passages in {PASSAGES}")
            plan.report.repaired.append(f"segment {row.id:06d} was written again")


def _count(plan: Plan, connection: Any, sql: str, what: str) -> None:
    removed = connection.execute(sql).rowcount
    if removed:
        plan.report.damage.append(f"{removed} {what}")
        plan.report.repaired.append(f"{removed} {what} were removed")


def _numbers(store: Store, sql: str, parameters: Sequence[Any] = ()) -> set[int]:
    return {row[0] for row in store.read(sql, parameters) if isinstance(row[0], int)}


def _report_damage(plan: Plan, store: Store, ids: set[int], singular: str, plural: str) -> None:
    plan.report.damage.append(f"{_keys(store, ids)} {singular if len(ids) == 1 else plural}")


def _keys(store: Store, ids: set[int]) -> str:
    shown = sorted(ids)[:_MAX_NAMES]
    marks = ", ".join("?" * len(shown))
    sql = f"SELECT key FROM documents WHERE id IN ({marks}) ORDER BY id"
    keys = ", ".join(repr(row[0]) for row in store.read(sql, shown))
    more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
    return f"{'document' if len(ids) == 1 else 'documents'} {keys}{more}"


@contextmanager
def _lenient(store: Store) -> Iterator[None]:
    """Read texts with invalid UTF-8, with replacement characters."""
    before = store.connection.text_factory
    store.connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        yield
    finally:
        store.connection.text_factory = before


_BATCH = 512  # documents encoded at a time


@dataclass(frozen=True, slots=True)
class Repair:
    """The report of a repair.

    Attributes:
        path: the collection.
        dry_run: whether changes were only planned.
        documents, passages, segments: numbers checked.
        damage, repaired, lost: messages on the damage, the repairs, and lost data.
        encoded: documents encoded again; in a dry run, documents to encode.
        whole: whether `verify` passes now.
        complaint: the error of `verify`; None if it passes.
    """

    path: str
    dry_run: bool
    documents: int
    passages: int
    segments: int
    damage: tuple[str, ...]
    repaired: tuple[str, ...]
    lost: tuple[str, ...]
    encoded: int
    whole: bool
    complaint: str | None


def repair(
    path: str | Path,
    encoder: EncoderArgument | None = None,
    *,
    dry_run: bool = False,
    wait: float = 0,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Check a whole collection and repair the damage.

    Args:
        path: the collection's folder; its segments need not be readable.
        encoder: as for SearchEngine.open. It is loaded only if something must be encoded.
        dry_run: change nothing.
        wait: seconds to wait for another writer before CollectionBusy.
        runtime: what runs the encoder.
        progress: progress callback: step, documents just encoded, documents in all.

    Raises:
        CollectionError: there is no collection, or SQLite finds documents.db damaged.
        CollectionBusy: another process is writing. EncoderMismatch: another encoder.
    """
    check_name(path := Path(path).absolute())
    database = path / "documents.db"
    if not database.is_file():
        raise CollectionError(f"{database} is missing, so {path} is not a collection")
    _check_database(database, dry_run)
    plan = _trial(path, database)
    if plan.report.damage and not dry_run:
        plan = _mend(path, database, encoder, bool(plan.documents), wait, runtime, progress)
    if dry_run:
        plan.report.repaired.clear()
    return _result(path, plan, dry_run)


def _check_database(path: Path, read_only: bool) -> None:
    """Raise CollectionError if SQLite finds a damage in a database.

    `read_only`: SQLite does not fold its log into the file either.
    """
    try:
        with closing(connect(path, "ro" if read_only else "rw")) as connection:
            outdated(connection, str(path))  # refuses a file of another version
            lines = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            if not read_only:
                connection.execute("PRAGMA journal_mode = wal")  # a recovered file has another
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise CollectionError(f"{path} cannot be read: {error}") from error
        lines = [str(error)]
    wrong = [line for line in lines if line != "ok"]
    if wrong:
        raise _torn(path, wrong[0])


def _is_damage(error: BaseException | None) -> bool:
    """Whether an error of SQLite means a damaged file, not a full disk or a lock."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _torn(path: Path, how: str) -> CollectionError:
    return CollectionError(
        f"{path} is damaged ({how}), and nothing was changed; restore the collection from a "
        f"backup, or recover what can be read: sqlite3 {path} .recover | sqlite3 new.db "
        "(docs/reliability.md: A damaged documents.db)"
    )


def _result(path: Path, plan: Plan, dry_run: bool) -> Repair:
    complaint = None
    try:
        with closing(Collection(path)) as collection:
            verify.verify(collection)
    except CollectionBusy:
        raise
    except CollectionError as error:
        complaint = str(error)
    return Repair(
        str(path),
        dry_run,
        *plan.counts,
        tuple(plan.report.damage),
        tuple(plan.report.repaired),
        tuple(plan.report.lost),
        len(plan.documents),
        complaint is None,
        complaint,
    )


def _trial(path: Path, database: Path) -> Plan:
    """Plan the repair on a copy of the tables: takes no lock and changes nothing."""
    try:
        with TemporaryDirectory() as scratch:
            copy = Path(scratch) / "documents.db"
            with Store(database, readers=1) as store:
                store.copy_to(copy)
            with Store(copy) as store, store.transaction():
                plan = reconcile(path, store)
            plan.close()
    except CollectionError as error:
        if _is_damage(error.__cause__):
            raise _torn(database, str(error.__cause__)) from error
        raise
    return plan


def _mend(
    path: Path,
    database: Path,
    encoder: EncoderArgument | None,
    needs_encoder: bool,
    wait: float,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> Plan:
    with Store(database) as store:
        reader = None

        def load_reader() -> PassageReader:
            settings = store.settings()
            described = settings["encoder"]
            if encoder is None:
                loaded = load_built_by(described, path, runtime)
            else:
                loaded = load_given(encoder, runtime)
            check_built_by(loaded, described, path)
            cut = CollectionSettings.from_stored(settings).passages
            return PassageReader(loaded, cut, settings)

        if needs_encoder:
            reader = load_reader()  # before the lock is taken: it can take seconds
        (path / "segments").mkdir(exist_ok=True)
        opened: dict[SegmentRow, Segment] = {}
        with writing(path, store, opened.__getitem__, wait) as writer:
            plan = reconcile(path, store)
            for row in plan.restored:
                writer.restore(row)
            opened.update(plan.opened | writer.opened)
            if plan.documents:
                if reader is None or reader.settings != store.settings():  # changed meanwhile
                    reader = load_reader()
                vectors = _encoded(writer, plan, reader, progress)
                if (first := next(vectors, None)) is not None:
                    writer.append(chain([first], vectors))
            for row, segment in plan.opened.items():
                if verify.differing(store, row, segment).size:
                    writer.merge([row])
        plan.opened |= writer.opened
        plan.close()
        with suppress(CollectionBusy):
            remove_unnamed(path, store, writer.before)
    return plan


def _encoded(
    writer: Writer, plan: Plan, reader: PassageReader, progress: Progress | None
) -> Iterator[Vectors]:
    """Write the passages of the documents again, and yield their vectors."""
    passage = writer.changes.next_passage()
    ids = sorted(plan.documents)
    texts = (writer.store.documents(batch) for batch in in_batches(ids, _BATCH))
    for batch, block in zip(in_batches(ids, _BATCH), encoded(reader, texts), strict=True):
        documents = dict(zip(batch, block.documents, strict=True))
        writer.changes.cut_again(documents, block.spans, passage)
        passage += sum(map(len, block.spans))
        yield from block.batches
        if progress is not None:
            progress("Encoding", len(batch), len(ids))
