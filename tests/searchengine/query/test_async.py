"""asearch: the event loop goes on, tasks share calls, and a cancelled task concerns no other."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import Hit, SearchEngine
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
        for call in (engine.asearch(" "), engine.asearch("x", 0), engine.asearch("x", size=3)):  # type: ignore[call-arg]
            with pytest.raises(QueryError):
                await call
        with pytest.raises(FilterError):
            await engine.asearch("x", where="year >")
        engine.close()
        with pytest.raises(CollectionError, match="closed"):
            await engine.asearch("x")

    asyncio.run(ask())


def test_200_at_once_a_third_cancelled(
    engine: SearchEngine, record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hit goes astray, nothing waits for ever, and the loop keeps its beat."""
    encoder = engine.encoder
    matrix = WordLengths().encode(TEXTS).T

    def check(question: str, hits: list[Hit]) -> None:
        cosines = (WordLengths().encode([question]) @ matrix)[0]
        assert [hit.question for hit in hits] == [question] * 3
        assert [hit.score for hit in hits] == pytest.approx(np.sort(cosines)[:-4:-1], abs=1e-3)
        assert [hit.score for hit in hits] == pytest.approx(
            [cosines[int(hit.key)] for hit in hits], abs=1e-3
        )

    real, batches = encoder.encode, []

    def slow(texts: Any, *, role: Any = None) -> Any:
        batches.append(len(texts))
        time.sleep(0.02)  # a network that runs without the interpreter's lock
        return real(texts, role=role)

    monkeypatch.setattr(encoder, "encode", slow)
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before)

    async def ask() -> None:
        pulse = asyncio.create_task(beat())
        for round_ in range(5):
            questions = [f"{TEXTS[i % len(TEXTS)]}{' x' * round_}" for i in range(200)]
            tasks = [
                asyncio.create_task(engine.asearch(text, 3, mode="vector")) for text in questions
            ]
            await asyncio.sleep(0.005 * round_)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.wait_for(
                asyncio.gather(*tasks, return_exceptions=True), timeout=60
            )
            for i, (text, result) in enumerate(zip(questions, results, strict=True)):
                if isinstance(result, asyncio.CancelledError):
                    assert i % 3 == 0
                else:
                    check(text, result)  # type: ignore[arg-type]
        pulse.cancel()

    asyncio.run(ask())
    record_property("longest pause of the loop, s", longest)
    print(f"longest pause of the loop: {1e3 * longest:.1f} ms, {len(batches)} calls of the encoder")
    assert longest < 5  # a generous bound: the machine may be busy
    assert len(batches) < 1000 / 3, "tasks do not share calls"


def test_loops_in_several_threads(engine: SearchEngine) -> None:
    expected = engine.search("a bee", 3)
    results: list[Any] = []

    async def ask() -> None:
        results.extend(await asyncio.gather(*(engine.asearch("a bee", 3) for _ in range(20))))

    threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [expected] * 80


def test_a_loop_that_ends_early_leaves_nothing_behind(engine: SearchEngine) -> None:
    async def leave() -> None:
        for _ in range(10):
            task = asyncio.create_task(engine.asearch("a bee", 3))
            await asyncio.sleep(0)
            task.cancel()

    for _ in range(5):
        asyncio.run(leave())
    assert asyncio.run(engine.asearch("a bee", 3)) == engine.search("a bee", 3)
