"""Ids are never used again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import WordLengths
from scenarios import document

from searchengine import SearchEngine
from searchengine.backends.folder.store import Store

TABLES = ("documents", "passages", "segments")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([document(i) for i in range(5)])
        yield engine


def ids(path: Path) -> dict[str, set[int]]:
    with Store(path / "documents.db", readers=1) as store:
        return {t: set(store.numbers(f"SELECT id FROM {t}").tolist()) for t in TABLES}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("optimized", [False, True])
def test_no_id_is_used_again(
    path: Path, engine: SearchEngine, restarted: bool, optimized: bool
) -> None:
    engine.delete(["d4"])
    for version in (0, 1):  # a document that changes keeps its id
        engine.add([document(7, version)])
        assert ids(path)["documents"] == {0, 1, 2, 3, 5}
    before = {table: max(each) for table, each in ids(path).items()}
    engine.delete([*engine.keys()])
    if optimized:
        engine.optimize()
    if restarted:
        engine.close()
        engine = SearchEngine.open(path, WordLengths())
    assert ids(path)["documents"] == set()
    engine.add([document(9)])
    assert all(min(new) > before[table] for table, new in ids(path).items())
    engine.verify()
    if restarted:
        engine.close()
