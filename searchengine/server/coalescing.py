"""Joins questions that arrive at the same time into one call."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MAX_BATCH = 256
"""Maximum items in one call, so that the first does not wait for too many others."""
_Call = Callable[[list[Any]], Sequence[Any]]


class Coalescer:
    """Joins items of one key into one call in a thread. Of one event loop.

    What arrives during a call is done by the next one. An item is left out if its caller leaves
    before its call begins; later, its result is dropped. Neither concerns another item.
    """

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads, "search")
        self._waiting: dict[Hashable, tuple[list[Any], asyncio.Task[None]]] = {}

    async def ask(self, key: Hashable, item: Any, call: _Call) -> Any:
        """The result of one item; `call` returns a result for each item of a key."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if key not in self._waiting:
            waiting: list[Any] = []
            self._waiting[key] = waiting, asyncio.create_task(self._run(key, waiting, call))
        self._waiting[key][0].append((item, result))
        return await result

    async def _run(self, key: Hashable, waiting: list[Any], call: _Call) -> None:
        """Call until nobody waits."""
        loop = asyncio.get_running_loop()
        while waiting:
            batch, waiting[:MAX_BATCH] = waiting[:MAX_BATCH], []
            batch = [(item, result) for item, result in batch if not result.done()]
            items = [item for item, _ in batch]
            answers = await loop.run_in_executor(self.threads, _results, call, items)
            for (_, result), answer in zip(batch, answers, strict=True):
                if result.done():
                    continue
                if isinstance(answer, Exception):
                    result.set_exception(answer)
                else:
                    result.set_result(answer)
        del self._waiting[key]


def _results(call: _Call, items: list[Any]) -> Sequence[Any]:
    """A result or an error for each item: if a call fails, its halves are tried."""
    try:
        return call(items) if items else []
    except Exception as error:
        if len(items) == 1:
            return [error]
        half = len(items) // 2
        return [*_results(call, items[:half]), *_results(call, items[half:])]
