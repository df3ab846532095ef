"""A budget of threads that all native calls of this process share.

By default every faiss call starts as many OpenMP threads as there are cores, so ten callers at once
would run ten times as many. Here each call takes threads from one budget, waits while none is free,
and returns them. Calls take turns in the order in which they come, and a batch is cut into slices
that take some milliseconds each, so that no call waits for a whole batch of another.
"""

import os
from collections import deque
from collections.abc import Iterator
from threading import Condition
from time import perf_counter

from searchengine.indexer.arrays import at_least_one

SLICE_SECONDS = 0.01
"""Target time of a slice of a batch: the longest that a single query waits for one."""

MIN_SLICE, MAX_SLICE = 16, 4096
"""Queries in a slice. With fewer, threads have no work and a matrix product reads its operands for
too few rows."""


class ThreadBudget:
    """A number of threads shared by all callers.

    Attributes:
        limit: threads that may be in use at once; may be changed at any time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = at_least_one("threads", limit)
        self._used, self._waiting, self._freed = 0, deque[object](), Condition()

    def after_fork(self) -> None:
        """In a forked child: no threads are in use, and every call gets one.

        The other threads of OpenMP exist in the parent only, and a parallel call would wait for
        them for ever. A higher limit set afterwards is at the caller's risk.
        """
        self._limit, self._used, self._waiting, self._freed = 1, 0, deque(), Condition()

    @property
    def limit(self) -> int:
        """Threads that may be in use at once; lowering it does not stop running calls."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._freed:
            self._limit = at_least_one("threads", limit)
            self._freed.notify_all()

    def take(self, limit: int) -> "Share":
        """Take the free threads, at least 1 and at most `limit`; wait while none is free.

        A context manager that gives their number.
        """
        return Share(self, limit)

    def _take(self, limit: int) -> int:
        with self._freed:
            if self._waiting or self._used >= self._limit:
                turn = object()
                self._waiting.append(turn)
                try:
                    self._freed.wait_for(
                        lambda: self._waiting[0] is turn and self._used < self._limit
                    )
                finally:
                    self._waiting.remove(turn)
                    self._freed.notify_all()
            threads = max(1, min(limit, self._limit - self._used))
            self._used += threads
            return threads

    def _return(self, threads: int) -> None:
        with self._freed:
            self._used -= threads
            if self._waiting:
                self._freed.notify_all()


class Share:
    """Threads of a budget, taken for the time of a `with`."""

    __slots__ = ("_budget", "_limit", "_taken")

    def __init__(self, budget: ThreadBudget, limit: int) -> None:
        self._budget, self._limit, self._taken = budget, limit, 0

    def __enter__(self) -> int:
        self._taken = self._budget._take(self._limit)
        return self._taken

    def __exit__(self, *_: object) -> None:
        self._budget._return(self._taken)


def slices(total: int, smallest: int = MIN_SLICE, largest: int = MAX_SLICE) -> Iterator[slice]:
    """Cut a batch of `total` queries, in order, so that each slice takes about SLICE_SECONDS.

    The time that a slice took sets the number of queries of the next, between `smallest` and
    `largest`. Works for the rows of a pass as well.
    """
    start, size = 0, smallest
    while start < total:
        stop = min(start + size, total)
        began = perf_counter()
        yield slice(start, stop)
        share = SLICE_SECONDS / max(perf_counter() - began, 1e-6)
        size = max(smallest, min(largest, 4 * size, int((stop - start) * share)))
        start = stop


def available_cores() -> int:
    """Number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


threads = ThreadBudget(available_cores())
"""The budget of this process. `threads.limit = 4` leaves the other cores free."""

os.register_at_fork(after_in_child=threads.after_fork)
