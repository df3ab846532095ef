"""The passages files of segments against the tables, which they must agree with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_documents import Words
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.ingest.passages import PassageConfig

CUT = PassageConfig(4)
TEXTS = ["whale sea " * 5, "bread dough", "star planet light " * 3, "river", "whale star bread"]


def create(path: Path) -> SearchEngine:
    return SearchEngine.create(path, Words(), passages=CUT, tokenizer="stem:en")


def add(engine: SearchEngine, *numbers: int, suffix: str = "") -> None:
    engine.add([{"_id": str(i), "text": TEXTS[i % len(TEXTS)] + suffix} for i in numbers])


def agree(snapshot: Snapshot) -> None:
    """What the files tell is what the tables hold."""

    stored = snapshot.store.scan("SELECT id, document FROM passages ORDER BY id")
    ids = [passage for passage, _ in stored]
    first = {document: passage for passage, document in reversed(stored)}
    found = snapshot.documents_of(np.array(ids, np.int64))
    assert found.tolist() == [document for _, document in stored]
    rows = snapshot.store.scan("SELECT id, document, start, end FROM passages ORDER BY id")
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    np.testing.assert_array_equal(snapshot.passages(np.array(ids, np.int64)), columns)
    for known in (first, None):
        np.testing.assert_array_equal(snapshot.passages(of=list(first), known=known), columns)


steps = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True),
    st.integers(0, 12),
    st.just("optimize"),
)


@given(st.lists(steps, min_size=1, max_size=6))
def test_files_agree_with_tables(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Any]
) -> None:
    """Whatever was added, changed, deleted and merged."""
    with create(tmp_path_factory.mktemp("passages") / "c") as engine:
        for number, change in enumerate(changes):
            if change == "optimize":
                engine.optimize()
            elif isinstance(change, int):
                engine.delete([str(change)])
            else:
                add(engine, *change, suffix=" again" * number)
            with engine.collection.reading() as snapshot:
                agree(snapshot)
        engine.verify()
