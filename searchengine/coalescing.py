"""Calls that come at once, done together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGEST = 256
"""Items done together at most: what comes first should not wait for too many others."""


@dataclass(slots=True, eq=False)
class _Call(Generic[Item, Result]):
    item: Item
    results: list[Result] = field(default_factory=list)  # of one item: empty until it is there
    leads: bool = False  # whether it is its turn to work
    woken: Event = field(default_factory=Event)


class Coalescer(Generic[Item, Result]):
    """Does in one call what several threads ask for at once.

    Who finds nobody at work does it at once. Who comes meanwhile waits, and one of those who wait
    then does it for all of them: nobody waits for a batch to fill, and the more ask at once, the
    larger the batches.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]]) -> None:
        """`work` gives a result for each item, in their order."""
        self._work = work
        self._lock = Lock()
        self._waiting: list[_Call[Item, Result]] = []
        self._busy = False

    def __call__(self, item: Item) -> Result:
        """The result of one item. Raises what `work` raises for it alone."""
        call: _Call[Item, Result] = _Call(item)
        try:
            with self._lock:
                self._waiting.append(call)
                if not self._busy:
                    call.leads = self._busy = True
            if not call.leads:
                call.woken.wait()
            if call.leads:
                self._lead(call)
        finally:
            self._leave(call)
        return call.results[0]

    def _lead(self, own: _Call[Item, Result]) -> None:
        """Work for all who wait."""
        with self._lock:
            others = [call for call in self._waiting if call is not own]
        batch = [own, *others[: LARGEST - 1]]
        try:
            self._do(batch)
        except Exception:
            if len(batch) == 1:
                raise
            self._do([own])  # whose fault it was shows when each is alone

    def _leave(self, own: _Call[Item, Result]) -> None:
        """Have the next one work, if it was this one's turn: done, failed or interrupted."""
        with self._lock:
            self._waiting = [call for call in self._waiting if call is not own and not call.results]
            if own.leads:
                self._busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].leads = True
                    self._waiting[0].woken.set()

    def _do(self, batch: list[_Call[Item, Result]]) -> None:
        results = self._work([call.item for call in batch])
        for call, result in zip(batch, results, strict=True):
            call.results.append(result)
            call.woken.set()
