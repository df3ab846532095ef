"""documents.db: order, atomicity, one writer, and files that are not what they should be."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.contract import Entry, as_json
from searchengine.backends.folder import schema
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionBusy, CollectionError, FilterError

NONE = np.empty((0, 0), np.float32)
DOCUMENTS = [
    Document(f"k{i}", f"text {i}", f"title {i}", {"n": i, "tags": ["ü"]}) for i in range(8)
]


def insert(store: Store, documents: Sequence[Document]) -> None:
    """New documents, one whole passage each, and a segment that has a row for each."""
    changes = Changes(store)
    base = changes.next_passage()
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


def test_round_trip(store: Store) -> None:
    assert store.documents([7, 2, 5]) == [DOCUMENTS[7], DOCUMENTS[2], DOCUMENTS[5]]
    assert store.columns(np.array([0, 3, 9])).T.tolist() == [[0, 0, 6], [3, 0, 6], [-1, -1, -1]]
    assert store.segments() == [SegmentRow(1, 0, 8, "abc")]
    assert store.settings() == {"encoder": {"dim": 16}}
    assert store.ids_of(["k3", "nope", "k0"]) == {"k0": 0, "k3": 3}
    assert store.counts() == (8, 8)
    assert store.matching("n >= 5 or n = 1").tolist() == [1, 5, 6, 7]
    assert store.count("n >= 5") == 3
    assert store.documents(store.ids_after(-1, None, 9)) == DOCUMENTS
    assert store.altered() is None


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


def test_more_ids_than_a_statement_binds(tmp_path: Path) -> None:
    store = Store(tmp_path / "documents.db", create=True)
    with store.transaction():
        insert(store, [Document(str(i), "x") for i in range(40_000)])
    backwards = range(39_999, -1, -1)
    assert [d.key for d in store.documents(backwards)] == [str(i) for i in backwards]
    store.close()


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    new = [Document("new", "x")]
    with pytest.raises(ZeroDivisionError), store.transaction():
        insert(store, new)
        raise ZeroDivisionError
    assert store.counts() == (8, 8)
    with store.transaction():
        insert(store, new)
    assert store.counts() == (9, 9)


def test_second_writer_is_refused_at_once_and_readers_go_on(store: Store) -> None:
    other = Store(store.path)
    with store.transaction():
        insert(store, [Document("new", "x")])
        assert other.counts() == (8, 8)  # not committed yet
        with pytest.raises(CollectionBusy, match="being written to"), other.transaction():
            pass
    assert other.counts() == (9, 9)
    other.close()


def test_a_held_connection_sees_one_moment(store: Store) -> None:
    with Store(store.path) as reader:
        reader.hold()
        with store.transaction():
            insert(store, [Document("new", "x")])
            Changes(store).remove([0])
        assert reader.counts() == (8, 8)
        assert reader.documents([0]) == DOCUMENTS[:1]
    with Store(store.path) as reader:
        assert reader.counts() == (8, 8)
        assert reader.ids_of(["k0", "new"]) == {"new": 8}


def test_replacing_keeps_the_id_and_buries_the_passages(store: Store) -> None:
    changes = Changes(store)
    known = changes.store.known(["k2", "fresh"])
    assert known.keys() == {"k2"}
    assert known["k2"].digest == DOCUMENTS[2].digest
    two = [Document("k2", "another text", "", {"n": 20}), Document("fresh", "text")]
    with store.transaction():
        entries = Entry(two[0], ((0, 7), (8, 12)), NONE), Entry(two[1], ((0, 4),), NONE)
        changes.write(entries, known, changes.next_passage())
        changes.add_segment(SegmentRow(2, 8, 3, "def"))
    assert store.ids_of(["k2", "fresh"]) == {"k2": 2, "fresh": 8}
    assert store.documents([2, 8]) == two
    assert store.dead(store.segments()[0]).tolist() == [2]
    assert store.dead_count(store.segments()[0]) == 1
    columns = [[8, 9, 10], [2, 2, 8], [0, 8, 0], [7, 12, 4]]
    assert [column.tolist() for column in store.passages_of([2, 8])] == columns
    assert changes.next_passage() == 11


def test_moving_passages_keeps_their_order(store: Store) -> None:
    changes = Changes(store)
    with store.transaction():
        changes.remove([1, 6])
        changes.move_passages(np.array([0, 2, 3, 4, 5, 6, 7]), 100)  # 6 was deleted meanwhile
        changes.remove_segments(store.segments())
    moved = [100, 101, 102, 103, 104, 106]
    assert store.columns(np.array(moved))[0].tolist() == [0, 2, 3, 4, 5, 7]
    assert store.read("SELECT passage FROM tombstones") == [(105,)]


def test_metadata_is_written_as_sqlite_writes_it(store: Store) -> None:
    sql = "SELECT json_object('n', 1, 'name', ?, 'none', NULL)"
    assert store.read(sql, ['ü"']) == [(as_json({"n": 1, "name": 'ü"', "none": None}),)]


def test_metadata_is_set_together_with_the_root(store: Store) -> None:
    changes = Changes(store)
    with store.transaction():
        document = Document("k2", "text 2", "title 2", {"n": 9}, root="/folder")
        changes.set_metadata([Entry(document, (), NONE)], changes.store.known(["k2"]))
    known = changes.store.known(["k2"])["k2"]
    assert (known.metadata, known.source, known.root) == ('{"n":9}', None, "/folder")


def test_commits_are_counted(store: Store) -> None:
    for expected in (1, 2, 3):
        with store.transaction():
            Changes(store).count_commit()
        assert store.settings()["commit"] == expected


def test_an_altered_text_is_found(store: Store) -> None:
    store.connection.execute("UPDATE documents SET text = 'textual' WHERE id = 5")
    assert store.altered() == "k5"


NUMBERS: dict[int, dict[str, float]] = {0: {"n": 1.0}, 2: {}, 3: {}}


def test_values_of_a_field(store: Store) -> None:
    with store.transaction():
        new = [Entry(Document(f"k{i}", "", "", fields), (), NONE) for i, fields in NUMBERS.items()]
        Changes(store).set_metadata(new, store.known(["k0", "k2", "k3"]))
    values = store.values(range(4), "n")
    assert values[0] == values[1]
    assert len(set(values.values())) == 3  # those without the field are on their own


def test_no_text_is_spliced_into_sql(store: Store) -> None:
    assert store.matching("n = '1; DROP TABLE documents'").tolist() == []
    with pytest.raises(FilterError):
        store.matching("n) OR (1=1")
    assert store.counts() == (8, 8)


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
    with pytest.raises(CollectionError, match="not a collection"):
        Store(tmp_path / "documents.db")


def test_another_format_is_refused(store: Store) -> None:
    store.close()
    db = sqlite3.connect(store.path)
    db.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) "
        "VALUES ('searchengine', 'm999_future', '')"
    )
    db.commit()
    db.close()
    with pytest.raises(CollectionError, match=r"another version .*m999_future.*index"):
        Store(store.path)


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
            assert again.documents([0]) == DOCUMENTS[:1]
    assert len(applied) == 1


@pytest.mark.parametrize("column", ["key", "title", "text"])
def test_a_document_that_is_not_text_is_damage(store: Store, column: str) -> None:
    store.connection.execute(f"UPDATE documents SET {column} = x'ff' WHERE id = 2")
    assert store.documents([0]) == DOCUMENTS[:1]
    with pytest.raises(CollectionError, match="document 2 has a key, title or text that is not"):
        store.documents([0, 2])
