"""Repair a damaged collection: texts are in SQLite, so every vector can be encoded again.

    tables    in one transaction they are made consistent, with each other and with the segments
              that can be read. Segments of intact vectors are made again from these, others go
    encode    documents that have lost a vector are encoded again by ordinary ingestion

Intact segments stay as they are. A repair that was killed can be repeated: documents to encode have
no passage meanwhile. Where SQLite itself finds documents.db damaged, nothing is changed: its own
program recovers rows.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.backends.contract import Ids, folders_only, setting_faults
from searchengine.backends.entries import keys_of
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.database import connect, exhausted, outdated
from searchengine.backends.folder.folders import check_name, folder_of, remove_unnamed
from searchengine.backends.folder.store import WORKS, Changes, SegmentRow, Store
from searchengine.backends.folder.view import has_vectors, open_committed
from searchengine.backends.folder.writer import writing
from searchengine.backends.mode import Mode
from searchengine.backends.opening import is_url, name_of
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    CollectionEncoder,
    EncoderArgument,
    check_built_by,
    load_built_by,
    load_given,
)
from searchengine.errors import CollectionBusy, CollectionError, CorpusError
from searchengine.indexer.building import Progress
from searchengine.indexer.errors import SegmentError, SegmentFormatError
from searchengine.indexer.search.segment_files import read_manifest
from searchengine.indexer.storage.vectors_file import PASSAGES, open_passages
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
        damage: each fault → how it was mended.
        lost: messages on lost data.
        encoded: number of documents encoded again.
        complaint: the error of `verify`; None if it passes.
    """

    damage: tuple[str, ...]
    lost: tuple[str, ...]
    encoded: int
    complaint: str | None

    @property
    def whole(self) -> bool:
        """Whether `verify` passes now."""
        return self.complaint is None


def repair(
    path: str | Path,
    encoder: EncoderArgument | None = None,
    *,
    wait: float = 0,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Check a whole collection and repair the damage.

    Args:
        path: the collection's folder; its segments need not be readable.
        encoder: as for SearchEngine.open. It is loaded only if something must be encoded.
        wait: seconds to wait for another writer before CollectionBusy.
        runtime: what runs the encoder.
        progress: progress callback: step, documents just encoded, documents in all.

    Raises:
        CollectionError: there is no collection, or SQLite finds documents.db damaged.
        CollectionBusy: another process is writing. EncoderMismatch: another encoder.
    """
    if is_url(path):
        raise folders_only(name_of(path), "restore the database from a backup")
    check_name(path := Path(path).absolute())
    database = path / "documents.db"
    if not database.is_file():
        raise CollectionError(f"{database} is missing, so {path} is not a collection")
    _check_database(database)
    (path / "segments").mkdir(exist_ok=True)
    loaded = None
    with Store(database) as store:
        with writing(path, store, partial(open_committed, path), wait) as writer:
            tables = _Tables(path, store)
            tables.mend()
            if tables.documents:  # before anything is changed: it may fail
                if encoder is None:
                    loaded = load_built_by(tables.settings["encoder"], path, runtime)
                else:
                    loaded = load_given(encoder, runtime)
                check_built_by(loaded, tables.settings["encoder"], path)
            for row in tables.restored:
                writer.restore(row)
        for segment in writer.opened.values():
            segment.close()
        with suppress(CollectionBusy):
            remove_unnamed(path, store, writer.before)
    if tables.documents:
        with closing(Collection(path, wait)) as collection:
            built_by = CollectionEncoder(collection, loaded, runtime)
            reader = partial(passage_reader, collection, built_by)
            with collection.reading() as snapshot:
                keys = keys_of(snapshot, sorted(tables.documents))
            encode_stored(collection, keys, collection, reader, progress)
    complaint = None
    try:
        with closing(Collection(path)) as collection:
            verify(collection)
    except CollectionError as error:
        if isinstance(error, CollectionBusy) or exhausted(error):
            raise
        complaint = f"{str(error).partition('; repair it')[0]}; restore the folder from a backup"
    return Repair(tuple(tables.damage), tuple(tables.lost), len(tables.documents), complaint)


def _check_database(path: Path) -> None:
    """Raise CollectionError if SQLite finds a damage in a database."""
    try:
        with closing(connect(path, "rw")) as connection:
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


def _read_segment(path: Path, row: SegmentRow) -> tuple[str | None, Ids | None]:
    """The fault of a segment's files, or None, and its passages if their file is intact.

    Passages: document, start and end, (3, rows). Raises CollectionError for another format or a
    limit of the system.
    """
    try:
        with open_committed(path, row) as segment:
            for _ in segment.verified():
                pass
            return None, segment.passages
    except SegmentFormatError as error:
        raise CollectionError(f"{error}; nothing was changed") from error
    except (SegmentError, OSError) as error:
        if limit := exhausted(error):  # no damage
            raise CollectionError(f"{path}: {limit}") from error
        folder, passages = folder_of(path, row.id), None
        with suppress(SegmentError, OSError, KeyError):
            read_manifest(folder)[0].files[PASSAGES].check(folder / PASSAGES)
            passages = open_passages(folder / PASSAGES, row.rows)
        return str(error), passages


class _Tables:
    """Mends the tables of a store, in its transaction.

    Attributes:
        damage, lost: messages.
        restored: segments whose vectors are intact; their other files are built again from these.
        documents: ids of the documents to encode again.
        settings: the collection settings.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self.damage, self.lost = list[str](), list[str]()
        self.restored: list[SegmentRow] = []
        self.documents: set[int] = set()
        self.settings: dict[str, Any] = {}
        self._path, self._store, self._changes = path, store, Changes(store)

    def mend(self) -> None:
        """Make the tables consistent with each other and with the segments that can be read."""
        self._store.connection.text_factory = _as_text
        with self._store.named_errors():
            self._mend(COLUMN_RULES)
            self._mend_settings()
            self._mend_texts()
            self._mend_segments()
            self._mend(PASSAGE_RULES)
            self._forget()
            self._end_works()

    def _mend(self, rules: Mapping[str, Rule]) -> None:
        """Mend what breaks the rules, in their order."""
        for what, rule in rules.items():
            # What follows from damage that was named already is not named again.
            rows = [row for (row,) in self._store.read(rule.broken) if row not in self.documents]
            for statement in rule.mend:
                self._change(statement)
            if rows:
                is_lost = rule.action == ENCODED
                self._note(f"{len(rows)} {what}", self._lose(rows) if is_lost else rule.action)

    def _end_works(self) -> None:
        """Drop pending work that makes no sense."""
        for row in self._store.read(WORKS):
            try:
                self._store.work_of(row)
            except CollectionError:
                self._change("DELETE FROM pending WHERE id = ?", row[:1])
                self._note(f"pending work {row[0]} makes no sense", "dropped")

    def _mend_settings(self) -> None:
        """Remove settings that make no sense. Raises CollectionError for those that are needed."""
        stored = self._store.read("SELECT name, value FROM settings")
        self.settings = {name: json.loads(value) for name, value in stored}
        for name, fault in setting_faults(self.settings).items():
            if name in _NEEDED:
                raise CollectionError(
                    f"{self._store.path} is damaged (in its settings: {name}: {fault}), and "
                    "nothing was changed; restore the folder from a backup, or index the documents "
                    "again"
                )
            self._changes.configure({name: None})
            self._note(f"setting {name}: {fault}", "removed")
        if not self._store.read("SELECT 1 FROM settings WHERE name = 'mode'"):
            words = self.settings["tokenizer"] != Tokenizer.NONE  # else it would be by vectors
            self._changes.set("mode", Mode.HYBRID if words else Mode.VECTOR)

    def _mend_texts(self) -> None:
        """Have digests follow the texts that are stored, and delete documents without any.

        A text that is no UTF-8 is read with replacement characters, and kept so.
        """
        sql = "SELECT id, key, title, text, digest, vectors FROM documents WHERE id > ? ORDER BY id"
        after, altered, empty = -1, set[int](), set[int]()
        while rows := self._store.read(f"{sql} LIMIT {_BATCH}", (after,)):
            for number, key, title, text, digest, vectors in rows:
                try:
                    document = Document(key, text, title)
                except CorpusError as error:
                    raise CollectionError(
                        f"{self._store.path} is damaged ({error}), and nothing was changed; "
                        "restore the folder from a backup"
                    ) from error
                if not document.full_text and vectors is None:
                    empty.add(number)
                elif document.digest != digest:
                    altered.add(number)
                    self.documents |= {number} if vectors is None else set()
                    self._change(
                        "UPDATE documents SET title = ?, text = ?, digest = ? WHERE id = ?",
                        (title, text, document.digest, number),
                    )
            after = rows[-1][0]
        if altered:
            what = f"another text than was stored, or none encoded yet: {self._keys(altered)}"
            rest = "" if altered <= self.documents else " but for those with vectors of their own"
            self._note(what, f"kept, and {ENCODED}{rest}")
        if empty:
            self.lost.append(f"the text of documents {self._keys(empty)}")
            self._note(f"no text: {self._keys(empty)}", "deleted")
            self._changes.remove(sorted(empty))

    def _mend_segments(self) -> None:
        """Verify every segment; those without vectors go, and passages follow the others' files."""
        for row in self._store.segments():
            fault, passages = _read_segment(self._path, row)
            # Without the file of its passages, nothing tells whose rows are lost.
            sql = "SELECT count(*) FROM passages WHERE id BETWEEN ? AND ?"
            stored = self._store.read(sql, row.ends)[0][0] + self._store.dead_count(row)
            is_known = passages is not None or stored >= row.rows
            if fault is None or (is_known and has_vectors(self._path, row)):
                if fault is not None:
                    self.restored.append(row)
                    self._note(fault, "made again from its vectors")
                if passages is not None:
                    self._mend_rows(row, passages)
                continue
            sql = "SELECT DISTINCT document FROM passages WHERE id BETWEEN ? AND ?"
            action = self._lose(self._ids(sql, row.ends))
            self._change("DELETE FROM passages WHERE id BETWEEN ? AND ?", row.ends)
            self._changes.remove_segments([row])
            self._note(fault, action)

    def _mend_rows(self, row: SegmentRow, file: Ids) -> None:
        """Have the passages of a segment follow its file, which has a checksum."""
        ids = np.arange(row.base, row.base + row.rows)
        wrong = (self._store.columns(ids) != file).any(axis=0)  # also those that are lost
        wrong[self._store.dead(row)] = False
        if wrong.any():
            columns = zip(ids[wrong].tolist(), *file[:, wrong].tolist(), strict=True)
            sql = "INSERT OR REPLACE INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)"
            self._store.connection.executemany(sql, columns)
            name = f"segment {row.id:06d} has {wrong.sum()} other passages in {PASSAGES}"
            self._note(name, "those of the file")

    def _forget(self) -> None:
        """Have documents to encode without passages, but for vectors that came with them."""
        self.documents &= self._ids("SELECT id FROM documents")
        supplied = self.documents & self._ids("SELECT id FROM documents WHERE vectors NOT NULL")
        if supplied:  # they are kept, with the vectors that are left
            self.lost.append(
                f"vectors of documents {self._keys(supplied)}, which came with them; they are "
                "listed, but searches miss them until they are added again with vectors"
            )
        # Another checksum than that of any vectors: if they come again, they are written.
        sql = (
            "UPDATE documents SET vectors = iif(id IN (SELECT document FROM passages), "
            "CAST('incomplete' AS BLOB), x'') WHERE id = ?"
        )
        self._store.connection.executemany(sql, ((number,) for number in supplied))
        self.documents -= supplied
        self._changes.forget(sorted(self.documents))

    def _lose(self, ids: Iterable[int]) -> str:
        """Mark documents without vectors as to be encoded, or as lost; returns this in words."""
        lost = {*ids}
        supplied = lost & self._ids("SELECT id FROM documents WHERE vectors NOT NULL")
        self.documents |= lost
        counts = {f"documents {ENCODED}": lost - supplied, "documents lose vectors": supplied}
        parts = (f"{len(which)} {what}" for what, which in counts.items() if which)
        return ", ".join(parts) or "removed"

    def _note(self, damage: object, action: str) -> None:
        self.damage.append(f"{damage} → {action}")

    def _keys(self, ids: set[int]) -> str:
        keys = (
            self._store.read("SELECT key FROM documents WHERE id = ?", (i,)) for i in sorted(ids)
        )
        shown = [repr(rows[0][0]) for rows in islice(keys, _MAX_NAMES)]
        more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
        return ", ".join(shown) + more

    def _ids(self, sql: str, parameters: Sequence[Any] = ()) -> set[int]:
        return {row[0] for row in self._store.read(sql, parameters) if isinstance(row[0], int)}

    def _change(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self._store.connection.execute(sql, parameters)


def _as_text(data: bytes) -> str:
    """A text, with replacement characters where it is no UTF-8."""
    return data.decode("utf-8", "replace")
