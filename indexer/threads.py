"""A budget of threads that all native calls of this process share.

By default every faiss call starts as many OpenMP threads as there are cores, so ten callers at once
would run ten times as many. Here each call takes threads from one budget, waits while none is free,
and returns them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from indexer.arrays import at_least_one


class ThreadBudget:
    """A number of threads shared by all callers.

    Attributes:
        limit: threads that may be in use at once; may be changed at any time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = at_least_one("threads", limit)
        self._used = 0
        self._freed = Condition()

    def after_fork(self) -> None:
        """In a forked child: no threads are in use, and every call gets one.

        The other threads of OpenMP exist in the parent only, and a parallel call would wait for
        them for ever. A higher limit set afterwards is at the caller's risk.
        """
        self._freed = Condition()
        self._limit, self._used = 1, 0

    @property
    def limit(self) -> int:
        """Threads that may be in use at once; lowering it does not stop running calls."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._freed:
            self._limit = at_least_one("threads", limit)
            self._freed.notify_all()

    @contextmanager
    def take(self, limit: int) -> Iterator[int]:
        """Take the free threads, at least 1 and at most `limit`; wait while none is free."""
        with self._freed:
            self._freed.wait_for(lambda: self._used < self._limit)
            taken = max(1, min(limit, self._limit - self._used))
            self._used += taken
        try:
            yield taken
        finally:
            with self._freed:
                self._used -= taken
                self._freed.notify_all()


def available_cores() -> int:
    """Number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


threads = ThreadBudget(available_cores())
"""The budget of this process. `threads.limit = 4` leaves the other cores free."""

if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=threads.after_fork)
