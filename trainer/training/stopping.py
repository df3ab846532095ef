"""Signals that end a run: looked at between two updates, so that a checkpoint is written first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def postponed_signals() -> Iterator[list[int]]:
    """A block in which a signal to end the process is only added to the list; raised at its end.

    After the first one all do again what they did before, so a second one ends the process at once.
    Signals that are ignored stay so.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        restore()

    if current_thread() is main_thread():  # only there may handlers be set
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()
    if received:
        signal.raise_signal(received[0])
