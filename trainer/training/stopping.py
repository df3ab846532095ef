"""Signals that end a run: between two updates, so that a checkpoint can be written first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal came; the run ends as soon as its checkpoint is written."""


class Signals:
    """Within the block, the signals that end a process raise Stopped in the main thread.

    Within `whole` they wait until its end. After the first one they do again what they did before,
    so a second one ends the process at once. Signals that are ignored stay so.

    waits: never raise, only set `pending`. Processes that train together stop together, after an
    update: one that left within it would fail the others.
    """

    def __init__(self, waits: bool = False) -> None:
        self._waits = waits
        self._before: dict[int, Any] = {}
        self._held = False
        self._number = 0  # of the signal that came

    @property
    def pending(self) -> bool:
        """Whether a signal came."""
        return self._number != 0

    def __enter__(self) -> Self:
        if current_thread() is main_thread():  # only there may handlers be set
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self._restore()
        if isinstance(error, Stopped) or (error is None and self.pending):
            # Usually raises. Without a number, another process had the signal.
            signal.raise_signal(self._number or signal.SIGTERM)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A block that a signal does not cut short."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.pending and not self._waits:
            raise Stopped

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._number = number
        self._restore()
        if not self._held and not self._waits:
            raise Stopped

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
