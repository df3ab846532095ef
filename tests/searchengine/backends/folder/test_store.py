"""documents.db: order, atomicity, one writer, and files that are not what they should be."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.contract import Entry
from searchengine.backends.folder import schema
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError

NONE = np.empty((0, 0), np.float32)
DOCUMENTS = [
    Document(f"k{i}", f"text {i}", f"title {i}", {"n": i, "tags": ["ü"]}) for i in range(8)
]


def insert(store: Store, documents: Sequence[Document]) -> None:
    """New documents, one whole passage each, and a segment that has a row for each."""
    changes = Changes(store)
    base = changes.next_id("passages")
    changes.write([Entry(d, ((0, len(d.text)),), NONE) for d in documents], {}, base)
    number = len(store.segments()) + 1
    changes.add_segment(SegmentRow(number, base, len(documents), "abc"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "documents.db", create=True)
    with store.transaction():
        insert(store, DOCUMENTS)
        Changes(store).set("encoder", {"dim": 16})
    yield store
    store.close()


@given(ids=st.lists(st.integers(0, 29_999), max_size=30), repeat=st.booleans())
def test_rank_order_is_kept(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], repeat: bool
) -> None:
    # One database for all examples: thirty thousand rows, so that ids span several statements.
    path = tmp_path_factory.getbasetemp() / "many.db"
    store = Store(path, create=not path.exists())
    if store.counts()[0] == 0:
        with store.transaction():
            insert(store, [Document(str(i), "x") for i in range(30_000)])
    wanted_ids = ids * 2 if repeat else ids
    assert [d.key for d in store.documents(wanted_ids)] == [str(i) for i in wanted_ids]
    store.close()


@pytest.mark.parametrize("readers", [0, 2])
def test_a_file_without_the_last_migration_is_upgraded_once(
    store: Store, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    applied = []

    def m002_more(db: Any) -> None:
        applied.append(db)
        db.execute("CREATE TABLE more (x)")

    migrations = {**schema.MIGRATIONS, "m002_more": m002_more}
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    for _ in range(2):
        with closing(Store(store.path, readers=readers)) as again:
            assert again.read("SELECT count(*) FROM more") == [(0,)]
            assert [Document.stored(*row) for row in again.documents([0])] == DOCUMENTS[:1]
    assert len(applied) == 1


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


def test_every_connection_syncs_fully(store: Store) -> None:
    with Store(store.path, readers=2) as reader:
        for some in (store, reader):
            for connection in some.connections:
                assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
                assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)


def spoil(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


MIGRATED = "INSERT INTO _sqlite_migrations VALUES (99, 'searchengine', 'm999_future', '')"
SPOILT: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "is missing"),
    (lambda path: path.write_bytes(b"not a database at all" * 100), "is damaged"),
    (lambda path: spoil(path, "DROP TABLE documents"), "not a collection"),
    (lambda path: spoil(path, MIGRATED), r"another version .*m999_future.*index"),
    (lambda path: spoil(path, "UPDATE documents SET key = x'ff' WHERE id = 2"), "document 2 has"),
    (lambda path: spoil(path, "UPDATE documents SET text = x'ff' WHERE id = 2"), "document 2 has"),
]


@pytest.mark.parametrize(("harm", "message"), SPOILT)
def test_a_file_that_is_no_collection_is_refused(
    store: Store, harm: Callable[[Path], object], message: str
) -> None:
    store.close()
    harm(store.path)
    with pytest.raises(CollectionError, match=message), closing(Store(store.path)) as again:
        again.documents([0, 2])
