"""Repair a damaged collection: texts are in SQLite, so every vector can be encoded again.

    tables    in one transaction they are made consistent, with each other and with the segments
              that can be read. Segments of intact vectors are made again from these, others go
    encode    documents that have lost a vector are encoded again by ordinary ingestion

Intact segments stay as they are. A repair that was killed can be repeated: documents to encode have
no passage meanwhile, and a digest that no text has. Where SQLite itself finds documents.db damaged,
nothing is changed: its own program recovers rows.
"""

import json
import shlex
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.contract import folders_only, has_words, setting_faults
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.database import connect, exhausted
from searchengine.backends.folder.folders import (
    check_name,
    has_vectors,
    open_committed,
    remove_unnamed,
)
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.backends.folder.writer import writing
from searchengine.backends.mode import Mode
from searchengine.backends.opening import is_url, name_of
from searchengine.encoders.loading import EncoderArgument, check_built_by, load_built_by, load_given
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.building import Progress
from searchengine.indexer.errors import SegmentError, SegmentFormatError
from searchengine.indexer.storage.files import PASSAGES
from searchengine.ingest.passages import PassageReader
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.reindex import encode_stored
from searchengine.upkeep.verify import COLUMN_RULES, PASSAGE_RULES, UNPLACED, differing_rows, verify

_NEEDED = ("encoder", "index", "tokenizer", "passages")  # settings that are not removed
_ADVICE = "; repair it"  # the end of a message about damage begins with it
_MAX_NAMES = 20  # documents named in a report; the others are counted
_KEYS = "SELECT key FROM documents WHERE"
_STORED, _SUPPLIED = "SELECT id FROM documents", "SELECT id FROM documents WHERE vectors NOT NULL"
_ORPHANS = (
    f"DELETE FROM passages WHERE {UNPLACED} OR document NOT IN (SELECT id FROM documents)",
    "DELETE FROM tombstones",
    "INSERT INTO tombstones WITH RECURSIVE ids (id, last) AS (SELECT base, base + rows - 1 FROM "
    "segments UNION ALL SELECT id + 1, last FROM ids WHERE id < last) "
    "SELECT id FROM ids WHERE id NOT IN (SELECT id FROM passages)",
)
"""Afterwards each passage has a row and a document, and each other row is deleted."""


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
    with Store(database) as store:
        with writing(path, store, partial(open_committed, path), wait) as writer:
            tables = _Tables(path, store)
            if keys := tables.mend():  # before anything is changed: it may fail
                built_by = tables.settings["encoder"]
                if encoder is None:
                    loaded = load_built_by(built_by, path, runtime)
                else:
                    loaded = load_given(encoder, runtime)
                check_built_by(loaded, built_by, path)
            for row in tables.restored:
                writer.restore(row)
        for segment in writer.opened.values():
            segment.close()
        with suppress(CollectionBusy):
            remove_unnamed(path, store, writer.before)
    if keys:
        with closing(Collection(path, wait)) as collection:
            reader = PassageReader(loaded, collection.settings)
            encode_stored(collection, keys, collection, reader, progress)
    complaint = None
    try:
        with closing(Collection(path)) as collection:
            verify(collection)
    except CollectionError as error:
        if isinstance(error, CollectionBusy) or exhausted(error):
            raise
        complaint = f"{str(error).partition(_ADVICE)[0]}; restore the folder from a backup"
    return Repair(tuple(tables.damage), tuple(tables.lost), len(keys), complaint)


def _check_database(path: Path) -> None:
    """Raise CollectionError if SQLite finds a damage in a database."""
    try:
        with closing(connect(path, "rw")) as connection:
            (fault,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.OperationalError as error:  # a full disk, a lock
        raise CollectionError(f"{path} cannot be read: {exhausted(error) or error}") from error
    except sqlite3.DatabaseError as error:
        fault = error
    if fault != "ok":
        raise CollectionError(
            f"{path} is damaged ({fault}), and nothing was changed; restore the collection from a "
            f"backup, or recover what can be read: sqlite3 {shlex.quote(str(path))} .recover | "
            "sqlite3 new.db (docs/operating.md: A damaged documents.db)"
        )


class _Tables:
    """Mends the tables of a store, in its transaction.

    Attributes:
        damage, lost: messages.
        restored: segments whose vectors are intact; their other files are built again from these.
        settings: the collection settings.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self.damage, self.lost = list[str](), list[str]()
        self.restored: list[SegmentRow] = []
        self.settings: dict[str, Any] = {}
        self._path, self._store, self._changes = path, store, Changes(store)
        self._documents: set[int] = set()  # those that have lost a vector
        self._reworded: set[int] = set()  # those that keep their vector beside another text

    def mend(self) -> list[str]:
        """Make the tables consistent with each other and with the segments that can be read.

        Returns the keys of the documents to encode again.
        """
        # A text that is no UTF-8 is read with replacement characters, and kept so.
        self._store.connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            with self._store.named_errors():
                self._mend_settings()
                self._mend_columns()
                for row in self._store.segments():
                    self._mend_segment(row)
                for what, broken in PASSAGE_RULES.items():
                    # What follows from damage that was named already is not named again.
                    if lost := self._ids(broken) - self._documents:
                        self._lose(what, lost)
                if self.damage:
                    self._forget()
                return [key for (key,) in self._store.read(f"{_KEYS} digest = x'' ORDER BY id")]
        except CollectionError as error:
            fault, advice, _ = str(error).partition(_ADVICE)
            if not advice:  # a full disk, a permission, another version
                raise
            way_out = "restore the folder from a backup, or index the documents again"
            raise CollectionError(f"{fault}, and nothing was changed; {way_out}") from error

    def _mend_settings(self) -> None:
        """Remove settings and works that make no sense. CollectionError for those needed."""
        unreadable = dict[str, str]()
        for name, value in self._store.read("SELECT name, value FROM settings"):
            try:
                self.settings[name] = json.loads(value or "")
            except ValueError:
                unreadable[name] = "is no JSON"
        faults = setting_faults(self.settings) | unreadable
        for name, fault in faults.items():
            if name in _NEEDED:
                raise self._store.damaged(f"in its settings: {name}: {fault}")
            self._store.connection.execute("DELETE FROM settings WHERE name = ?", (name,))
            self.damage.append(f"settings: {name}: {fault} → removed")
        if "mode" in faults and has_words(self.settings):
            self._changes.set("mode", Mode.HYBRID)
        try:
            self._store.works()
        except CollectionError:
            self._store.connection.execute("DELETE FROM pending")
            self.damage.append("pending: the reindex makes no sense → removed")

    def _mend_columns(self) -> None:
        """Have columns hold what they must, and digests follow the texts that are stored."""
        for what, (broken, action, statements) in COLUMN_RULES.items():
            if rows := self._store.read(broken):
                self.damage.append(f"{len(rows)} {what} → {action}")
                for statement in statements:
                    self._store.connection.execute(statement)
        altered = set[int]()
        for number, document in self._store.altered():
            altered.add(number)
            sql = "UPDATE documents SET title = ?, text = ?, digest = ? WHERE id = ?"
            columns = document.title, document.text, document.digest, number
            self._store.connection.execute(sql, columns)
        if altered:
            what = "have another text than was stored, or are not encoded yet"
            self.damage.append(f"{self._named(altered)} {what} → kept")
            self._reworded = altered & self._ids(_SUPPLIED)
            self._documents |= altered - self._reworded

    def _mend_segment(self, row: SegmentRow) -> None:
        """Verify a segment: without vectors it goes, else passages follow its file."""
        try:
            with open_committed(self._path, row) as segment:
                for _ in segment.verified():
                    pass
                passages = segment.passages
        except SegmentFormatError as error:
            raise CollectionError(str(error)) from error
        except (SegmentError, OSError) as error:
            if limit := exhausted(error):  # no damage
                raise CollectionError(f"{self._path}: {limit}") from error
            sql = "FROM passages WHERE id BETWEEN ? AND ?"
            ((stored,),) = self._store.read(f"SELECT count(*) {sql}", row.ends)
            # Else nothing tells whose rows are lost.
            is_known = stored + self._store.dead_count(row) >= row.rows
            if is_known and has_vectors(self._path, row):
                self.restored.append(row)
                self.damage.append(f"{error} → made again from its vectors")
            else:
                self._changes.remove_segments([row])
                self._lose(str(error), self._ids(f"SELECT document {sql}", row.ends))
            return
        if passages is not None and (rows := differing_rows(self._store, row, passages)).size:
            columns = zip((rows + row.base).tolist(), *passages[:, rows].tolist(), strict=True)
            sql = "INSERT OR REPLACE INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)"
            self._store.connection.executemany(sql, columns)
            what = f"segment {row.id:06d} has {rows.size} other passages in {PASSAGES}"
            self.damage.append(f"{what} → those of the file")
        held = "SELECT document FROM passages WHERE id BETWEEN ? AND ?"
        if self._reworded and self._reworded & self._ids(held, row.ends):
            self.restored.append(row)  # its words are still those of the former texts

    def _forget(self) -> None:
        """Have documents to encode without passages, and rows without a passage deleted.

        Vectors that came with a document cannot be encoded: it is kept as one that has none.
        """
        if supplied := self._ids(_SUPPLIED) & self._documents:
            self.lost.append(
                f"vectors of {self._named(supplied)}, which came with them; they are listed, but "
                "searches miss them until they are added again with vectors"
            )
        for number in self._documents:
            column = "vectors" if number in supplied else "digest"
            for statement in (
                "DELETE FROM passages WHERE document = ?",
                f"UPDATE documents SET {column} = x'' WHERE id = ?",
            ):
                self._store.connection.execute(statement, (number,))
        for statement in _ORPHANS:
            self._store.connection.execute(statement)
        self._changes.set("tombstones_id", uuid4().hex)

    def _lose(self, what: str, documents: set[int]) -> None:
        """Note a damage that documents have lost vectors by, if they are still stored."""
        self._documents |= documents
        encoded = self._ids(_STORED) & documents - self._ids(_SUPPLIED)
        self.damage.append(f"{what} → {len(encoded)} documents encoded again")
        if gone := documents - self._ids(_STORED):
            self.lost.append(f"{len(gone)} documents, whose passages were left; index them again")

    def _named(self, ids: set[int]) -> str:
        """How many documents these are, with the keys of the first ones, for a message."""
        first = [self._store.read(f"{_KEYS} id = ?", (i,))[0][0] for i in sorted(ids)[:_MAX_NAMES]]
        more = ", …" if len(ids) > len(first) else ""
        return f"{len(ids)} documents ({', '.join(map(repr, first))}{more})"

    def _ids(self, sql: str, parameters: Sequence[Any] = ()) -> set[int]:
        return {row[0] for row in self._store.read(sql, parameters) if isinstance(row[0], int)}
