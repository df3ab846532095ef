"""One committed state: how many rows it gives, and when it is let go of."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from scenarios import open_files

from searchengine import SearchEngine
from searchengine.backends.folder.store import Changes, Store
from searchengine.errors import CollectionError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.segment import Segment


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        engine.add([{"_id": name, "text": name} for name in ("a", "bb", "ccc", "dddd")])
        yield engine


@pytest.mark.parametrize("exact", [True, False])
def test_results_are_no_wider_than_the_rows_that_are_there(
    engine: SearchEngine, exact: bool
) -> None:
    query = WordLengths().encode(["ccc"])
    left = ["a", "bb", "ccc", "dddd"]
    for deleted in ([], ["bb"], ["a"], ["dddd"]):
        engine.delete(deleted)
        left = [key for key in left if key not in deleted]
        with engine.collection.reading() as snapshot:
            result = snapshot.search(query, 9, exact=exact)
            keys = snapshot.store.keys_of(snapshot.documents_of(result.rows[0]))
            assert keys[0] == "ccc" and sorted(keys) == left
    with Store(engine.collection.path / "documents.db") as store, store.transaction():
        changes = Changes(store)
        changes.remove(list(store.ids_of(["ccc"]).values()))  # the segment is not yet merged away
        changes.count_commit()
    engine.refresh()
    with engine.collection.reading() as snapshot:
        assert snapshot.rows == 0 and len(snapshot.segments) == 1
        assert snapshot.search(query, 9, exact=exact).rows.tolist() == [[-1]]
    assert engine.search("ccc", 9, exact=exact) == []


def test_a_state_is_closed_when_another_is_shown_and_nobody_reads_it(engine: SearchEngine) -> None:
    with engine.collection.reading() as read, engine.collection.reading() as twice:
        assert read is twice and read.readers == 2
        engine.add([{"_id": "more", "text": "more"}])
        assert read.store.counts() == (4, 4)
    with pytest.raises(CollectionError, match="is closed"):
        read.store.counts()
    with engine.collection.reading() as idle:
        pass
    assert idle.readers == 0 and idle.store.counts() == (5, 5)
    engine.delete(["more"])
    with pytest.raises(CollectionError, match="is closed"):
        idle.store.counts()


def test_a_merge_counts_what_it_moves(engine: SearchEngine, tmp_path: Path) -> None:
    engine.delete(["a"])
    with sqlite3.connect(tmp_path / "x" / "documents.db") as db:
        db.execute("DELETE FROM passages WHERE id = 2")
    db.close()
    with pytest.raises(CollectionError, match="segment 1 has 3 live rows and 2 passages"):
        engine.optimize()


def test_a_filter_is_worked_out_once_for_a_commit(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    matching = Store.matching
    monkeypatch.setattr(
        Store,
        "matching",
        lambda s, where: statements.append(where) or matching(s, where),
    )
    engine.update({"a": {"year": 1}, "bb": {"year": 2}})
    for _ in range(3):
        assert [hit.key for hit in engine.search("bb", where="year = 2")] == ["bb"]
    assert statements == ["year = 2"]
    engine.update({"ccc": {"year": 2}})  # another commit, another answer
    assert {hit.key for hit in engine.search("bb", where="year = 2")} == {"bb", "ccc"}
    assert statements == ["year = 2"] * 2


def test_a_filter_finds_no_former_passage_of_a_document(engine: SearchEngine) -> None:
    """The row of the former text stays, and belongs to the same document."""
    engine.add([{"_id": "a", "text": "another text"}])
    with engine.collection.reading() as snapshot:
        query = WordLengths().encode(["a"])
        for options in ({}, {"phrases": ("text",)}):
            rows = snapshot.search(query, 9, where="_id = 'a'", **options).rows
            assert snapshot.passages(rows[rows >= 0]).documents.tolist() == [0]


@pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")
def test_the_filters_used_last_are_kept(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    matching = Store.matching
    monkeypatch.setattr(
        Store,
        "matching",
        lambda s, where: statements.append(where) or matching(s, where),
    )
    monkeypatch.setattr("searchengine.backends.folder.snapshot._FILTERS", 2)
    engine.update({"a": {"x": 1}})
    for year in (1, 2, 1, 3, 1, 2):
        engine.search("a", where=f"year = {year}")
    assert statements == ["year = 1", "year = 2", "year = 3", "year = 2"]
    # Of four rows: one.
    monkeypatch.setattr("searchengine.backends.folder.snapshot._FILTERED_ROWS", 7)
    engine.update({"a": {"x": 2}})
    for year in (4, 2, 4):
        engine.search("a", where=f"year = {year}")
    assert statements[4:] == ["year = 4", "year = 2", "year = 4"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("DELETE FROM settings WHERE name = 'index'", "index: is missing"),
        (
            "UPDATE settings SET value = json_set(value, '$.prefix', 0) WHERE name = 'index'",
            "prefix",
        ),
        ("UPDATE settings SET value = '\"x\"' WHERE name = 'commit'", "must be a whole number"),
        ("DELETE FROM settings WHERE name = 'encoder'", "encoder: is missing"),
        (
            "UPDATE settings SET value = json_remove(value, '$.source') WHERE name = 'encoder'",
            "encoder",
        ),
        (
            "UPDATE settings SET value = json_set(value, '$.dim', '16') WHERE name = 'encoder'",
            "encoder",
        ),
    ],
)
def test_damaged_settings_are_refused_and_the_file_is_closed(
    engine: SearchEngine, damage: str, message: str
) -> None:
    engine.close()
    path = engine.collection.path
    with sqlite3.connect(path / "documents.db") as db:
        db.execute(damage)
    db.close()
    with pytest.raises(CollectionError, match=rf"is damaged \(in its settings: .*{message}"):
        SearchEngine.open(path, WordLengths())
    assert str(path / "documents.db") not in open_files()


def test_segments_that_are_replaced_while_they_are_opened(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has read which segments there are, and opens the newer ones instead."""
    open_segment = Segment.open
    opened: list[Path] = []

    def replaced(folder: Path, **options: Any) -> Segment:
        opened.append(folder)
        if len(opened) == 1:
            engine.optimize()
            assert not folder.exists()
        return open_segment(folder, **options)

    monkeypatch.setattr(Segment, "open", replaced)
    with SearchEngine.open(engine.collection.path, WordLengths()) as reader:
        assert reader.search("ccc", 1)[0].key == "ccc"
    assert opened[0] != opened[-1]


def test_a_damaged_segment_is_not_opened_again_and_again(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_segment = Segment.open
    opened: list[Path] = []

    def counted(folder: Path, **options: Any) -> Segment:
        opened.append(folder)
        return open_segment(folder, **options)

    monkeypatch.setattr(Segment, "open", counted)
    path = engine.collection.path
    shutil.rmtree(path / "segments" / "000001")
    with pytest.raises(CollectionError, match="restore the folder"):
        SearchEngine.open(path, WordLengths())
    assert len(opened) == 2  # the segments that are committed were the same both times


def test_a_failed_transaction_closes_and_removes_its_segments(engine: SearchEngine) -> None:
    vectors = WordLengths().encode(["eeeee"])
    collection = engine.collection
    with (
        pytest.raises(ZeroDivisionError),
        collection.open_store() as store,
        collection.writing(store) as writer,
    ):
        writer.append([vectors])
        (segment,) = writer.opened.values()
        raise ZeroDivisionError
    assert [folder.name for folder in (collection.path / "segments").iterdir()] == ["000001"]
    with pytest.raises(SegmentError, match="closed"):
        segment.search(vectors, 1)
    assert engine.search("ccc", 1)[0].key == "ccc"
