"""Joins calls that arrive at the same time into one, for callers that must not wait themselves,
such as the tasks of an event loop.
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from time import monotonic
from typing import Any

MAX_BATCH = 256
"""Maximum items in one call, so that the first does not wait for too many others."""
PATIENCE, MAX_PATIENCE = 0.2, 0.5
"""Time to wait for the callers of the last batch, as a fraction of the time that batch took, and in
seconds: after a search of half a minute nobody should wait for six seconds."""
ENOUGH = 32
"""Items of a background call that are not worth waiting for more: two halves of 64 callers then
alternate, and an encoder needs half the memory."""
_Work = Callable[[list[Any]], Sequence[Any]]
_Batch = list[tuple[Any, "Future[Any]"]]


class Coalescer:
    """Joins items of one key into one call, which a background thread runs; callers get futures.

    The thread of a key begins with its first item and ends when none is waiting. What arrives
    during a call is done by the next one, which waits a moment for the callers of the last one to
    ask again: else two halves of them would alternate. An item is left out if its future is
    cancelled before its call begins; later, its result is dropped. Neither concerns another item.
    """

    def __init__(self) -> None:
        self._lock = Condition()  # notified when an item arrives
        self._waiting: dict[Hashable, _Batch] = {}

    def submit(self, key: Hashable, item: Any, work: _Work) -> "Future[Any]":
        """A future of the result of one item; `work` returns a result for each item of a key."""
        future: Future[Any] = Future()
        with self._lock:
            if key not in self._waiting:
                waiting: _Batch = []
                Thread(target=self._run, args=(key, waiting, work), name="search").start()
                self._waiting[key] = waiting
            self._waiting[key].append((item, future))
            self._lock.notify_all()
        return future

    def _run(self, key: Hashable, waiting: _Batch, work: _Work) -> None:
        callers, patience = 1, 0.0
        while True:
            with self._lock:
                self._lock.wait_for(lambda: len(waiting) >= callers, patience)  # noqa: B023
                batch, waiting[:MAX_BATCH] = waiting[:MAX_BATCH], []
                if not batch:
                    del self._waiting[key]
                    return
            start = monotonic()
            _complete([each for each in batch if each[1].set_running_or_notify_cancel()], work)
            patience = min(PATIENCE * (monotonic() - start), MAX_PATIENCE)
            callers = min(len(batch) + len(waiting), ENOUGH)


def _complete(batch: _Batch, work: _Work) -> None:
    """Complete the futures of a batch; if it fails, run its halves one by one."""
    try:
        results = work([item for item, _ in batch]) if batch else []
        pairs = list(zip(batch, results, strict=True))
    except BaseException as error:  # the caller gets it, whatever it is
        if len(batch) == 1:
            batch[0][1].set_exception(error)
            return
        _complete(batch[: len(batch) // 2], work)
        _complete(batch[len(batch) // 2 :], work)
        return
    for (_, future), result in pairs:
        future.set_result(result)
