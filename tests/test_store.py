"""documents.db: order, atomicity, one writer, and files that are not what they should be."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchengine.corpus import Document
from searchengine.errors import CollectionBusy, CollectionError, FilterError
from searchengine.store import SegmentRow, Store

DOCUMENTS = [
    Document(f"k{i}", f"text {i}", f"title {i}", {"n": i, "tags": ["ü"]}) for i in range(8)
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "documents.db", create=True)
    with store.transaction():
        store.insert(DOCUMENTS, first_id=0)
        store.insert_segment(SegmentRow(1, 0, 8, "abc"))
        store.set("encoder", {"dim": 16})
    yield store
    store.close()


def test_round_trip(store: Store) -> None:
    assert store.documents([7, 2, 5]) == [DOCUMENTS[7], DOCUMENTS[2], DOCUMENTS[5]]
    assert store.segments() == [SegmentRow(1, 0, 8, "abc")]
    assert store.settings() == {"encoder": {"dim": 16}}
    assert store.stored_keys(["k3", "nope", "k0"]) == {"k0", "k3"}
    assert store.next_id() == 8
    assert store.matching("n >= 5 or n = 1").tolist() == [1, 5, 6, 7]
    store.verify()


@settings(deadline=None)  # the first example makes the database
@given(ids=st.lists(st.integers(0, 29_999), max_size=30), repeat=st.booleans())
def test_rank_order_is_kept(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], repeat: bool
) -> None:
    # One database for all examples: thirty thousand rows, so that ids span several statements.
    path = tmp_path_factory.getbasetemp() / "many.db"
    store = Store(path, create=not path.exists())
    if store.next_id() == 0:
        with store.transaction():
            store.insert([Document(str(i), "x") for i in range(30_000)], first_id=0)
    asked = ids * 2 if repeat else ids
    assert [d.key for d in store.documents(asked)] == [str(i) for i in asked]
    store.close()


def test_more_ids_than_a_statement_binds(tmp_path: Path) -> None:
    store = Store(tmp_path / "documents.db", create=True)
    with store.transaction():
        store.insert([Document(str(i), "x") for i in range(40_000)], first_id=0)
    backwards = range(39_999, -1, -1)
    assert [d.key for d in store.documents(backwards)] == [str(i) for i in backwards]
    store.close()


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.insert([Document("new", "x")], first_id=8)
        raise ZeroDivisionError
    assert store.next_id() == 8
    with store.transaction():
        store.insert([Document("new", "x")], first_id=8)
    assert store.next_id() == 9


def test_segments_are_replaced_as_a_whole_or_not_at_all(store: Store) -> None:
    new = [SegmentRow(2, 0, 5, "def"), SegmentRow(3, 5, 3, "ghi")]
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.replace_segments(new)
        raise ZeroDivisionError
    assert store.segments() == [SegmentRow(1, 0, 8, "abc")]
    with store.transaction():
        store.replace_segments(new)
    assert store.segments() == new


def test_second_writer_is_refused_at_once_and_readers_go_on(store: Store) -> None:
    other = Store(store.path)
    with store.transaction():
        store.insert([Document("new", "x")], first_id=8)
        assert other.next_id() == 8  # not committed yet
        with pytest.raises(CollectionBusy, match="being written to"), other.transaction():
            pass
    assert other.next_id() == 9
    other.close()


def test_no_text_is_spliced_into_sql(store: Store) -> None:
    assert store.matching("n = '1; DROP TABLE documents'").tolist() == []
    with pytest.raises(FilterError):
        store.matching("n) OR (1=1")
    assert store.next_id() == 8


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="is missing"):
        Store(tmp_path / "documents.db")


def test_damaged_file(store: Store, tmp_path: Path) -> None:
    store.close()
    path = tmp_path / "documents.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(CollectionError, match="is damaged"):
        Store(path)


def test_foreign_database(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "documents.db")
    db.execute("CREATE TABLE other (x)")
    db.close()
    with pytest.raises(CollectionError, match="no collection"):
        Store(tmp_path / "documents.db")


def test_newer_format_is_refused(store: Store) -> None:
    store.close()
    db = sqlite3.connect(store.path)
    db.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) "
        "VALUES ('searchengine', 'm999_future', '')"
    )
    db.commit()
    db.close()
    with pytest.raises(CollectionError, match=r"newer version .*m999_future.*upgrade"):
        Store(store.path)
