"""What happens to a collection while another process or thread works on it."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from conftest import WordLengths
from scenarios import document

from searchengine import SearchEngine


def child(work: Callable[[], None]) -> int:
    """Do something in a forked process; its number."""
    number = os.fork()
    if number:
        return number
    signal.alarm(120)
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # _exit would say nothing
    finally:
        os._exit(1)


@contextmanager
def writer(path: Path, folder: Path) -> Iterator[None]:
    """Another process adds, deletes and merges during the block, and has begun to."""
    begun, stop = folder / "begun", folder / "stop"

    def write() -> None:
        random = Random(1)
        with SearchEngine.open(path, WordLengths(), wait=60) as engine:
            while not stop.exists():
                number = random.randrange(60)
                if f"d{number}" in engine and random.random() < 0.5:
                    engine.delete([f"d{number}"])
                else:
                    engine.add([document(number, version=random.randrange(3))])
                begun.touch()
                time.sleep(0.01)

    number, until = child(write), time.monotonic() + 60
    try:
        while not begun.exists():
            assert time.monotonic() < until, "nothing was written"
            time.sleep(0.01)
        yield
    finally:
        stop.touch()
        _, status = os.waitpid(number, 0)
    assert status == 0
