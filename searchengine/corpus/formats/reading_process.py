"""Runs readers in a process with limits, so that no file can stop the others from being read.

A process reads one file after another. One that takes too long or too much memory, or crashes, is
ended and replaced, and its file is refused. It runs this module, as

    python -m searchengine.corpus.formats.reading_process MEMORY SECONDS

Requests come in and answers go out as lines of JSON. A request is [reader, path]. The answers to it
are the fields of a Text, [place, record], or a sentence on what is lost, and at last
{"end": why the file cannot be read, or ""}.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from searchengine.corpus.contents import LONGEST, Text, bad, too_long
from searchengine.corpus.documents import of_json
from searchengine.corpus.formats import Kind
from searchengine.errors import CorpusError, UnreadableFile

MEMORY, SECONDS = 2 << 30, 120
"""Bytes that the process may hold, and seconds of processor time for an answer."""
# Libraries that start a thread for each core would take the memory that readers need.
_ONE_THREAD = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_MODULE = "searchengine.corpus.formats.reading_process"


class Parser(AbstractContextManager["Parser"]):
    """A process that runs readers, started when it is first needed. A context manager."""

    def __init__(self, memory: int = MEMORY, seconds: int = SECONDS) -> None:
        self._limits = memory, seconds
        self._idle: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        """End the process."""
        if self._idle is not None:
            with self._idle as process:
                process.kill()

    def read(self, path: Path, kind: Kind) -> Iterator[Any]:
        """The Parts of a file, or place and record of each object or row. Raises UnreadableFile."""
        if kind.missing:
            what = f"to read {kind.name} files, install the extra formats: {kind.missing}"
            raise UnreadableFile(str(bad(path, what)))
        process, self._idle = self._idle or self._start(), None
        try:
            assert process.stdin and process.stdout
            with suppress(BrokenPipeError):  # it has ended
                os.write(
                    process.stdin.fileno(), json.dumps([kind.reader, str(path)]).encode() + b"\n"
                )
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    continue  # it ended meanwhile
                answer = json.loads(line)
                if not isinstance(answer, dict):
                    yield answer
                elif "end" not in answer:
                    yield Text(**answer)
                else:
                    self._idle = process
                    if answer["end"]:
                        raise UnreadableFile(answer["end"])
                    return
            raise UnreadableFile(str(bad(path, self._why(process.wait()))))
        finally:
            if self._idle is None:  # it has ended, or has more answers than the caller wants
                with process:
                    process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        modules = map(os.path.abspath, sys.path)  # the paths of this process
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, *map(str, self._limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(modules)},
        )

    def _why(self, status: int) -> str:
        """Why a process has ended."""
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        memory, seconds = self._limits
        limit = f"{memory >> 20} MiB of memory or {seconds} s of processor time"
        return f"its reader ended ({ended}): the file is damaged, or needs more than {limit}"


# ------------------------------------------------------------------------------ in the process


def main(memory: int, seconds: int) -> None:
    """Answer requests until the other end closes. `memory`: besides mapped files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # a lower one holds
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for request in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        for answer in _answers(*json.loads(request)):
            print(answer, file=answers, flush=True)
            signal.setitimer(signal.ITIMER_PROF, seconds)


def _answers(reader: str, path: str) -> Iterator[str]:
    """The answers to one request, as lines of JSON."""
    why = ""
    try:
        module, function = reader.split(":")
        for part in getattr(import_module(module), function)(Path(path)):
            if isinstance(part, Text):
                part = asdict(part) if len(part.text) <= LONGEST else too_long("text")
            yield json.dumps(part, default=of_json)
    except CorpusError as error:
        why = str(error)
    except MemoryError:
        why = str(bad(path, "needs too much memory to be read"))
    except Exception as error:  # whatever a library raises on a damaged file
        what = " ".join(f"{type(error).__name__}: {error}".split())
        why = str(bad(path, f"cannot be read; is it damaged? ({what})"))
    yield json.dumps({"end": why})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
