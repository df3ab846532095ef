"""Near duplicates, listed."""

from typing import Any

import pytest
from test_paging import COUNT, Row, created, documents

from searchengine import SearchEngine

OF_ANOTHER = COUNT // 10  # of `documents`, the last ones have the texts of the first


@pytest.fixture(scope="module", params=["exact", "hnsw"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with created(request.param, tmp_path_factory) as engine:
        engine.add(documents()[:700])
        engine.add(documents()[700:])
        yield engine


def test_groups_of_all_documents(engine: SearchEngine) -> None:
    groups = engine.duplicates(0.999)
    same: dict[bytes, list[str]] = {}
    for document in engine:  # some texts that differ have one vector
        same.setdefault(Row().encode([document.text]).tobytes(), []).append(document.key)
    expected = [tuple(keys) for keys in same.values() if len(keys) > 1]
    assert sorted(group.keys for group in groups) == sorted(expected)
    assert len(groups) >= OF_ANOTHER // 2
    assert all(group.cosines == pytest.approx([1] * len(group.keys)) for group in groups)
    done: list[int] = []
    engine.duplicates(progress=lambda number, total: done.append(number))
    assert sum(done) == COUNT
