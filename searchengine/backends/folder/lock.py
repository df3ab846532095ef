"""The lock that admits one writer, of the threads of this process and of all processes.

Threads take turns; between processes it is SQLite's lock, which the end of a transaction releases.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import random
from threading import RLock
from time import monotonic, sleep
from typing import Any

from searchengine.errors import CollectionBusy

Identity = tuple[int, int]
"""The device and inode of a file."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # seconds between two tries to begin to write
turns: dict[Identity, Any] = {}


@contextmanager
def turn(path: Path, identity: Identity, queue: bool) -> Iterator[None]:
    """Let the threads of this process write to a file one at a time.

    Without `queue`, raises CollectionBusy, with `path`, while another is writing.
    """
    lock = turns.setdefault(identity, RLock())
    if not lock.acquire(blocking=queue):
        raise CollectionBusy(f"{path} is being written to by another thread")
    try:
        yield
    finally:
        lock.release()


def begin(execute: Callable[[str], None], wait: float) -> None:
    """Try for `wait` seconds. If SQLite did the waiting, a fork would have to wait as well."""
    until, pause = monotonic() + wait, _FIRST_PAUSE
    while True:
        try:
            return execute("BEGIN IMMEDIATE")
        except CollectionBusy:
            remaining = until - monotonic()
            if remaining <= 0:
                raise
            sleep(min(remaining, pause * random()))
            pause = min(2 * pause, _LONGEST_PAUSE)
