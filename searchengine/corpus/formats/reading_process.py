"""Runs readers in a process with limits, so that no file can stop the others from being read.

A process reads one file after another. One that takes too long or too much memory, or crashes, is
ended and replaced, and its file is refused. It runs this module, as

    python -m searchengine.corpus.formats.reading_process FD MEMORY SECONDS

Requests and answers are JSON, over the connection that the descriptor FD is one end of. A request
is [reader, path]. The answers to it are the fields of a Text, a list of records ([place, record])
or a sentence on what is lost, and at last {"end": why the file cannot be read, or ""}.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from searchengine.corpus.formats import Kind
from searchengine.corpus.text_files import LONGEST, Heading, Text, bad, too_long
from searchengine.errors import CorpusError, UnreadableFile

MEMORY, SECONDS, WAITING = 2 << 30, 120, 600.0
"""Bytes that the process may hold; seconds of processor time for an answer; seconds to wait for
one, as a file may be on a slow disk."""
# Libraries that start a thread for each core would take the memory that readers need.
_ONE_THREAD = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_MODULE = "searchengine.corpus.formats.reading_process"
_RECORDS = 64  # of an answer


class Parser(AbstractContextManager["Parser"]):
    """A process that runs readers, started when it is first needed. A context manager."""

    def __init__(
        self, memory: int = MEMORY, seconds: int = SECONDS, waiting: float = WAITING
    ) -> None:
        self._limits, self._waiting = (memory, seconds), waiting
        self._process: subprocess.Popen[bytes] | None = None
        self._connection, _ = Pipe()
        self._answering = False  # the last answer to a request has not come

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def read(self, path: Path, kind: Kind) -> Iterator[Any]:
        """The Parts of a file, or place and record of each object or row. Raises UnreadableFile."""
        if kind.missing:
            what = f"to read {kind.name} files, install the extra formats: {kind.missing}"
            raise UnreadableFile(str(bad(path, what)))
        if self._answering:  # a caller has left before the last answer
            self.__exit__()
        try:
            if self._process is None:
                self._start()
            self._answering = True
            self._connection.send_bytes(json.dumps([kind.reader, str(path)]).encode())
            while self._connection.poll(self._waiting):
                answer = json.loads(self._connection.recv_bytes())
                if isinstance(answer, list):
                    yield from answer
                elif isinstance(answer, str):
                    yield answer
                elif "end" not in answer:
                    headings = tuple(Heading(**heading) for heading in answer.pop("headings"))
                    yield Text(**answer, headings=headings)
                else:
                    self._answering = False
                    if answer["end"]:
                        raise UnreadableFile(answer["end"])
                    return
            why = f"gave no text in {self._waiting:g} s; left out"
        except (EOFError, OSError):
            why = self._why()
        self.__exit__()
        raise UnreadableFile(str(bad(path, why)))

    def _start(self) -> None:
        self._connection, there = Pipe()
        arguments = [there.fileno(), *self._limits]
        modules = map(os.path.abspath, sys.path)  # the paths of this process
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, *map(str, arguments)],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(modules)},
            )

    def _why(self) -> str:
        """Why the process has ended."""
        status = self._process.wait() if self._process is not None else 0
        memory, seconds = self._limits
        if status == -signal.SIGXCPU:
            return f"took more than {seconds} s of processor time; left out"
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        limit = f"{memory >> 20} MiB of memory"
        return f"its reader ended ({ended}): the file is damaged, or needs more than {limit}"


# ------------------------------------------------------------------------------ in the process


def main(descriptor: int, memory: int, seconds: int) -> None:
    """Answer requests until the other end closes.

    The process may hold `memory` bytes besides mapped files; the system ends it when an answer
    takes more seconds of processor time.
    """
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_CORE, 0)
    connection = Connection(descriptor)
    try:
        while True:
            request = json.loads(connection.recv_bytes())
            _limit_time(seconds)
            for answer in _answers(*request):
                connection.send_bytes(json.dumps(answer).encode())
                _limit_time(seconds)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody asks any more


def _limit_time(seconds: int) -> None:
    """End the process when it has used this much more processor time, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _answers(reader: str, path: str) -> Iterator[Any]:
    """The answers to one request."""
    try:
        module, function = reader.split(":")
        read = getattr(import_module(module), function)(Path(path))
        for first in read:
            if isinstance(first, tuple):
                yield [first, *islice(read, _RECORDS - 1)]
            elif isinstance(first, str):
                yield first
            else:
                yield asdict(first) if len(first.text) <= LONGEST else too_long("text")
        why = ""
    except CorpusError as error:
        why = str(error)
    except MemoryError:
        why = str(bad(path, "needs too much memory to be read"))
    except RecursionError:
        why = str(bad(path, "is nested too deeply to be read"))
    except Exception as error:  # whatever a library raises on a damaged file
        what = " ".join(f"{type(error).__name__}: {error}".split())
        why = str(bad(path, f"cannot be read; is it damaged? ({what})"))
    yield {"end": why}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
