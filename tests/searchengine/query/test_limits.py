"""A search ends when its time is over, and reads no more text than it may."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.limits import Deadline, limited
from searchengine.errors import QueryError, SearchTimeout
from searchengine.query.hits import Hits

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "words.index", WordLengths()) as engine:
        engine.add({"_id": f"{i}", "text": f"a bee {'x' * i}", "n": i} for i in range(1, 40))
        yield engine


def test_statements_are_interrupted(engine: SearchEngine) -> None:
    with engine.collection.reading() as snapshot:
        begin = time.monotonic()
        with limited(Deadline.after(0.05)), pytest.raises(SearchTimeout, match=r"within 0\.05 sec"):
            snapshot.store.scan(ENDLESS)  # type: ignore[attr-defined]
        assert time.monotonic() - begin < 5
        with limited(Deadline.after(60)):
            assert snapshot.count("n > 0") == 39
        assert snapshot.count("n > 0") == 39  # the connection is not limited any more


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_every_kind_of_search_has_a_time_limit(engine: SearchEngine, mode: str) -> None:
    expected = engine.search("a bee", 5, mode=mode, where="n > 3")
    assert engine.search("a bee", 5, mode=mode, where="n > 3", timeout=60) == expected
    options = {"mode": mode, "where": "n > 4", "timeout": 1e-9}
    for search in (
        lambda: engine.search("a bee", **options),
        lambda: engine.search_batch(["a bee", "bees"], **options),
        lambda: asyncio.run(engine.asearch("a bee", **options)),
    ):
        with pytest.raises(SearchTimeout, match="narrow the filter, ask for fewer hits, or pass"):
            search()
    with pytest.raises(SearchTimeout):
        engine.similar("1", timeout=1e-9)
    with pytest.raises(SearchTimeout):
        engine.search(np.ones(engine.encoder.dim), timeout=1e-9)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_timeout_is_a_number_of_seconds(engine: SearchEngine, timeout: object) -> None:
    with pytest.raises(QueryError, match="timeout must be a number of seconds above 0, or None"):
        engine.search("a bee", timeout=timeout)  # type: ignore[arg-type]


def test_text_is_counted_while_it_is_read(engine: SearchEngine) -> None:
    async def shown(characters: int | None) -> int:
        hits, length = await engine.asearch_shown("a bee", len, 30, characters=characters)
        assert len(hits) == length
        return int(length)

    assert asyncio.run(shown(None)) == asyncio.run(shown(10_000)) == 30
    with pytest.raises(QueryError, match="too long to be read at once; ask for fewer"):
        asyncio.run(shown(100))


def test_an_error_of_one_caller_is_not_that_of_others(engine: SearchEngine) -> None:
    calls = []

    def show(hits: Hits) -> str:
        calls.append(len(hits))
        if "xx" in hits[0].question:
            raise QueryError("too much")
        return hits[0].question

    async def all_at_once() -> list[object]:
        questions = [f"a {'x' * i}" for i in range(3)]
        return await asyncio.gather(
            *(engine.asearch_shown(text, show) for text in questions), return_exceptions=True
        )

    *good, bad = asyncio.run(all_at_once())
    assert [shown for _, shown in good] == ["a ", "a x"]  # type: ignore[misc]
    assert isinstance(bad, QueryError) and len(calls) == 3
