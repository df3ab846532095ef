"""The process in which a peer runs, alone: `python -m searchengine.bench.peer_process TASK`.

It loads the peer's file, has it build, and answers requests until nobody asks any more. TASK,
requests and answers are a line of JSON each, arrays are .npy files, and times are taken here. It
imports numpy and nothing of ours that has threads or much memory.
"""

import gc
import importlib.util
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

WARM_UP = 10  # queries before any are timed
LEAVING = 20.0  # seconds in which a peer may stop its servers once nobody asks any more
SETTLE = (
    0.1  # seconds before work is begun: the threads of whoever was measured before spin a while
)
SIGNATURES = {"build": "build(vectors, folder)", "search": "search(index, queries, k, **point)"}


class Refused(Exception):
    """What is wrong with a peer, as the end of a sentence that begins with its file."""


class Served:
    """A peer that builds its index, then answers. Each method raises Refused."""

    def build(self, file: str, vectors: str, queries: str, k: int, folder: str) -> dict[str, Any]:
        """What the peer tells of itself, and what its index took.

        Seconds; bytes of memory, None where the system does not tell; bytes of its folder.
        """
        peer = self._peer = load(Path(file))
        self._k = k
        self._queries: NDArray[np.float32] = np.load(queries)
        before = memory()
        rows = np.load(vectors)
        self._rows = len(rows)
        begin = time.perf_counter()
        with telling("failed to build"):
            self._index = peer.build(rows, Path(folder))
        build_s = time.perf_counter() - begin
        del rows  # what the peer keeps of them counts, and what it copied does not count twice
        gc.collect()
        after = memory(self._servers())
        return {
            "about": (peer.__doc__ or "").strip().partition("\n")[0],
            "settings": dict(peer.SETTINGS),
            "points": [dict(point) for point in peer.POINTS],
            "build_s": build_s,
            "rss_bytes": None if before is None or after is None else max(0, after - before),
            "disk_bytes": size(Path(folder)),
        }

    def round(self, point: int, count: int, rows: str, seconds: str) -> dict[str, Any]:
        """The first queries on their own, in order; row numbers and seconds go to these files."""
        settings = dict(self._peer.POINTS[point])
        took, found = np.empty(count), []
        with telling(f"failed to search at {settings}"):
            for i in islice(cycle(range(count)), WARM_UP):
                self._peer.search(self._index, self._queries[i : i + 1], self._k, **settings)
            for i in range(count):
                query = self._queries[i : i + 1]
                begin = time.perf_counter()
                answer = self._peer.search(self._index, query, self._k, **settings)
                took[i] = time.perf_counter() - begin
                found.append(answer)
        np.save(rows, np.concatenate([self._checked(answer, 1) for answer in found]))
        np.save(seconds, took)
        return {}

    def batch(self, point: int, count: int, rows: str) -> dict[str, Any]:
        """The first queries in one call; row numbers go to this file."""
        settings, queries = dict(self._peer.POINTS[point]), self._queries[:count]
        with telling(f"failed to search at {settings}"):
            self._peer.search(self._index, self._queries[:WARM_UP], self._k, **settings)
            begin = time.perf_counter()
            answer = self._peer.search(self._index, queries, self._k, **settings)
            took = time.perf_counter() - begin
        np.save(rows, self._checked(answer, count))
        return {"seconds": took}

    def _servers(self) -> Iterable[int]:
        """The process numbers of what the peer has started, where it tells them."""
        if not hasattr(self._peer, "processes"):
            return ()
        with telling("failed to tell its processes"):
            return [int(number) for number in self._peer.processes(self._index)]

    def _checked(self, answer: Any, count: int) -> NDArray[np.int64]:
        """(count, k) int64 row numbers, -1 where there is none."""
        with telling("gave something that is neither an array nor a list of lists"):
            if isinstance(answer, list):  # of as many as were found
                answer = [[*line, *[-1] * (self._k - len(line))] for line in answer]
            found = np.asarray(answer)
        if found.shape != (count, self._k):
            raise Refused(
                f"gave rows of shape {found.shape} for {count} queries at once, expected "
                f"({count}, {self._k}), filled up with -1"
            )
        if found.dtype.kind not in "iu":
            raise Refused(f"gave rows of type {found.dtype}, expected whole numbers")
        # Before they become int64, in which the largest uint64, often "nothing found", is -1.
        wrong = found[(found < -1) | (found >= self._rows)]
        if wrong.size:
            raise Refused(
                f"gave row {wrong[0]}, expected 0 to {self._rows - 1}, or -1 where there is none"
            )
        return found.astype(np.int64)


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turns whatever goes wrong in the peer's code into one sentence; stderr has the rest."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        raise Refused(f"{what}: {type(error).__name__}: {error}") from error


def load(file: Path) -> ModuleType:
    """The peer of a file, checked as far as it can be without building. Raises Refused."""
    # Its name is not the file's: hnswlib.py imports the hnswlib that is installed.
    spec = importlib.util.spec_from_file_location(f"peer_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Refused("is no Python file")
    peer = importlib.util.module_from_spec(spec)
    with telling("cannot be loaded"):
        spec.loader.exec_module(peer)
    for name, signature in SIGNATURES.items():
        if not callable(getattr(peer, name, None)):
            raise Refused(f"has no function {signature}")
    settings, points = getattr(peer, "SETTINGS", None), getattr(peer, "POINTS", None)
    if not isinstance(settings, Mapping) or not {"index", "numbers"} <= set(settings):
        raise Refused('has no SETTINGS = {"index": …, "numbers": …}: what it builds, and of what')
    if not isinstance(points, list | tuple) or not points:
        raise Refused('has no POINTS = ({"effort": 32}, …): what search is given; ({},) for none')
    if not all(isinstance(point, Mapping) for point in points):
        raise Refused(f"has POINTS of other things than mappings: {points!r:.200}")
    with telling("has SETTINGS or POINTS that cannot be written as JSON"):
        json.dumps([dict(settings), [dict(point) for point in points]], allow_nan=False)
    return peer


def memory(servers: Iterable[int] = ()) -> int | None:
    """Bytes of memory that this process and some servers use; None if the system does not tell.

    Servers share some, which counts once. What this process shares with others counts in full:
    their share would change with whatever else starts and ends.
    """
    told = [(os.getpid(), "Rss"), *((server, "Pss") for server in servers)]
    try:
        return sum(1024 * _kilobytes(process, name) for process, name in told)
    except OSError:  # not Linux, or another user's
        return None


def _kilobytes(process: int, name: str) -> int:
    told = Path(f"/proc/{process}/smaps_rollup").read_text()
    return int(told.split(f"\n{name}:")[1].split()[0])


def size(folder: Path) -> int:
    """Bytes of the files in a folder, and in those inside it."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a server may be at work on them
            total += file.stat().st_size if file.is_file() else 0
    return total


def asked() -> "SimpleQueue[bytes]":
    """What is asked for, as it comes. The end of standard input ends this process.

    For whoever asks may die, or lose patience, while the peer builds.
    """
    requests: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> NoReturn:
        # Unbuffered: a buffer's lock would be held while the interpreter shuts down.
        for line in io.FileIO(0, closefd=False):
            requests.put(line)
        os.kill(os.getpid(), signal.SIGINT)  # so that the peer stops what it has started
        time.sleep(LEAVING)
        os._exit(1)

    # Whoever started all this in the background may have had the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=listen, daemon=True).start()
    return requests


def serve(task: str) -> None:
    """Build, then answer until there is nobody to answer."""
    # Libraries that print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(make: Callable[..., dict[str, Any]], given: dict[str, Any]) -> None:
        try:
            answer = make(**given)
        except Refused as refused:
            answer = {"refused": str(refused)}
        print(json.dumps(answer), file=answers, flush=True)

    requests, served = asked(), Served()
    does: dict[str, Callable[..., dict[str, Any]]]
    does = {"round": served.round, "batch": served.batch}
    tell(served.build, json.loads(task))
    while True:
        request = json.loads(requests.get())
        time.sleep(SETTLE)
        tell(does[request.pop("do")], request)


if __name__ == "__main__":
    try:
        serve(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(0)
