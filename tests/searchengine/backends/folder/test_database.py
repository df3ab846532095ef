"""documents.db as a file: waiting for it, errors by name, copies, and what is read in blocks."""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenarios import open_files

from searchengine.backends.contract import Entry, Known
from searchengine.backends.folder import database
from searchengine.backends.folder.database import turn
from searchengine.backends.folder.folders import os_errors, remove_unnamed, segment_folders
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.corpus.files import Document
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.storage.durable import open_folder
from searchengine.ingest.ingestion import merged

COUNT = 1_208  # documents; they are read 500 at a time


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    documents = [Document(f"k{i}", "text") for i in range(COUNT)]
    with Store(tmp_path / "documents.db", create=True) as store:
        with store.transaction():
            changes = Changes(store)
            changes.write([Entry(d, ((0, 4),), np.zeros((0, 0))) for d in documents], {}, 0)
            changes.add_segment(SegmentRow(1, 0, COUNT, "abc"))
        yield store


@pytest.mark.parametrize(("wait", "expected"), [
    (0.0, []),
    (0.02, [0.001, 0.002, 0.004, 0.008, 0.005]),  # the last one is all that is left
    (0.2, [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.037]),
])  # fmt: skip
def test_a_writer_tries_again_after_growing_pauses(
    store: Store, monkeypatch: pytest.MonkeyPatch, wait: float, expected: list[float]
) -> None:
    now, pauses = 100.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)
        assert len(pauses) < 20

    monkeypatch.setattr(database, "monotonic", lambda: now)
    monkeypatch.setattr(database, "sleep", sleep)
    monkeypatch.setattr(database, "random", lambda: 0.5)
    with (
        store.transaction(),
        Store(store.path) as other,
        pytest.raises(CollectionBusy, match="being written to by another process"),
        other.transaction(wait),
    ):
        pass
    assert pauses[: len(expected)] == pytest.approx(expected)
    assert sum(pauses) == pytest.approx(wait)


def test_an_error_that_ended_the_transaction_is_the_one_that_is_raised(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.execute("ROLLBACK")  # as SQLite may by itself where the disk is full
        raise ZeroDivisionError


def test_a_change_is_not_committed_to_a_file_that_was_replaced(store: Store) -> None:
    count = len(store.settings())
    with (
        pytest.raises(CollectionError, match="was replaced by another folder"),
        store.transaction(),
    ):
        Changes(store).set("name", "value")
        store.path.rename(store.path.with_name("moved.db"))
    with store.transaction():
        pass  # no change that could be in the wrong file
    assert not store.connection.in_transaction and len(store.settings()) == count


def test_a_file_replaced_while_it_is_opened_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    other = shutil.copy(store.path, store.path.with_name("other.db"))
    connect = Store._connect

    def late(self: Store, create: bool) -> None:
        other.replace(self.path)
        connect(self, create)

    monkeypatch.setattr(Store, "_connect", late)
    with pytest.raises(CollectionError, match="was replaced by another folder"):
        Store(store.path)


def test_a_change_while_a_frozen_file_is_read_is_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with Store(store.path, readers=1) as reader:
        reader.connection.set_trace_callback(lambda _: os.utime(store.path, (0, 0)))
        with pytest.raises(CollectionError, match="was changed since it was opened"):
            reader.read("SELECT 1")


def test_a_wrong_statement_is_not_taken_for_a_closed_database(store: Store) -> None:
    with pytest.raises(sqlite3.ProgrammingError, match="number of bindings"):
        store.read("SELECT ?")
    store.close()
    with pytest.raises(CollectionError, match="is closed; open it again"):
        store.read("SELECT 1")


def test_every_connection_syncs_fully(store: Store) -> None:
    with Store(store.path, readers=2) as reader:
        for some in (store, reader):
            for connection in some.connections:
                assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
                assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (sqlite3.SQLITE_FULL, r"copy\.db: told; free some space there"),
        (
            sqlite3.SQLITE_FULL | 1 << 8,
            r"copy\.db: told; free some space there",
        ),  # an extended code
        (sqlite3.SQLITE_IOERR, r"documents\.db: told; check that the disk has room"),
    ],
)
def test_a_copy_that_fails_says_where_room_is_missing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def fail(connection: object) -> None:
        error = sqlite3.OperationalError("told")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(database, "_sync_fully", fail)
    with pytest.raises(CollectionError, match=message):
        store.copy_to(tmp_path / "copy.db")


def test_what_fails_to_open_is_closed(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "documents.db") as other:
        other.execute("CREATE TABLE other (x)")
    other.close()
    with pytest.raises(CollectionError, match="has no table of documents"):
        Store(tmp_path / "documents.db", readers=3)
    assert str(tmp_path / "documents.db") not in open_files()


def test_the_log_has_a_size_while_it_is_there(store: Store) -> None:
    assert store.log_bytes == store.path.with_name("documents.db-wal").stat().st_size > 0
    store.close()
    assert store.log_bytes == 0


@pytest.mark.parametrize(
    ("free", "page", "statements"),
    [
        (0, 4096, []),
        (25, 4096, []),
        (26, 4096, ["VACUUM"]),
        (26, (64 << 20) // 100, ["VACUUM"]),
        (26, (64 << 20) // 100 + 1, []),  # other writers would wait too long
    ],
)
def test_a_file_is_rewritten_where_more_than_a_fourth_is_free(
    store: Store, monkeypatch: pytest.MonkeyPatch, free: int, page: int, statements: list[str]
) -> None:
    executed: list[str] = []
    monkeypatch.setattr(store, "read", lambda _: [(free, 100, page)])
    monkeypatch.setattr(store, "execute", executed.append)
    store.tidy()
    assert [sql for sql in executed if sql == "VACUUM"] == statements


def test_documents_are_read_in_blocks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [document.key for document in store.documents(store.ids_after(-1, None, COUNT + 1))] == [
        f"k{i}" for i in range(COUNT)
    ]
    statements: list[str] = []
    read = store.read

    def counted(sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        statements.append(sql)
        return read(sql, parameters)

    monkeypatch.setattr(store, "read", counted)
    assert store.altered() is None
    assert len(statements) == 4  # 500, 500, 208 and none
    store.connection.execute("UPDATE documents SET text = 'other' WHERE key = 'k1207'")
    assert store.altered() == "k1207"


def test_a_segments_passages(store: Store) -> None:
    assert SegmentRow(1, 5, 3, "").ends == (5, 7)
    assert SegmentRow(1, 5, 3, "").part_of(np.array([4, 5, 7, 8])).tolist() == [0, 2]


def test_numbers_that_are_none_are_damage(store: Store) -> None:
    assert store.numbers("SELECT 1 WHERE 0").dtype == np.int64
    for sql in ("SELECT 1 UNION SELECT 'x'", "SELECT 1 UNION SELECT NULL", "SELECT 1.5"):
        with pytest.raises(CollectionError, match=r"damaged \(an id is not an integer\)"):
            store.numbers(sql)
    store.connection.execute("PRAGMA ignore_check_constraints = 1")
    store.connection.execute("UPDATE segments SET rows = 'x'")
    with pytest.raises(
        CollectionError, match="table of segments holds a value that is not an integer"
    ):
        store.segments()


def test_what_the_source_says_again_counts_and_all_else_stays() -> None:
    source = '{"a":1,"b":{"x":1,"y":2},"c":3,"d":true}'
    stored = '{"a":9,"b":{"x":5,"y":2},"c":3,"d":true,"e":0}'
    before = Known(1, b"", stored, source, None)
    added = Document("k", "text", "", {"a": 1, "b": {"x": 1, "y": 7}, "d": 1})
    expected = '{"a":9,"b":{"x":5,"y":7},"d":1,"e":0}'
    assert merged(before, added) == (expected, '{"a":1,"b":{"x":1,"y":7},"d":1}')
    plain = Document("k", "text", "", {"a": 2})
    assert (
        merged(None, plain) == merged(Known(1, b"", "{}", None, None), plain) == ('{"a":2}', None)
    )
    same = Known(1, b"", '{"a":2}', '{"a":1}', None)  # the source has become what was set by hand
    assert merged(same, plain) == ('{"a":2}', None)


def test_replaced_segments_are_cleared_away_without_waiting_for_a_thread(store: Store) -> None:
    folder = store.path.parent / "segments"
    (folder / "000009").mkdir(parents=True)
    before = {"000009"}
    taken, end = threading.Event(), threading.Event()

    def hold() -> None:
        with turn(store.identity):
            taken.set()
            end.wait(2)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(20)
    try:
        with pytest.raises(CollectionBusy, match="by another thread"):
            remove_unnamed(store.path.parent, store, before)
    finally:
        end.set()
        thread.join()
    remove_unnamed(store.path.parent, store, set())  # made since
    assert (folder / "000009").exists()
    remove_unnamed(store.path.parent, store, before)
    assert not (folder / "000009").exists()


def test_folders_of_segments_are_found_and_half_written_ones_removed(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    half_written = f"000002.{'a' * 32}.new"
    for name in ("000001", half_written, "notes"):
        (folder / name).mkdir(parents=True)
    (folder / "000003").write_text("no folder")
    with open_folder(folder) as descriptor:
        found = segment_folders(descriptor)
    assert found == {"000001"}
    assert {path.name for path in folder.iterdir()} == {"000001", "000003", "notes"}


def test_what_the_system_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    for error, reason in (
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("short read"), "short read"),
    ):
        with pytest.raises(CollectionError) as raised, os_errors(tmp_path):
            raise error
        assert str(raised.value) == (
            f"{tmp_path}: {reason}; the change was undone, "
            "free some space or choose a folder that can be written"
        )


def test_the_file_of_another_user_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a killed writer left, which only its owner can write."""
    log = store.path.with_name("documents.db-wal")
    monkeypatch.setattr(os, "access", lambda path, mode, **_: (path, mode) != (log, os.W_OK))
    log.touch()
    with pytest.raises(CollectionError) as refused, store.named_errors():
        raise sqlite3.OperationalError("attempt to write a readonly database")
    assert str(refused.value).endswith(f"user cannot write {log}: change its owner or its mode")
