"""Calls that come at once, done together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Event
from time import monotonic
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGEST = 256
"""Items done together at most: what comes first should not wait for too many others."""
PATIENCE = 0.1
"""How long is waited for those whose items were done just now, as a share of what that took."""


@dataclass(slots=True, eq=False)
class _Call(Generic[Item, Result]):
    item: Item
    results: list[Result] = field(default_factory=list)  # of one item: empty until it is there
    leads: bool = False  # whether it is its turn to work
    woken: Event = field(default_factory=Event)


class Coalescer(Generic[Item, Result]):
    """Does in one call what several threads ask for at once.

    Who finds nobody at work does it at once. Who comes meanwhile waits, and one of those who wait
    then does it for all of them: the more ask at once, the larger the batches. Who was answered
    together with others is likely to ask again together with them: the first of them to do so
    waits a moment for the others. (Else batches of one and of all the others take turns.)
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]]) -> None:
        """`work` gives a result for each item, in their order."""
        self._work = work
        self._lock = Condition()  # notified when a call arrives
        self._waiting: list[_Call[Item, Result]] = []
        self._busy = False
        self._last, self._patient_until = 1, 0.0

    def __call__(self, item: Item) -> Result:
        """The result of one item. Raises what `work` raises for it alone."""
        call: _Call[Item, Result] = _Call(item)
        try:
            with self._lock:
                self._waiting.append(call)
                self._lock.notify_all()
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
            self._lock.wait_for(self._all_back, max(0.0, self._patient_until - monotonic()))
            others = [call for call in self._waiting if call is not own]
        batch = [own, *others[: LARGEST - 1]]
        begun = monotonic()
        try:
            self._do(batch)
        except Exception:
            if len(batch) == 1:
                raise
            self._do([own])  # whose fault it was shows when each is alone
        finally:
            ended = monotonic()
            self._last = len(batch)
            self._patient_until = ended + PATIENCE * (ended - begun)

    def _all_back(self) -> bool:
        return len(self._waiting) >= self._last

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
