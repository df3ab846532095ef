"""Several threads search at once: each gets its own result or its own error."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import QueryError


def test_searching_from_several_threads(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": str(i), "text": "a " * i + "bee " * (9 - i)} for i in range(10)])
        questions = ["a " * i + "bee " * (9 - i) for i in range(10)] * 2

        def best(question: str) -> list[str]:
            return [hit.key for hit in engine.search(question, 1, mode="vector")]

        with ThreadPoolExecutor(10) as callers:
            assert list(callers.map(best, questions)) == [[str(i)] for i in range(10)] * 2
            searches = [
                callers.submit(engine.search, "a", k, mode=m) for k in (1, 2, 3) for m in MODES
            ]
            searches.append(callers.submit(engine.search, "  "))
            sizes = [len(one.result(timeout=30)) for one in searches[:-1]]
            assert sizes == [1, 1, 2, 2, 3, 3]
            with pytest.raises(QueryError, match="the query is empty"):
                searches[-1].result(timeout=30)


MODES = ("vector", "hybrid")
