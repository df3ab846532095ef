"""Joins calls that arrive at the same time into one, for callers that must not wait themselves,
such as the tasks of an event loop.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)

MAX_BATCH = 256
"""Maximum items in one call, so that the first does not wait for too many others."""
PATIENCE = 0.2
"""Time to wait for the callers of the last batch, as a fraction of the time that batch took."""
MAX_PATIENCE = 0.5
"""Maximum seconds of it: after a search of half a minute nobody should wait for six seconds."""
ENOUGH = 32
"""Items of a background call that are not worth waiting for more: two halves of 64 callers then
alternate, and an encoder needs half the memory."""


class Coalescer(Generic[Item, Result]):
    """Joins items into one call, which a background thread runs; callers get futures.

    The thread begins with the first item and ends when none is waiting. What arrives during a call
    is done by the next one, which waits a moment for the callers of the last one to ask again: else
    two halves of them would alternate. An item is left out if its future is cancelled before its
    call begins; later, its result is dropped. Neither concerns any other item.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]]) -> None:
        """`work` returns a result for each item, in their order."""
        self._work = work
        self._lock = Condition()  # notified when an item arrives
        self._callers, self._patient_until = 1, 0.0
        self._waiting: deque[tuple[Item, Future[Result]]] = deque()
        self._running = False

    def submit(self, item: Item) -> Future[Result]:
        """A future of the item's result, or of what `work` raises for this item."""
        future: Future[Result] = Future()
        with self._lock:
            self._waiting.append((item, future))
            self._lock.notify()
            if not self._running:
                Thread(target=self._run, name="search").start()
                self._running = True
        return future

    def _run(self) -> None:
        while batch := self._next():
            start = monotonic()
            self._do(batch)
            ended = monotonic()
            self._callers = min(len(batch) + len(self._waiting), ENOUGH)
            patience = min(PATIENCE * (ended - start), MAX_PATIENCE)
            self._patient_until = ended + patience

    def _next(self) -> list[tuple[Item, Future[Result]]]:
        """The items of the next call; none: the thread ends."""
        batch: list[tuple[Item, Future[Result]]] = []
        with self._lock:
            self._lock.wait_for(self._all_back, max(0.0, self._patient_until - monotonic()))
            while self._waiting and len(batch) < MAX_BATCH:
                item, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    batch.append((item, future))
            self._running = bool(batch)
        return batch

    def _all_back(self) -> bool:
        return len(self._waiting) >= self._callers

    def _do(self, batch: list[tuple[Item, Future[Result]]]) -> None:
        """Complete the futures of a batch; if it fails, run its halves one by one."""
        try:
            results = list(self._work([item for item, _ in batch]))
            if len(results) != len(batch):
                raise ValueError(f"{len(batch)} items have {len(results)} results")
        except BaseException as error:  # the caller gets it, whatever it is
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            self._do(batch[: len(batch) // 2])
            self._do(batch[len(batch) // 2 :])
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class Coalescers(Generic[Key, Item, Result]):
    """Joins items that have the same key. A key's coalescer lives while a call uses it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: WeakValueDictionary[Key, Coalescer[Item, Result]] = WeakValueDictionary()

    def __bool__(self) -> bool:
        """Whether any call is under way."""
        return bool(self._running)

    def submit(
        self, key: Key, item: Item, work: Callable[[list[Item]], Sequence[Result]]
    ) -> Future[Result]:
        """A future of the result of one item; items of one key go to `work` together."""
        new = Coalescer[Item, Result](work)
        with self._lock:
            coalescer = self._running.setdefault(key, new)
        return coalescer.submit(item)
