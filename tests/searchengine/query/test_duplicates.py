"""Near duplicates: folded among the hits, and listed."""

from typing import Any

import numpy as np
import pytest
from test_paging import COUNT, QUESTION, Row, created, documents

from searchengine import SearchEngine
from searchengine.errors import QueryError

OF_ANOTHER = COUNT // 10  # of `documents`, the last ones have the texts of the first


@pytest.fixture(scope="module", params=["exact", "hnsw"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with created(request.param, tmp_path_factory) as engine:
        engine.add(documents()[:700])
        engine.add(documents()[700:])
        yield engine


def folded(engine: SearchEngine, hits: Any, above: float) -> list[str]:
    """The keys of those that are not near one before them."""
    vectors: list[Any] = []
    keys = []
    for hit, stored in zip(hits, engine.vectors([hit.key for hit in hits]), strict=True):
        assert stored is not None and len(stored) == 1
        vector = stored[0] / np.linalg.norm(stored[0])
        if not vectors or max(np.stack(vectors) @ vector) < above:
            vectors.append(vector)
            keys.append(hit.key)
    return keys


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
@pytest.mark.parametrize("options", [{}, {"group_by": "g"}])
def test_each_page_has_the_first_of_near_duplicates(
    engine: SearchEngine, mode: str, options: dict[str, Any]
) -> None:
    plain = engine.search(QUESTION, COUNT, mode=mode, **options)
    expected = folded(engine, plain, 0.999)
    assert len(expected) < len(plain)
    hits = engine.search(QUESTION, 300, mode=mode, group_near=0.999, **options)
    assert [hit.key for hit in hits] == expected[:300]
    pages = [
        engine.search(QUESTION, 30, mode=mode, group_near=0.999, offset=n, **options)
        for n in range(0, 300, 30)
    ]
    assert [hit.key for page in pages for hit in page] == expected[:300]
    everything = engine.search(QUESTION, COUNT, mode=mode, group_near=0.999, **options)
    assert [hit.key for hit in everything] == expected


def test_a_low_cosine_folds_what_differs(engine: SearchEngine) -> None:
    plain = engine.search(QUESTION, COUNT, mode="vector")
    expected = folded(engine, plain, 0.4)
    hits = engine.search(QUESTION, 20, mode="vector", group_near=0.4)
    assert [hit.key for hit in hits] == expected[:20]
    assert [hit.key for hit in hits] != [hit.key for hit in plain[:20]]
    least = plain[60].score
    above = engine.search(QUESTION, 100, mode="vector", group_near=0.4, min_score=least)
    kept = engine.search(QUESTION, 300, mode="vector", min_score=least)
    assert [hit.key for hit in above] == folded(engine, kept, 0.4)


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


def test_why_a_near_duplicate_is_not_found(engine: SearchEngine) -> None:
    for mode in ("vector", "hybrid"):
        options: dict[str, Any] = {"mode": mode, "group_near": 0.999}
        plain = [hit.key for hit in engine.search(QUESTION, 400, mode=mode)]
        kept = [hit.key for hit in engine.search(QUESTION, 300, **options)]
        for rank, key in ((1, kept[0]), (40, kept[39])):
            assert engine.explain(QUESTION, key, 300, **options).rank == rank
        lost = next(key for key in plain if key not in kept)
        explanation = engine.explain(QUESTION, lost, 400, **options)
        assert (explanation.lost, explanation.settings) == ("near", {"group_near": None})
        assert "is nearly the same and ranks higher" in str(explanation)
        assert "without --group-near" in str(explanation)


@pytest.mark.parametrize("value", [0, -1, 1.01, float("nan"), "0.9", True])
def test_cosines_that_are_refused(engine: SearchEngine, value: Any) -> None:
    with pytest.raises(QueryError, match="group_near must be a cosine above 0 and at most 1, got"):
        engine.search(QUESTION, group_near=value)
    with pytest.raises(QueryError, match="above must be a cosine"):
        engine.duplicates(value)
