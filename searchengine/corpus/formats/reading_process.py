"""Runs readers in a process with limits, so that no file can stop the others from being read.

A process reads one file after another. One that takes too long or too much memory, or crashes, is
ended and replaced, and its file is refused. It runs this module, as

    python -m searchengine.corpus.formats.reading_process FD MEMORY SECONDS

Requests and answers are JSON, over the connection that the descriptor FD is one end of:

    request   {"reader": "module:function", "path": …, "table": … or null}
    answers   {"text": {…}}            a text of the file (kinds.Text)
              {"records": [[…], …]}    places and records
              {"error": "…"}           the file cannot be read; it is the last answer
              {"end": true}            the last answer
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Self

from searchengine.corpus.formats.kinds import Heading, Kind, Text
from searchengine.corpus.text_files import LONGEST, bad, too_long
from searchengine.errors import CorpusError, UnreadableFile

MEMORY = 2 << 30
"""Bytes that the process may hold."""
SECONDS = 120
"""Processor time for one text of a file."""
WAITING = 600.0
"""Seconds to wait for an answer: a file may be on a slow disk."""
# Libraries that start a thread for each core would take the memory that readers need.
_ONE_THREAD = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_MODULE = "searchengine.corpus.formats.reading_process"
_RECORDS = 64  # of an answer


class Parser:
    """A process that runs readers, started when it is first needed. A context manager."""

    def __init__(
        self, memory: int = MEMORY, seconds: int = SECONDS, waiting: float = WAITING
    ) -> None:
        self._limits, self._waiting = (memory, seconds), waiting
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._answering = False  # the last answer to a request has not come

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def texts(self, path: Path, kind: Kind) -> Iterator[Text]:
        """The texts of a file. Raises UnreadableFile."""
        for answer in self._answers(path, kind, None):
            fields = answer["text"]
            headings = tuple(Heading(**heading) for heading in fields.pop("headings"))
            yield Text(**fields, headings=headings)

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
        if self._answering:  # a caller has left before the last answer
            self.close()
        connection = self._connected()
        self._answering = True
        try:
            request = {"reader": kind.reader, "path": str(path), "table": table}
            connection.send_bytes(json.dumps(request).encode())
            while connection.poll(self._waiting):
                answer = json.loads(connection.recv_bytes())
                self._answering = not ("end" in answer or "error" in answer)
                if "error" in answer:
                    raise UnreadableFile(answer["error"])
                if not self._answering:
                    return
                yield answer
            self.close()
            raise _unreadable(path, f"gave no text in {self._waiting:g} s; left out")
        except (EOFError, OSError) as error:
            why = self._why()
            self.close()
            raise _unreadable(path, why) from error

    def _connected(self) -> Connection:
        if self._connection is None:
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


# ------------------------------------------------------------------------------ in the process


def main(descriptor: int, memory: int, seconds: int) -> None:
    """Answer requests until the other end closes.

    Args:
        descriptor: of the connection.
        memory: bytes that the process may hold, besides files that are mapped.
        seconds: of processor time for an answer; the system ends the process at the limit.
    """
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_CORE, 0)
    connection = Connection(descriptor)
    try:
        while True:
            request = json.loads(connection.recv_bytes())
            _limit_time(seconds)
            for answer in _answers(**request):
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


def _answers(reader: str, path: str, table: str | None) -> Iterator[dict[str, Any]]:
    """The answers to one request. `table` is None for a reader of texts."""
    try:
        module, function = reader.split(":")
        read = getattr(import_module(module), function)
        if table is None:
            yield from map(_checked, read(Path(path)))
        else:
            records = read(Path(path), table)
            while batch := list(islice(records, _RECORDS)):
                yield {"records": batch}
        answer: dict[str, Any] = {"end": True}
    except CorpusError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": str(bad(path, "needs too much memory to be read"))}
    except RecursionError:
        answer = {"error": str(bad(path, "is nested too deeply to be read"))}
    except Exception as error:  # whatever a library raises on a damaged file
        what = " ".join(f"{type(error).__name__}: {error}".split())
        answer = {"error": str(bad(path, f"cannot be read; is it damaged? ({what})"))}
    yield answer


def _checked(text: Text) -> dict[str, Any]:
    if len(text.text) > LONGEST:
        raise CorpusError(too_long("text"))
    return {"text": asdict(text)}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
