"""Faults on demand: the library of faults.c, and children that may die of them.

`under_faults` starts this process again with the library loaded; from then on `arm` says which call
below a folder fails, and how. A process forks a child for every fault, so everything is imported
once. One thread only (OMP_NUM_THREADS=1): a forked child has none of its parent's threads.
"""

import ctypes
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import REPOSITORY

SOURCE = Path(__file__).with_name("faults.c")
_LOADED = "FAULTS_LIBRARY"
_KINDS = {
    "w": "write",
    "t": "truncate",
    "c": "create",
    "s": "sync",
    "S": "sync folder",
    "r": "rename",
    "l": "link",
    "u": "unlink",
    "m": "mkdir",
    "d": "rmdir",
    "k": "mark",
}


class Action(IntEnum):
    """What happens at the n-th call."""

    COUNT = 0  # nothing
    KILL = 1  # SIGKILL before it
    TEAR = 2  # SIGKILL when half of a write is done; before it if it is no write
    FAIL_ONCE = 3
    FAIL_FROM = 4  # it and all that follow; of a write that finds no room, half is done


def missing() -> str | None:
    """Why there can be no faults here; None if there can."""
    if sys.platform != "linux":
        return "faults are made by LD_PRELOAD, on Linux"
    return None if shutil.which("cc") else "faults need a C compiler, cc"


def compile_library(folder: Path) -> Path:
    """Build the library into a folder."""
    library = folder / "faults.so"
    flags = ["-shared", "-fPIC", "-O2", "-o", str(library)]
    subprocess.run(["cc", *flags, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


def environment() -> dict[str, str]:
    """Of a process to start with the library loaded, and with one thread."""
    library = str(compile_library(Path(tempfile.mkdtemp(prefix="faults-"))))
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one, "LD_PRELOAD": library, _LOADED: library}


def under_faults() -> None:
    """Start this process again with the library loaded; returns at once when it is."""
    if _LOADED in os.environ:
        shutil.rmtree(Path(os.environ[_LOADED]).parent, ignore_errors=True)
        return
    os.execve(sys.executable, [sys.executable, *sys.argv], environment())


class Record(NamedTuple):
    """One call of the journal: its kind (a letter, see faults.c), paths, offset or size, data."""

    kind: str
    path: str
    to: str
    at: int
    data: bytes

    @property
    def what(self) -> str:
        """The kind in words."""
        return _KINDS[self.kind]

    def __str__(self) -> str:
        return " ".join((self.what, *(Path(p).name for p in (self.path, self.to) if p)))


class Library:
    """The library in this process."""

    def __init__(self) -> None:
        self._calls = ctypes.CDLL(None)
        self._calls.faults_journal.restype = ctypes.c_void_p

    def arm(
        self,
        below: Path,
        number: int = 0,
        action: Action = Action.COUNT,
        error: int = 0,
        *,
        record: bool = False,
    ) -> None:
        """Count the calls below a folder from 1; `action` happens at the call of this number."""
        self._calls.faults_arm(
            os.fsencode(below), ctypes.c_long(number), int(action), error, int(record)
        )

    def disarm(self) -> None:
        """No more faults."""
        self._calls.faults_disarm()

    def mark(self, number: int) -> None:
        """Write a number into the journal."""
        self._calls.faults_mark(ctypes.c_long(number))

    def journal(self) -> bytes:
        """What was recorded since `arm`; `records` reads it."""
        size = ctypes.c_size_t()
        start = self._calls.faults_journal(ctypes.byref(size))
        return ctypes.string_at(start, size.value) if size.value else b""


def records(journal: bytes) -> Iterator[Record]:
    """The calls of a journal, in their order."""
    head, at = struct.Struct("=c4q"), 0
    while at < len(journal):
        kind, *lengths, offset, size = head.unpack_from(journal, at)
        at += head.size
        parts = []
        for length in (*lengths, size):
            parts.append(journal[at : at + length])
            at += length
        path, to = os.fsdecode(parts[0]), os.fsdecode(parts[1])
        yield Record(kind.decode(), path, to, offset, parts[2])


@dataclass
class Outcome:
    """How a child ended: what it said, and the signal or the exception it died of."""

    said: list[Any] = field(default_factory=list)
    signal: int = 0
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """What went wrong, if anything did."""
        if self.signal:
            return f"died of {signal.Signals(self.signal).name}"
        return self.error


def in_child(work: Callable[[Callable[[Any], None]], None], seconds: int = 30) -> Outcome:
    """Do `work` in a forked child; it is given a function by which it says things (JSON).

    A child that hangs dies of SIGALRM.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(seconds)

        def say(thing: Any, kind: str = "said") -> None:
            os.write(writing, json.dumps({kind: thing}).encode() + b"\n")

        try:
            work(say)
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            say(f"{type(error).__name__} at {where}: {error}", "error")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    outcome = Outcome(signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
    for line in lines:
        outcome.said += [line["said"]] if "said" in line else []
        outcome.error = line.get("error", outcome.error)
    return outcome


def in_mounts(script: str, path: Path) -> str:
    """The output of a shell script, with mounts of its own: $1 is the path, and $2 Python."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(path), sys.executable]
    done = subprocess.run(
        command,
        cwd=REPOSITORY / "tests",
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
        capture_output=True,
        text=True,
    )
    if done.returncode in (1, 77) and "permitted" in done.stderr + done.stdout:
        pytest.skip("mounting is not permitted here")
    assert done.returncode == 0, done.stderr
    return done.stdout
