"""Repair a damaged collection: texts are in SQLite, so every vector can be encoded again.

    plan      a copy of the tables is repaired: so it is known what there is to do
    tables    in one transaction they are made consistent, with each other and with the segments
              that can be read. Segments of intact vectors are made again from these, others go
    encode    documents that have lost a vector are encoded again by ordinary ingestion

Intact segments stay as they are. A repair that was killed can be repeated: documents to encode have
no passage meanwhile. Where SQLite itself finds documents.db damaged, nothing is changed: its own
program recovers rows.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from searchengine.backends.contract import Ids, setting_faults
from searchengine.backends.entries import keys_of
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.database import connect, exhausted
from searchengine.backends.folder.folders import check_name, folder_of, remove_unnamed
from searchengine.backends.folder.schema import outdated
from searchengine.backends.folder.store import WORK, Changes, Kind, SegmentRow, Store
from searchengine.backends.folder.view import has_vectors, open_committed
from searchengine.backends.folder.writer import writing
from searchengine.backends.mode import Mode
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    CollectionEncoder,
    EncoderArgument,
    check_built_by,
    load_built_by,
    load_given,
)
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.errors import SegmentError, SegmentFormatError
from searchengine.indexer.search.segment_files import read_manifest
from searchengine.indexer.storage.passages_file import PASSAGES, RowPassages
from searchengine.ingest.ingestion import passage_reader
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.reindex import encode_stored
from searchengine.upkeep.verify import COLUMN_RULES, ENCODED, PASSAGE_RULES, Rule, verify

_NEEDED = ("encoder", "index", "tokenizer", "passages")  # settings without a default
_BATCH = 512  # documents read at a time
_MAX_NAMES = 20  # documents named in a report; the others are counted


@dataclass(frozen=True, slots=True)
class Repair:
    """The report of a repair.

    Attributes:
        path: the collection.
        dry_run: whether changes were only planned.
        documents, passages, segments: numbers checked.
        damage: what was wrong → what was done, or would be in a dry run.
        lost: messages on lost data.
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
    checked: dict[SegmentRow, _Checked] = {}
    with TemporaryDirectory() as scratch:  # takes no lock and changes nothing
        copy = Path(scratch) / "documents.db"
        with Store(database, readers=1) as store:
            store.copy_to(copy)
        with Store(copy) as store, store.transaction():
            plan = Plan.of(path, store, checked)
    if plan.damage and not dry_run:
        loaded, identity = None, plan.settings["encoder"]
        if plan.documents:  # before anything is changed: it takes seconds, and may fail
            if encoder is None:
                loaded = load_built_by(identity, path, runtime)
            else:
                loaded = load_given(encoder, runtime)
            check_built_by(loaded, identity, path)
        plan = _mend(path, wait, checked)
        if plan.documents:
            with closing(Collection(path, wait)) as collection:
                built_by = CollectionEncoder(collection, loaded, runtime)
                reader = partial(passage_reader, collection, built_by)
                with collection.reading() as snapshot:
                    keys = keys_of(snapshot, sorted(plan.documents))
                encode_stored(collection, keys, collection, reader, progress)
    complaint = None
    try:
        with closing(Collection(path)) as collection:
            verify(collection)
    except CollectionError as error:
        if isinstance(error, CollectionBusy) or exhausted(error):
            raise
        complaint = str(error)
        if not dry_run:
            way_out = "restore the folder from a backup"
            complaint = f"{complaint.partition('; repair it')[0]}; {way_out}"
    return Repair(
        str(path),
        dry_run,
        *plan.counts,
        tuple(plan.damage),
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
            (fault,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):  # a full disk, a lock
            raise CollectionError(f"{path} cannot be read: {exhausted(error) or error}") from error
        fault = error
    if fault != "ok":
        raise CollectionError(
            f"{path} is damaged ({fault}), and nothing was changed; restore the collection from a "
            f"backup, or recover what can be read: sqlite3 {path} .recover | sqlite3 new.db "
            "(docs/operating.md: A damaged documents.db)"
        )


def _mend(path: Path, wait: float, checked: "dict[SegmentRow, _Checked]") -> "Plan":
    """Mend tables and segments in one commit."""
    (path / "segments").mkdir(exist_ok=True)
    with Store(path / "documents.db") as store:
        with writing(path, store, partial(open_committed, path), wait) as writer:
            plan = Plan.of(path, store, checked)
            for row in plan.restored:
                writer.restore(row)
        for segment in writer.opened.values():
            segment.close()
        with suppress(CollectionBusy):
            remove_unnamed(path, store, writer.before)
    return plan


class _Checked(NamedTuple):
    """What the files of a segment showed: its fault, if it has one, and what is intact.

    `passages`: (3, rows): document, start and end.
    """

    fault: str | None
    has_vectors: bool
    passages: Ids | None

    @classmethod
    def of(cls, path: Path, row: SegmentRow) -> "_Checked":
        """Read all files. Raises CollectionError for another format or a limit of the system."""
        try:
            with open_committed(path, row) as segment:
                for _ in segment.verified():
                    pass
                if segment.passages is None:
                    raise SegmentError(f"{segment.path} has no {PASSAGES}")
                return cls(None, True, segment.passages.columns)
        except SegmentFormatError as error:
            raise CollectionError(f"{error}; nothing was changed") from error
        except (SegmentError, OSError) as error:
            if limit := exhausted(error):  # no damage
                raise CollectionError(f"{path}: {limit}") from error
            folder, passages = folder_of(path, row.id), None
            with suppress(SegmentError, OSError, KeyError):
                read_manifest(folder)[0].files[PASSAGES].check(folder / PASSAGES)
                passages = RowPassages.open(folder / PASSAGES, row.rows).columns
            return cls(str(error), has_vectors(path, row), passages)


@dataclass(slots=True)
class Plan:
    """The damage of the tables, which is mended there, and what remains to be done.

    Attributes:
        path, store: the collection's folder, and the tables, in a transaction.
        damage, lost: messages.
        kept: the segments with intact vectors.
        restored: those of them of which all else is to be made of these again.
        documents: ids of the documents to encode again.
        settings: the collection settings.
        counts: numbers of documents, passages and segments checked.
    """

    path: Path
    store: Store
    damage: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    kept: dict[SegmentRow, _Checked] = field(default_factory=dict)
    restored: list[SegmentRow] = field(default_factory=list)
    documents: set[int] = field(default_factory=set)
    settings: dict[str, Any] = field(default_factory=dict)
    counts: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, path: Path, store: Store, checked: dict[SegmentRow, _Checked]) -> "Plan":
        """Make the tables consistent with each other and with the segments that can be read.

        `checked`: segments, which never change, that were read before; takes the others.
        """
        plan = cls(path, store)
        store.connection.text_factory = _as_text
        with store.named_errors():
            plan._mend(COLUMN_RULES)
            plan._end_works()
            plan._mend_settings()
            plan._mend_texts()
            segments = plan._check_segments(checked)
            for row, state in plan.kept.items():
                if state.passages is not None:
                    plan._mend_rows(row, state.passages)
            plan._mend(PASSAGE_RULES)
            plan._forget()
            plan.counts = *store.counts(), segments
        return plan

    def _end_works(self) -> None:
        """Drop pending work, but for a reindex, which is a collection of its own."""
        for row in self.store.read(f"SELECT {WORK} FROM pending"):
            try:
                if self.store.work_of(row).kind is Kind.REINDEX:
                    continue
            except CollectionError:
                self._note(f"pending work {row[0]} makes no sense", "dropped")
            self._change("DELETE FROM pending WHERE id = ?", row[:1])

    def _mend(self, rules: Mapping[str, Rule]) -> None:
        """Mend what breaks the rules, in their order."""
        for what, rule in rules.items():
            # What follows from damage that was named already is not named again.
            rows = [row for (row,) in self.store.read(rule.broken) if row not in self.documents]
            for statement in rule.mend:
                self._change(statement)
            if rows:
                ids = {row for row in rows if isinstance(row, int)}
                which = f" ({self._keys(ids)})" if ids else ""
                self._note(f"{len(rows)} {what}{which}", rule.action)
                self.documents |= {*rows} if rule.action == ENCODED else set()

    def _mend_texts(self) -> None:
        """Compare texts with their digests; remove documents without text.

        A text that is no UTF-8 is read with replacement characters, and kept so.
        """
        sql = "SELECT id, key, title, text, digest, vectors FROM documents WHERE id > ? ORDER BY id"
        after, altered, empty, waiting = -1, set[int](), set[int](), set[int]()
        while rows := self.store.read(f"{sql} LIMIT {_BATCH}", (after,)):
            for number, key, title, text, digest, vectors in rows:
                document = Document(key, text, title)
                if not document.full_text and not vectors:
                    empty.add(number)
                elif digest == b"":  # a repair that was killed has not encoded it yet
                    waiting.add(number)
                elif document.digest != digest:
                    altered.add(number)
                    self.documents |= {number} if vectors is None else set()
                    self._change(
                        "UPDATE documents SET title = ?, text = ?, digest = ? WHERE id = ?",
                        (title, text, document.digest, number),
                    )
            after = rows[-1][0]
        self.documents |= waiting
        self._name(waiting, "no vector since a repair that was killed", ENCODED)
        self._name(altered, "a text that differs from what was stored", f"kept, and {ENCODED}")
        if empty:
            self.lost.append(f"the text of {self._keys(empty)}")
            self._name(empty, "no text", "deleted")
            Changes(self.store).remove(sorted(empty))

    def _check_segments(self, checked: dict[SegmentRow, _Checked]) -> int:
        """Verify every segment, and remove those without vectors; returns how many there were."""
        self._change(
            "DELETE FROM segments WHERE typeof(id) || typeof(base) || typeof(rows) "
            "<> 'integerintegerinteger'"
        )
        committed = self.store.segments()
        pairs = [(a, b) for a, b in pairwise(committed) if b.base <= a.ends[1]]
        shifted = {row for pair in pairs for row in pair}
        for row in committed:
            if row not in checked:
                checked[row] = _Checked.of(self.path, row)
            state = checked[row]
            fault = (
                f"segment {row.id:06d} has rows of another one" if row in shifted else state.fault
            )
            # Without the file of its passages, nothing tells whose rows are lost.
            sql = "SELECT count(*) FROM passages WHERE id BETWEEN ? AND ?"
            stored = self.store.read(sql, row.ends)[0][0] + self.store.dead_count(row)
            is_known = state.passages is not None or stored >= row.rows
            if fault is None or (row not in shifted and state.has_vectors and is_known):
                self.kept[row] = state
                if fault is not None:
                    self.restored.append(row)
                    self._note(fault, "made again from its vectors")
                continue
            sql = "SELECT DISTINCT document FROM passages WHERE id BETWEEN ? AND ?"
            documents = self._ids(sql, row.ends)
            self.documents |= documents
            self._change("DELETE FROM passages WHERE id BETWEEN ? AND ?", row.ends)
            Changes(self.store).remove_segments([row])
            self._note(fault, f"{len(documents)} documents {ENCODED}")
        return len(committed)

    def _mend_settings(self) -> None:
        """Remove settings that make no sense. Raises CollectionError for those that are needed."""
        stored = self.store.read("SELECT name, value FROM settings")
        self.settings = {name: json.loads(value) for name, value in stored}
        for name, fault in setting_faults(self.settings).items():
            if name in _NEEDED:
                raise CollectionError(
                    f"{self.store.path} is damaged (in its settings: {name}: {fault}), and nothing "
                    "was changed; restore the folder from a backup, or index the documents again"
                )
            self.settings.pop(name, None)
            Changes(self.store).unset(name)
            self._note(f"setting {name}: {fault}", "removed")
        if "mode" not in self.settings:  # else searches would be by vectors alone
            words = self.settings["tokenizer"] != Tokenizer.NONE
            Changes(self.store).set("mode", Mode.HYBRID if words else Mode.VECTOR)

    def _mend_rows(self, row: SegmentRow, file: Ids) -> None:
        """Have the passages of a segment follow its file, which has a checksum."""
        ids = np.arange(row.base, row.base + row.rows)
        wrong = (self.store.columns(ids) != file).any(axis=0)  # also those that are lost
        wrong[self.store.dead(row)] = False
        if wrong.any():
            columns = zip(ids[wrong].tolist(), *file[:, wrong].tolist(), strict=True)
            sql = "INSERT OR REPLACE INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)"
            self.store.connection.executemany(sql, columns)
            name = f"segment {row.id:06d} has {wrong.sum()} other passages in {PASSAGES}"
            self._note(name, "those of the file")

    def _forget(self) -> None:
        """Have documents to encode without passages, but for vectors that came with them."""
        self.documents &= self._ids("SELECT id FROM documents")
        supplied = self.documents & self._ids("SELECT id FROM documents WHERE vectors NOT NULL")
        if supplied:  # they are kept, with the vectors that are left
            which = f"{self._keys(supplied)}, which came with them; add them again with vectors"
            self.lost.append(f"vectors of {which}")
        # Another checksum than that of any vectors: if they come again, they are written.
        sql = (
            "UPDATE documents SET vectors = iif(id IN (SELECT document FROM passages), "
            "CAST('incomplete' AS BLOB), x'') WHERE id = ?"
        )
        self.store.connection.executemany(sql, ((number,) for number in supplied))
        self.documents -= supplied
        Changes(self.store).forget(sorted(self.documents))

    def _note(self, damage: object, action: str) -> None:
        self.damage.append(f"{damage} → {action}")

    def _name(self, ids: set[int], what: str, action: str) -> None:
        """Report what documents have, if there are any."""
        if ids:
            self._note(f"{self._keys(ids)} {'has' if len(ids) == 1 else 'have'} {what}", action)

    def _keys(self, ids: set[int]) -> str:
        shown = sorted(ids)[:_MAX_NAMES]
        marks = ", ".join("?" * len(shown))
        sql = f"SELECT key FROM documents WHERE id IN ({marks}) ORDER BY id"
        keys = ", ".join(repr(row[0]) for row in self.store.read(sql, shown))
        more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
        return f"{'document' if len(ids) == 1 else 'documents'} {keys}{more}"

    def _ids(self, sql: str, parameters: Sequence[Any] = ()) -> set[int]:
        return {row[0] for row in self.store.read(sql, parameters) if isinstance(row[0], int)}

    def _change(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.store.connection.execute(sql, parameters)


def _as_text(data: bytes) -> str:
    """A text, with replacement characters where it is no UTF-8."""
    return data.decode("utf-8", "replace")
