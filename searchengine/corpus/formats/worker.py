"""The process that runs readers: `python -m searchengine.corpus.formats.worker FD MEMORY SECONDS`.

Requests and answers are JSON, over the connection that the descriptor FD is one end of:

    request   {"reader": "module:function", "path": …, "table": … or null}
    answers   {"part": {…}}            a text of the file (parts.Part)
              {"records": [[…], …]}    places and records
              {"error": "…"}           the file cannot be read; it is the last answer
              {"end": true}            the last answer
"""

import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from searchengine.corpus.formats.parts import Part
from searchengine.corpus.lines import LONGEST, bad, too_long
from searchengine.errors import CorpusError

_RECORDS = 64  # of an answer


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
                connection.send_bytes(answer)
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


def _answers(reader: str, path: str, table: str | None) -> Iterator[bytes]:
    """The answers to one request. `table` is None for a reader of texts."""
    try:
        module, function = reader.split(":")
        read = getattr(import_module(module), function)
        if table is None:
            yield from map(_part, read(Path(path)))
        else:
            records = read(Path(path), table)
            while batch := list(islice(records, _RECORDS)):
                yield _encoded({"records": batch})
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
    yield _encoded(answer)


def _part(part: Part) -> bytes:
    if len(part.text) > LONGEST:
        raise CorpusError(too_long("text"))
    return _encoded({"part": asdict(part)})


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
