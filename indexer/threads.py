"""How many threads the native calls of this process may use together.

faiss shares a batch out over OpenMP threads, as many as there are cores in every call. Ten callers
at once would run ten times that: each call here takes its threads from one budget, waits while
none is free, and gives them back.
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
        """In a forked child: nobody holds threads, and calls get one each.

        OpenMP's other threads stayed with the parent, and a parallel call of the thread that forked
        would wait for them for ever. A higher limit set afterwards is at the caller's risk.
        """
        self._freed = Condition()
        self._limit, self._used = 1, 0

    @property
    def limit(self) -> int:
        """Threads that may be in use at once; those in use already are not taken away."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._freed:
            self._limit = at_least_one("threads", limit)
            self._freed.notify_all()

    @contextmanager
    def take(self, most: int) -> Iterator[int]:
        """As many threads as are free, at least 1 and at most `most`; waits while none is."""
        with self._freed:
            self._freed.wait_for(lambda: self._used < self._limit)
            taken = max(1, min(most, self._limit - self._used))
            self._used += taken
        try:
            yield taken
        finally:
            with self._freed:
                self._used -= taken
                self._freed.notify_all()


def available_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


threads = ThreadBudget(available_cores())
"""The budget of this process. `threads.limit = 4` leaves the other cores to others."""

if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=threads.after_fork)
