"""Processes that write to one collection while another does long work and is killed."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import WordLengths
from scenarios import document

from searchengine import SearchEngine
from searchengine.errors import EncoderMismatch


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


def write(path: Path, log: Path, seed: int) -> None:
    """Add and delete documents of this process and write each acknowledged change to a log.

    Ends when a file `stop` is beside the log, or when the collection has another encoder.
    """
    random, first = Random(seed), 60 * seed
    mine: list[int] = []
    with SearchEngine.open(path, WordLengths(), wait=60) as engine, log.open("w") as file:
        while not (log.parent / "stop").exists():
            time.sleep(0.01)
            number = random.randrange(first, first + 60)
            key = f"d{number}"
            try:
                if number in mine and random.random() < 0.5:
                    engine.delete([key])
                    mine.remove(number)
                else:
                    engine.add([document(number, version=random.randrange(3))])
                    mine = [each for each in mine if each != number] + [number]
            except EncoderMismatch:
                break
            print(*mine, file=file, flush=True)
    os._exit(0)


@contextmanager
def writers(path: Path, logs: Path, count: int = 2) -> Iterator[Callable[[], set[str]]]:
    """Run writers during the block; the result, called after it, is the keys that are stored."""
    running = [
        child(lambda seed=seed: write(path, logs / str(seed), seed))  # type: ignore[misc]
        for seed in range(1, count + 1)
    ]

    def acknowledged() -> set[str]:
        keys = set()
        for log in logs.iterdir():
            if log.name != "stop" and (lines := log.read_text().splitlines()):
                keys |= {f"d{number}" for number in lines[-1].split()}
        assert keys, "nothing was written"
        return keys

    try:
        yield acknowledged
    finally:
        (logs / "stop").touch()
        statuses = [os.waitpid(number, 0)[1] for number in running]
    assert statuses == [0] * count


def during(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    step: str,
    act: Callable[[], object],
    when: int = 1,
) -> None:
    """Call `act` before the n-th call of a method, or of a function of a module."""
    original = getattr(owner, step)
    calls = 0

    def stepped(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when:
            act()
        return original(self, *arguments, **options)

    monkeypatch.setattr(owner, step, stepped)
