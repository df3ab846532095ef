"""The process of one peer: `python peer_process.py TASK`.

It loads the peer's file, builds its index, and answers requests until standard input ends. TASK,
requests and answers are one line of JSON each, arrays are .npy files, and times are measured here.
It imports numpy only: nothing else with threads or much memory.
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
LEAVING = 20.0  # seconds for a peer to stop its servers after the last request
SETTLE = 0.1  # seconds of rest before a request: threads of the previous searcher spin a while
SIGNATURES = {"build": "build(vectors, folder)", "search": "search(index, queries, k, **point)"}


class Refused(Exception):
    """An error of a peer, as the end of a sentence that begins with its file."""


class Requests:
    """The requests that the process answers. Every method raises Refused."""

    def build(self, file: str, vectors: str, queries: str, k: int, folder: str) -> dict[str, Any]:
        """Build the index; return the peer's settings and the cost of the index.

        The cost is in seconds, bytes of memory (None if the system does not report them), and bytes
        of its folder.
        """
        peer = self._peer = load(Path(file))
        self._k = k
        self._queries: NDArray[np.float32] = np.load(queries)
        before = memory()
        rows = np.load(vectors)
        self._rows = len(rows)
        begin = time.perf_counter()
        with refusing("failed to build"):
            self._index = peer.build(rows, Path(folder))
        build_s = time.perf_counter() - begin
        del rows  # so that a copy in the peer counts once
        gc.collect()
        after = memory(self._servers())
        return {
            "settings": dict(peer.SETTINGS),
            "points": [dict(point) for point in peer.POINTS],
            "build_s": build_s,
            "rss_bytes": None if before is None or after is None else max(0, after - before),
            "disk_bytes": size(Path(folder)),
        }

    def round(self, point: int, count: int, rows: str, seconds: str) -> dict[str, Any]:
        """Search the first queries one at a time; write row numbers and seconds to these files."""
        settings = dict(self._peer.POINTS[point])
        times, answers = np.empty(count), []
        with refusing(f"failed to search at {settings}"):
            for i in islice(cycle(range(count)), WARM_UP):
                self._peer.search(self._index, self._queries[i : i + 1], self._k, **settings)
            for i in range(count):
                query = self._queries[i : i + 1]
                begin = time.perf_counter()
                answer = self._peer.search(self._index, query, self._k, **settings)
                times[i] = time.perf_counter() - begin
                answers.append(answer)
        np.save(rows, np.concatenate([self._checked(answer, 1) for answer in answers]))
        np.save(seconds, times)
        return {}

    def batch(self, point: int, count: int, rows: str) -> dict[str, Any]:
        """Search the first queries in one call; write row numbers to this file."""
        settings, queries = dict(self._peer.POINTS[point]), self._queries[:count]
        with refusing(f"failed to search at {settings}"):
            self._peer.search(self._index, self._queries[:WARM_UP], self._k, **settings)
            begin = time.perf_counter()
            answer = self._peer.search(self._index, queries, self._k, **settings)
            seconds = time.perf_counter() - begin
        np.save(rows, self._checked(answer, count))
        return {"seconds": seconds}

    def _servers(self) -> Iterable[int]:
        """The process ids of the peer's servers, if it has a function `processes`."""
        if not hasattr(self._peer, "processes"):
            return ()
        with refusing("failed to return its processes"):
            return [int(number) for number in self._peer.processes(self._index)]

    def _checked(self, answer: Any, count: int) -> NDArray[np.int64]:
        """Check an answer, and return its row numbers (count, k) int64, padded with -1."""
        with refusing("returned something that is neither an array nor a list of lists"):
            if isinstance(answer, list):  # lists may be shorter than k
                answer = [[*line, *[-1] * (self._k - len(line))] for line in answer]
            rows = np.asarray(answer)
        if rows.shape != (count, self._k):
            raise Refused(
                f"returned rows of shape {rows.shape} for {count} queries, expected "
                f"({count}, {self._k}), padded with -1"
            )
        if rows.dtype.kind not in "iu":
            raise Refused(f"returned rows of type {rows.dtype}, expected integers")
        # Before the conversion to int64, which turns the largest uint64, often "no row", into -1.
        wrong = rows[(rows < -1) | (rows >= self._rows)]
        if wrong.size:
            raise Refused(
                f"returned row {wrong[0]}, expected 0 to {self._rows - 1}, or -1 for none"
            )
        return rows.astype(np.int64)


@contextmanager
def refusing(failure: str) -> Iterator[None]:
    """Turn an exception of the peer's code into one sentence; print the traceback on stderr."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        raise Refused(f"{failure}: {type(error).__name__}: {error}") from error


def load(file: Path) -> ModuleType:
    """Load a peer from its file, and check it as far as possible. Raises Refused."""
    # The module name differs from the file name: hnswlib.py imports the installed hnswlib.
    spec = importlib.util.spec_from_file_location(f"peer_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Refused("is not a Python file")
    peer = importlib.util.module_from_spec(spec)
    with refusing("cannot be loaded"):
        spec.loader.exec_module(peer)
    for name, signature in SIGNATURES.items():
        if not callable(getattr(peer, name, None)):
            raise Refused(f"has no function {signature}")
    settings, points = getattr(peer, "SETTINGS", None), getattr(peer, "POINTS", None)
    if not isinstance(settings, Mapping) or not {"index", "numbers"} <= set(settings):
        raise Refused(
            'has no SETTINGS = {"index": …, "numbers": …}: its structure and number format'
        )
    if not isinstance(points, list | tuple) or not points:
        raise Refused(
            'has no POINTS = ({"effort": 32}, …): keyword arguments of search; ({},) for none'
        )
    if not all(isinstance(point, Mapping) for point in points):
        raise Refused(f"has POINTS that are not mappings: {points!r:.200}")
    with refusing("has SETTINGS or POINTS that cannot be written as JSON"):
        json.dumps([dict(settings), [dict(point) for point in points]], allow_nan=False)
    return peer


def memory(servers: Iterable[int] = ()) -> int | None:
    """Bytes of memory of this process and its servers; None if the system does not report them.

    Memory shared among servers counts once. Memory that this process shares with others counts in
    full, because its share would change as other processes start and end.
    """
    parts = [(os.getpid(), "Rss"), *((server, "Pss") for server in servers)]
    try:
        return sum(1024 * _kilobytes(process, name) for process, name in parts)
    except OSError:  # not Linux, or a process of another user
        return None


def _kilobytes(process: int, name: str) -> int:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return int(text.split(f"\n{name}:")[1].split()[0])


def size(folder: Path) -> int:
    """Bytes of the files in a folder and its subfolders."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a server may delete files meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total


def read_requests() -> "SimpleQueue[bytes]":
    """Queue the requests of standard input; its end ends this process.

    The parent may die or give up while the peer builds.
    """
    requests: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> NoReturn:
        # Unbuffered: a buffer's lock would be held while the interpreter shuts down.
        for line in io.FileIO(0, closefd=False):
            requests.put(line)
        os.kill(os.getpid(), signal.SIGINT)  # so that the peer stops its servers
        time.sleep(LEAVING)
        os._exit(1)

    # A parent in the background may have set the signal to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=listen, daemon=True).start()
    return requests


def serve(task: str) -> None:
    """Build, then answer requests until their end."""
    # Redirect stdout: output of libraries must not look like an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer_with(method: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> None:
        try:
            answer = method(**arguments)
        except Refused as refused:
            answer = {"refused": str(refused)}
        print(json.dumps(answer), file=answers, flush=True)

    queue, requests = read_requests(), Requests()
    methods: dict[str, Callable[..., dict[str, Any]]]
    methods = {"round": requests.round, "batch": requests.batch}
    answer_with(requests.build, json.loads(task))
    while True:
        request = json.loads(queue.get())
        time.sleep(SETTLE)
        answer_with(methods[request.pop("do")], request)


if __name__ == "__main__":
    try:
        serve(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(0)
