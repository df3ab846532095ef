"""Questions of many tasks: they share calls, and none of them concerns another."""

import asyncio
import time

from searchengine.server.coalescing import MAX_BATCH, Coalescer


def test_600_at_once_a_third_cancelled() -> None:
    """Each gets its own answer or error, and the loop keeps its beat."""
    calls: list[list[int]] = []

    def call(items: list[int]) -> list[int]:
        calls.append(items)
        time.sleep(0.02)
        if 77 in items:
            raise ValueError("77")
        return [-item for item in items]

    async def beat(pauses: list[float]) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            pauses.append(time.perf_counter() - before)

    async def ask() -> None:
        coalescer, pauses = Coalescer(2), list[float]()
        pulse = asyncio.create_task(beat(pauses))
        for moment in (0.0, 0.01):
            tasks = [
                asyncio.create_task(coalescer.ask(item % 2, item, call)) for item in range(600)
            ]
            await asyncio.sleep(moment)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
            for item, result in enumerate(results):
                if item % 3 == 0:
                    assert isinstance(result, asyncio.CancelledError)
                else:
                    assert repr(result) == "ValueError('77')" if item == 77 else result == -item
        pulse.cancel()
        await asyncio.sleep(0.1)
        assert not coalescer._waiting
        assert max(pauses) < 5  # a generous bound: the machine may be busy
        coalescer.threads.shutdown()

    asyncio.run(ask())
    assert len(calls) < 60 and all(len(items) <= MAX_BATCH for items in calls)
    assert all(len({item % 2 for item in items}) == 1 for items in calls)
