"""Questions of many tasks: they share calls, and none of them concerns another."""

import asyncio
import time
from pathlib import Path
from typing import Any

from searchengine.query.hits import Hits
from searchengine.server import ServerSettings
from searchengine.server.served import MAX_BATCH, Served


class Engine:
    """Counts its calls, and fails if one of the questions is 77."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def search_batch(self, questions: list[str], k: int) -> list[Hits]:
        self.calls.append(len(questions))
        time.sleep(0.02)
        if "77" in questions:
            raise ValueError("77")
        return [Hits([question, k]) for question in questions]  # type: ignore[list-item]


def test_600_at_once_a_third_cancelled() -> None:
    """Each gets its own answer or error."""
    engine = Engine()

    def show(hits: Hits) -> bytes:
        return b"%s %d" % (hits[0].encode(), hits[1])  # type: ignore[attr-defined]

    async def ask() -> None:
        served: Any = Served("c", Path("c"), ServerSettings({}))
        served._engine = engine
        for moment in (0.0, 0.01):
            questions = (served.search(str(i), {"k": i % 2 + 1}, show) for i in range(600))
            tasks = [asyncio.create_task(question) for question in questions]
            await asyncio.sleep(moment)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
            assert {type(result) for result in results[::3]} == {asyncio.CancelledError}
            assert repr(results[77]) == "ValueError('77')"
            answered = [i for i in range(600) if i % 3 and i != 77]
            assert all(results[i][1] == b"%d %d" % (i, i % 2 + 1) for i in answered)
        await asyncio.sleep(0.1)
        assert not served._waiting and not served._tasks
        served._engine = None
        await served.close()

    asyncio.run(ask())
    assert len(engine.calls) < 60 and max(engine.calls) <= MAX_BATCH
