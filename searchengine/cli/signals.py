"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it was writing is removed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Terminated(SystemExit):
    """A signal ended the command.

    Attributes:
        status: the exit status, 128 + the signal's number, as shells report it.
        signal_name: such as SIGTERM.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        self.signal_name = signal.Signals(number).name
        super().__init__(self.status)


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Within the block, raise Terminated in the main thread where a signal would kill the process.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    if current_thread() is not main_thread():  # only the main thread may set handlers
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    replaced = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in replaced:
            signal.signal(number, _terminate)
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    raise Terminated(number)
