"""Repair a damaged collection: texts are in SQLite, so every vector can be encoded again.

The tables are made consistent with each other and with the segments that can be read. Intact
segments stay as they are. One of intact vectors is made again from these; the documents of the
others are encoded into one new segment, while the write lock is held, because another writer could
move the passages meanwhile; readers go on. All is one commit: a killed process changes nothing.

Where SQLite itself finds documents.db damaged, nothing is changed: its own program recovers rows.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from searchengine.backends.contract import Ids
from searchengine.backends.filters import fields
from searchengine.backends.folder import pending
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.database import connect, exhausted
from searchengine.backends.folder.folders import check_name, folder_of, remove_unnamed
from searchengine.backends.folder.schema import BEHIND, catch_up, outdated
from searchengine.backends.folder.snapshot import setting_faults
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.backends.folder.view import has_vectors, open_committed
from searchengine.backends.folder.writer import Vectors, Writer, writing
from searchengine.backends.mode import Mode
from searchengine.corpus.analyzer import DEFAULT, Tokenizer
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
from searchengine.indexer.search.segment_files import read_manifest
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.passages_file import PASSAGES, RowPassages
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import encoded, in_batches
from searchengine.ingest.settings import CollectionSettings
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.verify import MALFORMED, NO_METADATA, OUTSIDE, differing, verify

_BATCH = 512  # documents read or encoded at a time
_MAX_NAMES = 20  # documents named in a report; the others are counted
_NO_INTEGERS = "typeof(document) || typeof(start) || typeof(end) <> 'integerintegerinteger'"
_PLACED = "EXISTS (SELECT 1 FROM segments AS s WHERE {} BETWEEN s.base AND s.base + s.rows - 1)"


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
    if plan.damage and not dry_run:
        plan = _mend(path, plan, encoder, wait, runtime, progress)
    complaint = None
    try:
        with closing(Collection(path)) as collection:
            verify(collection)
    except CollectionError as error:
        if isinstance(error, CollectionBusy) or exhausted(error):
            raise
        complaint = str(error)
    return Repair(
        str(path),
        dry_run,
        *plan.counts,
        tuple(plan.damage),
        () if dry_run else tuple(plan.repaired),
        tuple(plan.lost),
        len(plan.documents),
        complaint is None,
        complaint,
    )


def _check_database(path: Path, read_only: bool) -> None:
    """Raise CollectionError if SQLite finds a damage in a database.

    `read_only`: SQLite does not fold its log into the file either.
    """
    try:
        with closing(connect(path, "ro" if read_only else "rw")) as connection:
            outdated(connection, path)  # refuses a file of another version
            lines = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            if not read_only:
                connection.execute("PRAGMA journal_mode = wal")  # a recovered file has another
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise CollectionError(f"{path} cannot be read: {exhausted(error) or error}") from error
        lines = [str(error)]
    if wrong := [line for line in lines if line != "ok"]:
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


def _trial(path: Path, database: Path) -> "Plan":
    """Plan the repair on a copy of the tables: takes no lock and changes nothing."""
    try:
        with TemporaryDirectory() as scratch:
            copy = Path(scratch) / "documents.db"
            with Store(database, readers=1) as store:
                store.copy_to(copy)
            with Store(copy) as store, store.transaction():
                plan = Plan.of(path, store)
            plan.close()
    except CollectionError as error:
        if _is_damage(error.__cause__):
            raise _torn(database, str(error.__cause__)) from error
        raise
    return plan


def _mend(
    path: Path,
    trial: "Plan",
    encoder: EncoderArgument | None,
    wait: float,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> "Plan":
    def load_reader(settings: Mapping[str, Any]) -> PassageReader:
        described = settings["encoder"]
        if encoder is None:
            loaded = load_built_by(described, path, runtime)
        else:
            loaded = load_given(encoder, runtime)
        check_built_by(loaded, described, path)
        return PassageReader(loaded, settings)

    reader = load_reader(trial.settings) if trial.documents else None  # it can take seconds
    (path / "segments").mkdir(exist_ok=True)
    opened: dict[SegmentRow, Segment] = {}
    with Store(path / "documents.db") as store:
        with writing(path, store, opened.__getitem__, wait) as writer:
            plan = Plan.of(path, store)
            for row in plan.restored:
                writer.restore(row)
            opened.update(plan.opened | writer.opened)
            if plan.documents:
                if reader is None or reader.settings != plan.settings:  # changed meanwhile
                    reader = load_reader(plan.settings)
                vectors = _encoded(writer, plan, reader, progress)
                if (first := next(vectors, None)) is not None:
                    writer.append(chain([first], vectors))
            for row, segment in plan.opened.items():
                if differing(store, row, segment).size:
                    writer.merge([row])
        plan.opened |= writer.opened
        plan.close()
        with suppress(CollectionBusy):
            remove_unnamed(path, store, writer.before)
    return plan


def _encoded(
    writer: Writer, plan: "Plan", reader: PassageReader, progress: Progress | None
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


@dataclass(slots=True)
class Plan:
    """The damage found in the tables, and what remains to be done.

    Attributes:
        path, store: the collection's folder, and the tables, in a transaction.
        damage, repaired, lost: messages.
        opened: the intact segments.
        restored: the others whose vectors are intact: all else is to be made of these again.
        documents: ids of the documents to encode again.
        settings: the collection settings.
        counts: numbers of documents, passages and segments checked.
    """

    path: Path
    store: Store
    damage: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    opened: dict[SegmentRow, Segment] = field(default_factory=dict)
    restored: list[SegmentRow] = field(default_factory=list)
    documents: set[int] = field(default_factory=set)
    settings: dict[str, Any] = field(default_factory=dict)
    counts: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, path: Path, store: Store) -> "Plan":
        """Make the tables consistent with each other and with the segments that can be read.

        Passages without a row are removed; the plan names the documents that have lost one.
        """
        plan = cls(path, store)
        with store.named_errors(), _lenient(store):
            plan._end_works()
            plan._mend_metadata()
            plan._mend_fields()
            plan._mend_texts()
            segments = plan._open_segments()
            plan._mend_settings()
            plan._mend_passages()
            if store.read(BEHIND)[0][0]:
                catch_up(store.connection)
                plan._note(
                    "next ids are used already", "the next ids are larger than all that are stored"
                )
            sql = "SELECT id FROM documents WHERE vectors IS NOT x'' AND id NOT IN "
            lacking = plan._ids(f"{sql}(SELECT document FROM passages)")
            plan._name(lacking - plan.documents, "no passage")
            plan.documents |= lacking
            plan._keep_supplied()
            plan.counts = *store.counts(), segments
            if plan.documents:
                plan.repaired.append(f"{len(plan.documents)} documents were encoded again")
        return plan

    def close(self) -> None:
        """Close the segments."""
        for segment in self.opened.values():
            segment.close()

    def _end_works(self) -> None:
        """Drop pending work, but for a reindex, which is a collection of its own."""
        for number, kind, folder, details in self.store.read(
            "SELECT id, kind, folder, details FROM pending"
        ):
            try:
                work = pending.Work(number, pending.Kind(kind), folder, json.loads(details))
                pending.described(self.path, work)
            except (KeyError, TypeError, ValueError):
                self._note(f"pending work {number} of the kind {kind!r}", "it was dropped")
            else:
                if work.kind is pending.Kind.REINDEX:
                    continue
            self._change("DELETE FROM pending WHERE id = ?", (number,))

    def _mend_metadata(self) -> None:
        """Mend columns that are not text, and metadata that are no JSON object."""
        wrong = self._ids(f"SELECT id FROM documents WHERE {MALFORMED}")
        if not wrong:
            return
        indexed = self.store.fields()
        for name in indexed:  # their triggers read the metadata
            fields.drop_field(self.store.connection, name)
        self._name(wrong, "a title or text that is not text, or metadata that are no JSON object")
        self._change(
            "UPDATE documents SET key = CAST(key AS TEXT), title = CAST(title AS TEXT), "
            f"text = CAST(text AS TEXT) WHERE {MALFORMED}"
        )
        if self._ids(f"SELECT id FROM documents WHERE {MALFORMED}"):
            if without := self._ids(f"SELECT id FROM documents WHERE {NO_METADATA}"):
                self.lost.append(f"metadata of {self._keys(without)}")
            valid = "json_valid(ifnull(source, 'x')) AND json_type(source) = 'object'"
            self._change(
                f"UPDATE documents SET metadata = CASE WHEN NOT ({NO_METADATA}) THEN metadata "
                f"WHEN {valid} THEN source ELSE '{{}}' END, source = NULL WHERE {MALFORMED}"
            )
        for name in indexed:
            fields.index_field(self.store.connection, name)

    def _mend_fields(self) -> None:
        if complaint := self.store.index_complaint():
            self._note(complaint, "the indexes of fields were built again")
            for name in self.store.fields():
                fields.drop_field(self.store.connection, name)
                fields.index_field(self.store.connection, name)

    def _mend_texts(self) -> None:
        """Check texts against their digests; remove documents without text."""
        after, altered, empty = -1, set[int](), set[int]()
        sql = (
            "SELECT id, key, title, text, digest, vectors FROM documents WHERE id > ? "
            f"ORDER BY id LIMIT {_BATCH}"
        )
        update = "UPDATE documents SET title = ?, text = ?, digest = ? WHERE id = ?"
        while rows := self.store.read(sql, (after,)):
            for number, key, title, text, digest, vectors in rows:
                document = Document(key, text, title)
                if not document.full_text and not vectors:
                    empty.add(number)
                elif document.digest != digest:
                    altered.add(number)
                    self.documents |= {number} if vectors is None else set()
                    self._change(update, (title, text, document.digest, number))
            after = rows[-1][0]
        self._name(altered, "a text that differs from what was stored; it was kept")
        if empty:
            self.damage.append(f"no text is left of {self._keys(empty)}")
            self.lost.append(f"the text of {self._keys(empty)}")
            Changes(self.store).remove(sorted(empty))

    def _open_segments(self) -> int:
        """Verify every segment; plans what is made again, and removes those without vectors."""
        self._change(
            "DELETE FROM segments WHERE typeof(id) || typeof(base) || typeof(rows) "
            "<> 'integerintegerinteger'"
        )
        committed = self.store.segments()
        overlap = [(a, b) for a, b in pairwise(committed) if b.base <= a.ends[1]]
        shifted = {row for pair in overlap for row in pair}
        for row in committed:
            try:
                if row in shifted:
                    raise SegmentError(f"segment {row.id:06d}: it has the rows of another one")
                segment = self.opened[row] = open_committed(self.path, row)
                for _ in segment.verified():
                    pass
            except SegmentFormatError as error:
                raise CollectionError(f"{error}; nothing was changed") from error
            except (SegmentError, OSError) as error:
                self.opened.pop(row, None)
                if limit := exhausted(error):  # no damage
                    raise CollectionError(f"{self.path}: {limit}") from error
                if row not in shifted and has_vectors(self.path, row):
                    self.restored.append(row)
                    self._note(error, f"segment {row.id:06d} was made again from its vectors")
                    continue
                sql = "SELECT DISTINCT document FROM passages WHERE id BETWEEN ? AND ?"
                self.documents |= self._ids(sql, row.ends)
                self._change("DELETE FROM passages WHERE id BETWEEN ? AND ?", row.ends)
                Changes(self.store).remove_segments([row])
                self._note(error, f"segment {row.id:06d} was replaced")
        self.documents &= self._ids("SELECT id FROM documents")
        return len(committed)

    def _mend_settings(self) -> None:
        """Replace settings that make no sense by what segments say, or by the defaults."""
        settings, faults = self.settings, dict[str, str]()
        for name, value in self.store.read("SELECT name, value FROM settings"):
            try:
                settings[name] = json.loads(value)
            except (TypeError, ValueError) as error:
                faults[name] = str(error)
        faults |= setting_faults(settings)
        if not faults:
            try:
                CollectionSettings.from_stored(settings)
            except CollectionError as error:
                faults["passages"] = str(error)
        if not faults:
            return
        defaults, changes = self._defaults(settings.get("encoder")), Changes(self.store)
        if lost := {"encoder", "index"} & faults.keys() - defaults.keys():
            raise CollectionError(
                f"{self.store.path} has lost its setting {min(lost)}, and no segment can be read "
                "that shows it; restore the folder from a backup, or index the documents again"
            )
        for name, fault in faults.items():
            settings.pop(name, None)
            changes.unset(name)
            if name in defaults:
                settings[name] = defaults[name]
                changes.set(name, defaults[name])
            now = f"is {defaults[name]} now" if name in defaults else "was removed"
            self._note(f"setting {name}: {fault}", f"setting {name} {now}")

    def _defaults(self, former: Any) -> dict[str, Any]:
        """The settings that segments show, or of a new collection. `former`: the encoder's."""
        words = [segment.words for segment in self.opened.values()]
        terms = [each.notes["terms"].partition(" ")[0] for each in words if each is not None]
        tokenizer = max(terms, default=Tokenizer.NONE if words else str(DEFAULT))
        cut = "SELECT 1 FROM passages GROUP BY document HAVING count(*) > 1 LIMIT 1"
        defaults = {
            "tokenizer": tokenizer,
            "passages": asdict(PassageConfig()) if self.store.read(cut) else None,
            "mode": Mode.VECTOR if tokenizer == Tokenizer.NONE else Mode.HYBRID,
        }
        if rows := sorted((*self.opened, *self.restored), key=lambda row: row.rows):
            manifest, _ = read_manifest(folder_of(self.path, rows[-1].id))
            encoder = {"source": None, **(former if isinstance(former, dict) else {})}
            encoder |= {"dim": manifest.dim, "fingerprint": manifest.provenance["encoder"]}
            return defaults | {"encoder": encoder, "index": manifest.config.as_dict()}
        return defaults

    def _mend_passages(self) -> None:
        """Have the table of passages follow the files of the segments; encode what has no row."""
        documents, placed = self._ids("SELECT id FROM documents"), _PLACED.format("passages.id")
        wrong = self._ids(f"SELECT DISTINCT document FROM passages WHERE NOT {placed}") & documents
        self._name(wrong, "a passage without a row")
        self.documents |= wrong
        self._change(f"DELETE FROM passages WHERE NOT {placed} OR {_NO_INTEGERS}")
        self._change(f"DELETE FROM tombstones WHERE NOT {_PLACED.format('passage')}")
        marked = "DELETE FROM tombstones WHERE passage IN (SELECT id FROM passages)"
        if count := self._change(marked):
            self._note(f"{count} passages are marked as deleted", f"{count} marks were removed")
        for row in (*self.opened, *self.restored):
            self._mend_rows(row, np.array(sorted(documents), np.int64))
        wrong = self._ids(
            "SELECT DISTINCT document FROM passages JOIN documents "
            f"ON documents.id = passages.document WHERE {OUTSIDE}"
        )
        self._name(wrong - self.documents, "a passage outside of its text")
        self.documents |= wrong

    def _mend_rows(self, row: SegmentRow, documents: Ids) -> None:
        """Compare the passages of a segment with its file, which tells them of each row."""
        ids, name = np.arange(row.base, row.base + row.rows), f"segment {row.id:06d}"
        stored, live = self.store.columns(ids), np.ones(row.rows, bool)
        live[self.store.dead(row)] = False
        lost, file = live & (stored[0] < 0), self._file(row)
        if file is None:  # damaged too: nothing tells whose rows are lost
            file, live = stored, live & ~lost.any()
        known = np.isin(file[0], documents)
        other = live & known & ~lost & (stored != file).any(axis=0)
        gone = lost | live & ~known | (stored[0] >= 0) & ~live
        sql = "UPDATE passages SET document = ?, start = ?, end = ? WHERE id = ?"
        columns = zip(*file[:, other].tolist(), ids[other].tolist(), strict=True)
        self.store.connection.executemany(sql, columns)
        for number in ids[gone].tolist():
            self._change("DELETE FROM passages WHERE id = ?", (number,))
            self._change("INSERT INTO tombstones (passage) VALUES (?)", (number,))
        self.documents |= {*file[0, gone & known].tolist()}
        if other.any():
            self._note(
                f"{name} has other passages in {PASSAGES}", f"{other.sum()} passages are as there"
            )
        if gone.any():
            count = f"{gone.sum()} rows"
            self._note(f"{name}: {count} have no passage", f"{count} were marked as deleted")

    def _file(self, row: SegmentRow) -> Ids | None:
        """The passages file of a segment that is kept: (3, rows); None: it is damaged."""
        if row in self.opened:
            file = self.opened[row].passages
            return None if file is None else file.columns
        folder = folder_of(self.path, row.id)
        with suppress(SegmentError, OSError, KeyError):
            read_manifest(folder)[0].files[PASSAGES].check(folder / PASSAGES)
            return RowPassages.open(folder / PASSAGES, row.rows).columns
        return None

    def _keep_supplied(self) -> None:
        """Take documents with supplied vectors out of the plan: they cannot be encoded again.

        They are kept, with the vectors that are left.
        """
        sql = "SELECT id FROM documents WHERE vectors NOT NULL"
        if not (supplied := self.documents & self._ids(sql)):
            return
        self.documents -= supplied
        intact = self._ids("SELECT document FROM passages")
        for number in supplied:
            # Another checksum than that of any vectors: if they come again, they are written.
            digest = b"incomplete" if number in intact else b""
            self._change("UPDATE documents SET vectors = ? WHERE id = ?", (digest, number))
            self._change(
                "UPDATE passages SET start = 0, end = (SELECT length(text) FROM documents "
                "WHERE id = passages.document) WHERE id IN (SELECT passages.id FROM passages "
                "JOIN documents ON documents.id = passages.document "
                f"WHERE document = ? AND ({OUTSIDE}))",
                (number,),
            )
        keys = self._keys(supplied)
        self.lost.append(f"vectors of {keys}, which came with them; add them again with vectors")

    def _note(self, damage: object, repaired: str) -> None:
        self.damage.append(str(damage))
        self.repaired.append(repaired)

    def _name(self, ids: set[int], what: str) -> None:
        """Report what documents have, if there are any."""
        if ids:
            verb = "has" if len(ids) == 1 else "have"
            self.damage.append(f"{self._keys(ids)} {verb} {what}")

    def _keys(self, ids: set[int]) -> str:
        shown = sorted(ids)[:_MAX_NAMES]
        marks = ", ".join("?" * len(shown))
        sql = f"SELECT key FROM documents WHERE id IN ({marks}) ORDER BY id"
        keys = ", ".join(repr(row[0]) for row in self.store.read(sql, shown))
        more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
        return f"{'document' if len(ids) == 1 else 'documents'} {keys}{more}"

    def _ids(self, sql: str, parameters: Sequence[Any] = ()) -> set[int]:
        return {row[0] for row in self.store.read(sql, parameters) if isinstance(row[0], int)}

    def _change(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; returns how many rows it changed."""
        return self.store.connection.execute(sql, parameters).rowcount


@contextmanager
def _lenient(store: Store) -> Iterator[None]:
    """Read texts with invalid UTF-8, with replacement characters."""
    before = store.connection.text_factory
    store.connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        yield
    finally:
        store.connection.text_factory = before
