"""One committed state: how many rows it gives, and when it is let go of."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder.store import Changes, Store


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
        changes.remove([store.known(["ccc"])["ccc"].id])  # the segment is not yet merged away
        changes.count_commit()
    engine.refresh()
    with engine.collection.reading() as snapshot:
        assert snapshot.rows == 0 and len(snapshot.segments) == 1
        assert snapshot.search(query, 9, exact=exact).rows.tolist() == [[-1]]
    assert engine.search("ccc", 9, exact=exact) == []


def test_a_filter_finds_no_former_passage_of_a_document(engine: SearchEngine) -> None:
    """The row of the former text stays, and belongs to the same document."""
    engine.add([{"_id": "a", "text": "another text"}])
    with engine.collection.reading() as snapshot:
        query = WordLengths().encode(["a"])
        for options in ({}, {"phrases": ("text",)}):
            rows = snapshot.search(query, 9, where="_id = 'a'", **options).rows
            assert snapshot.passages(rows[rows >= 0]).documents.tolist() == [0]
