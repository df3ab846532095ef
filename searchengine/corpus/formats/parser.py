"""Runs readers in a process with limits, so that no file can stop the others from being read.

A process reads one file after another. One that takes too long or too much memory, or crashes, is
ended and replaced, and its file is refused.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Self

from searchengine.corpus.formats.kinds import Kind
from searchengine.corpus.formats.parts import Heading, Part
from searchengine.corpus.lines import bad
from searchengine.errors import UnreadableFile

MEMORY = 2 << 30
"""Bytes that the process may hold."""
SECONDS = 120
"""Processor time for one text of a file."""
_WAITING = 5  # times SECONDS to wait for an answer: a file may be on a slow disk
# Libraries that start a thread for each core would take the memory that readers need.
_ONE_THREAD = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Parser:
    """A process that runs readers, started when it is first needed. A context manager."""

    def __init__(self, memory: int = MEMORY, seconds: int = SECONDS) -> None:
        self._limits = memory, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._answering = False  # the last answer to a request has not come

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def parts(self, path: Path, kind: Kind) -> Iterator[Part]:
        """The texts of a file. Raises UnreadableFile."""
        for answer in self._answers(path, kind, None):
            fields = answer["part"]
            headings = tuple(Heading(**each) for each in fields.pop("headings"))
            yield Part(**fields, headings=headings)

    def records(
        self, path: Path, kind: Kind, table: str = ""
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Place and record of every object or row of a file. Raises UnreadableFile."""
        for answer in self._answers(path, kind, table):
            yield from map(tuple, answer["records"])

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None
        self._answering = False

    def _answers(self, path: Path, kind: Kind, table: str | None) -> Iterator[dict[str, Any]]:
        if kind.missing:
            what = f"to read {kind.name} files, install the extra formats: {kind.missing}"
            raise _unreadable(path, what)
        connection = self._ready()
        self._answering = True
        try:
            request = {"reader": kind.reader, "path": str(path), "table": table}
            connection.send_bytes(json.dumps(request).encode())
            while self._answering:
                if not connection.poll(_WAITING * self._limits[1]):
                    self.close()
                    raise _unreadable(
                        path, f"gave no text in {_WAITING * self._limits[1]} s; left out"
                    )
                answer = json.loads(connection.recv_bytes())
                self._answering = not ("end" in answer or "error" in answer)
                if "error" in answer:
                    raise UnreadableFile(answer["error"])
                if self._answering:
                    yield answer
        except (EOFError, OSError) as error:
            why = self._why()
            self.close()
            raise _unreadable(path, why) from error

    def _ready(self) -> Connection:
        """A connection without answers to an earlier request, whose caller left before the last."""
        if self._answering:
            self.close()
        return self._started()

    def _started(self) -> Connection:
        if self._connection is None:
            here, there = Pipe()
            module = "searchengine.corpus.formats.worker"
            arguments = [there.fileno(), *self._limits]
            modules = map(os.path.abspath, sys.path)  # the same as those of this process
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, *map(str, arguments)],
                    pass_fds=[there.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(modules)},
                )
            self._connection = here
        return self._connection

    def _why(self) -> str:
        """Why the process has ended."""
        assert self._process is not None
        status = self._process.wait()
        memory, seconds = self._limits
        if status == -signal.SIGXCPU:
            return f"took more than {seconds} s of processor time; left out"
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return (
            f"its reader ended ({ended}): the file is damaged, or needs more than {memory >> 20} "
            "MiB of memory"
        )


def _unreadable(path: Path, what: str) -> UnreadableFile:
    return UnreadableFile(str(bad(path, what)))
