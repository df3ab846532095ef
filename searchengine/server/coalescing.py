"""Joins questions that arrive at the same time into one call."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MAX_BATCH = 256
"""Maximum items in one call, so that the first does not wait for too many others."""
PATIENCE, MAX_PATIENCE = 0.2, 0.5
"""Time to wait for the callers of the last batch, as a fraction of the time that batch took, and in
seconds: after a search of half a minute nobody should wait for six seconds."""
ENOUGH = 32
"""Items of a call that are not worth waiting for more: two halves of 64 callers then alternate, and
an encoder needs half the memory."""
_Call = Callable[[list[Any]], Sequence[Any]]
_Waiting = list[tuple[Any, "asyncio.Future[Any]"]]


class Coalescer:
    """Joins items of one key into one call in a thread. Of one event loop.

    What arrives during a call is done by the next one, which waits a moment for the callers of the
    last one to ask again: else two halves of them would alternate. An item is left out if its
    caller leaves before its call begins; later, its result is dropped. Neither concerns another.
    """

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads, "search")
        self._waiting: dict[Hashable, _Waiting] = {}
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    async def ask(self, key: Hashable, item: Any, call: _Call) -> Any:
        """The result of one item; `call` returns a result for each item of a key."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if key not in self._waiting:
            self._waiting[key] = []
            self._tasks[key] = asyncio.create_task(self._run(key, call))
        self._waiting[key].append((item, result))
        return await result

    async def _run(self, key: Hashable, call: _Call) -> None:
        """Call until nobody waits."""
        loop, waiting = asyncio.get_running_loop(), self._waiting[key]
        callers, until = 1, 0.0
        while True:
            while len(waiting) < callers and loop.time() < until:
                await asyncio.sleep(0.001)
            batch, waiting[:MAX_BATCH] = waiting[:MAX_BATCH], []
            if not batch:
                break
            batch = [each for each in batch if not each[1].done()]
            start = loop.time()
            items = [item for item, _ in batch]
            answers = await loop.run_in_executor(self.threads, _results, call, items)
            for (_, result), answer in zip(batch, answers, strict=True):
                if result.done():
                    continue
                if isinstance(answer, BaseException):
                    result.set_exception(answer)
                else:
                    result.set_result(answer)
            callers = min(len(batch) + len(waiting), ENOUGH)
            until = loop.time() + min(PATIENCE * (loop.time() - start), MAX_PATIENCE)
        del self._waiting[key], self._tasks[key]


def _results(call: _Call, items: list[Any]) -> Sequence[Any]:
    """A result or an error for each item: if a call fails, its halves are tried."""
    try:
        return call(items) if items else []
    except Exception as error:
        if len(items) == 1:
            return [error]
        half = len(items) // 2
        return [*_results(call, items[:half]), *_results(call, items[half:])]
