"""asearch: as search, of many tasks and loops at once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import CollectionError, FilterError, QueryError

TEXTS = [" ".join(["a"] * (i % 7 + 1) + ["bee"] * (i % 5) + ["zoom"] * (i % 3)) for i in range(105)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": str(i), "text": text, "n": i} for i, text in enumerate(TEXTS)])
        yield engine


def test_as_search(engine: SearchEngine) -> None:
    async def ask() -> None:
        for options in ({}, {"mode": "text"}, {"where": "n < 9", "facets": ["n"]}, {"offset": 2}):
            expected = engine.search("a bee", 4, **options)  # type: ignore[arg-type]
            hits = await engine.asearch("a bee", 4, **options)  # type: ignore[arg-type]
            assert hits == expected and hits.facets == expected.facets
        vector = WordLengths().encode(["a bee"])[0]
        assert await engine.asearch(vector, 3) == engine.search(vector, 3)
        assert await engine.asearch(vector.tolist(), 3) == engine.search(vector, 3)

    asyncio.run(ask())


def test_each_call_gets_its_own_error(engine: SearchEngine) -> None:
    async def ask() -> None:
        good = WordLengths().encode(["a bee"])[0]
        questions: list[Any] = [good, np.ones(3), np.full(16, np.nan), 5, good, np.ones((2, 16))]
        results = await asyncio.gather(
            *(engine.asearch(each, 3) for each in questions), return_exceptions=True
        )
        expected = engine.search(good, 3)
        assert [each if isinstance(each, list) else type(each) for each in results] == [
            expected, QueryError, QueryError, QueryError, expected, QueryError,
        ]  # fmt: skip
        for call in (engine.asearch(" "), engine.asearch("x", 0)):
            with pytest.raises(QueryError):
                await call
        with pytest.raises(FilterError):
            await engine.asearch("x", where="year >")
        engine.close()
        with pytest.raises(CollectionError, match="closed"):
            await engine.asearch("x")

    asyncio.run(ask())
