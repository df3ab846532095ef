"""A search in asyncio, with a time limit, and with one of the text that it reads."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.limits import Deadline, limited
from searchengine.errors import QueryError, SearchTimeout

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
        engine.search(np.ones(engine.encoder.load().dim), timeout=1e-9)


def test_asearch_is_search_in_a_thread(engine: SearchEngine) -> None:
    async def ask() -> None:
        for options in ({}, {"mode": "text"}, {"where": "n < 9", "facets": ["n"]}, {"offset": 2}):
            expected = engine.search("a bee", 4, **options)  # type: ignore[arg-type]
            hits = await engine.asearch("a bee", 4, **options)
            assert hits == expected and hits.facets == expected.facets
        vector = WordLengths().encode(["a bee"])[0]
        assert await engine.asearch(vector, 3) == engine.search(vector, 3)

    asyncio.run(ask())


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_timeout_is_a_number_of_seconds(engine: SearchEngine, timeout: object) -> None:
    with pytest.raises(QueryError, match="timeout must be a number of seconds above 0 and below"):
        engine.search("a bee", timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("texts", "role", "message"),
    [
        (["a"], "foo", "role must be one of query, document, got 'foo'"),
        ([], "query", "no texts to encode"),
    ],
)
def test_what_encode_refuses(engine: SearchEngine, texts: Any, role: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine.encode(texts, role)


def test_text_is_counted_while_it_is_read(engine: SearchEngine) -> None:
    with limited(Deadline(), 10_000):
        assert len(engine.search("a bee", 30)) == 30
    with limited(Deadline(), 100), pytest.raises(QueryError, match="too long to be read at once"):
        engine.search("a bee", 30)
