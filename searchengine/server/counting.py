"""Numbers of all worker processes of a server: for its limits, and for Prometheus.

For limits a file holds a row of float64 for each worker, mapped into memory. A worker writes its
own row only and reads the sum of all, so that no lock is needed and none can be left behind by a
killed worker. The row is claimed by a lock on a byte of the file, which ends with the process.
"""

import fcntl
import mmap
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from searchengine.engine import Stats
from searchengine.query.hits import STAGES, Timing
from searchengine.server.server_settings import ServerSettings

REQUESTS = 0  # column: requests under way
_WINDOW = 1.0  # seconds over which the rate of a token is counted
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# prometheus-client keeps the numbers of all processes in files of this folder, if it is set.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_RESERVED = 1 << 19  # bytes of a file, each 100 to 400 for a number; a larger one has holes

_RESERVED_EACH = 1 << 16  # bytes more for each collection
_OF_ONE = ("process_start_time_seconds", "process_max_fds")  # have no sum

disable_created_metrics()  # type: ignore[no-untyped-call]  # as many lines again, for no use
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_GAUGES = {
    "documents": "Documents stored.",
    "passages": "Passages that can be found: rows.",
    "tombstones": "Rows of deleted passages.",
    "segments": "Segments.",
    "commit": "Number of commits.",
    "bytes": "Size of all files.",
}


def reserve(path: Path, size: int) -> None:
    """Write a file of zeros that is to be mapped: on a full disk an error now.

    Where a mapped file has holes, a store to memory that finds no room ends the process by SIGBUS.
    """
    try:
        path.write_bytes(bytes(size))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class Shared:
    """The row of this process, and the sums of all.

    Columns: requests under way; the number of changes of each collection; three for each token:
    the number of a second, the requests in it, and in the second before.
    """

    def __init__(self, collections: int, tokens: int, path: Path | None = None) -> None:
        """`path`: from `create`; None: there is one process only.

        Raises OSError if all rows are taken.
        """
        self._changes, self._tokens = 1, 1 + collections
        columns = self._tokens + 3 * tokens
        if path is None:
            self._rows = np.zeros((1, columns))
            row = 0
        else:
            rows = path.stat().st_size // (8 * columns)
            # Opened once, and never closed: to close any descriptor of a file drops all locks that
            # the process holds on it. So no np.memmap, which opens it and closes it again.
            self._file = os.open(path, os.O_RDWR)
            mapped = mmap.mmap(self._file, 8 * rows * columns)
            self._rows = np.frombuffer(mapped).reshape(rows, columns)
            row = self._claim()
        self._row = self._rows[row]

    @staticmethod
    def create(path: Path, workers: int, collections: int, tokens: int) -> None:
        """Write a file of zeros; twice as many rows as workers, which may overlap in a restart."""
        reserve(path, 8 * (2 * workers + 8) * (1 + collections + 3 * tokens))

    def _claim(self) -> int:
        """Lock a free row, and forget the requests of processes that were killed."""
        claimed = None
        for row in range(len(self._rows)):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
            except OSError:
                continue
            self._rows[row, REQUESTS] = 0
            if claimed is None:
                claimed = row
            else:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)
        if claimed is None:
            raise OSError("all rows of the shared file are taken")
        return claimed

    def requests(self) -> int:
        """Requests under way in all workers."""
        return int(self._rows[:, REQUESTS].sum())

    def enter(self, limit: int) -> bool:
        """Count a request, unless `limit` are under way already."""
        if self._rows[:, REQUESTS].sum() >= limit:
            return False
        self._row[REQUESTS] += 1
        return True

    def leave(self) -> None:
        """End a request that was counted."""
        self._row[REQUESTS] -= 1

    def changed(self, collection: int) -> None:
        """Count a change of a collection."""
        self._row[self._changes + collection] += 1

    def changes(self, collection: int) -> float:
        """A number that differs after a worker has changed a collection."""
        return float(self._rows[:, self._changes + collection].sum())

    def within_rate(self, token: int, rate: float, now: float | None = None) -> bool:
        """Count a request of a token, unless it exceeds `rate` per second.

        Counts this second and the part of the last one that a window of a second reaches back to.
        """
        now = time.monotonic() if now is None else now  # one clock for all processes of a machine
        second, part = divmod(now, _WINDOW)
        start = self._tokens + 3 * token
        seconds, current, before = self._rows[:, start : start + 3].T
        this_second, last = seconds == second, seconds == second - 1
        recent = current[this_second].sum()
        previous = before[this_second].sum() + current[last].sum()
        if recent + previous * (1 - part) + 1 > max(1.0, rate):
            return False
        own = self._row[start : start + 3]
        if own[0] != second:
            own[:] = second, 0, own[1] if own[0] == second - 1 else 0
        own[1] += 1
        return True


class Metrics:
    """Counters and histograms. With several workers, a scrape adds up all of them."""

    def __init__(self, settings: ServerSettings) -> None:
        _reserve_files(_RESERVED + len(settings.collections) * _RESERVED_EACH)
        runtime = "auto" if settings.runtime is None else str(settings.runtime.runtime)
        self._build = {
            "version": version("searchengine"),
            "python": platform.python_version(),
            "runtime": runtime,
        }
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "searchengine_requests",
            "Requests answered.",
            ("route", "method", "collection", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "searchengine_request_seconds",
            "Time from a request to the end of its response.",
            ("route", "method", "collection"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.stages = Histogram(
            "searchengine_stage_seconds",
            "Time of a question in each stage: wait, encode, search, fetch.",
            ("stage",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.together = Histogram(
            "searchengine_questions_together",
            "Questions that were answered by the same call as a question, itself included.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=registry,
        )
        self.refused = Counter(
            "searchengine_refused",
            "Requests refused or given up: queue, rate, timeout.",
            ("reason",),
            registry=registry,
        )
        self.documents = Counter(
            "searchengine_documents_written",
            "Documents in committed changes.",
            ("collection",),
            registry=registry,
        )
        self.refresh_failures = Counter(
            "searchengine_refresh_failures",
            "Looks for new commits that failed.",
            ("collection",),
            registry=registry,
        )
        self._stage = {name: self.stages.labels(name) for name in ("wait", *STAGES)}

    def answered(
        self, route: str, method: str, collection: str, status: int, seconds: float
    ) -> None:
        """Count a response; `collection`: its name, or "" where it is about none."""
        if method not in _METHODS:
            method = "other"
        self.requests.labels(route, method, collection, str(status)).inc()
        self.seconds.labels(route, method, collection).observe(seconds)

    def searched(self, timing: Timing | None, seconds: float) -> None:
        """Count the stages of a question that took `seconds` in all."""
        if timing is None:
            return
        working = 0.0
        for name in STAGES:
            working += (stage := getattr(timing, name))
            self._stage[name].observe(stage)
        self._stage["wait"].observe(max(0.0, seconds - working))
        self.together.observe(timing.questions)

    def page(self, requests: int, collections: Iterable[tuple[str, bool, Stats | None]]) -> bytes:
        """The text that Prometheus reads.

        `collections`: name, whether it is ready, size; None: it is away.
        """
        registry = CollectorRegistry()
        if FOLDER in os.environ:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            own = generate_latest(registry)
        else:
            own = generate_latest(self._registry)
        state = CollectorRegistry()
        state.register(_Collections(requests, list(collections)))
        state.register(_Processes(self._build))
        return own + generate_latest(state)


class _Collections:
    """The state of the collections at the time of a scrape."""

    def __init__(self, requests: int, collections: list[tuple[str, bool, Stats | None]]) -> None:
        self._requests, self._collections = requests, collections

    def collect(self) -> Iterator[Metric]:
        """The gauges; `ready` is about the process that answers the scrape."""
        yield GaugeMetricFamily(
            "searchengine_requests_under_way", "Requests under way.", value=self._requests
        )
        for name, help_text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"searchengine_{name}", help_text, labels=["collection"])
            for collection, _, stats in self._collections:
                if stats is not None:
                    gauge.add_metric([collection], getattr(stats, name))
            yield gauge
        up = GaugeMetricFamily(
            "searchengine_up", "1: its folder can be read. 0: it is away.", labels=["collection"]
        )
        for collection, _, stats in self._collections:
            up.add_metric([collection], float(stats is not None))
        yield up
        ready = GaugeMetricFamily("searchengine_ready", "1: ready.", labels=["collection"])
        for collection, is_ready, _ in self._collections:
            ready.add_metric([collection], float(is_ready))
        yield ready


class _Processes:
    """What they are, and what they use: the sums of all processes of the server."""

    def __init__(self, build: dict[str, str]) -> None:
        self._build = build

    def collect(self) -> Iterator[Metric]:
        """The process metrics of other Prometheus clients; the start is that of the first one."""
        build = GaugeMetricFamily("searchengine_build_info", "Always 1.", labels=list(self._build))
        build.add_metric(list(self._build.values()), 1)
        yield build
        gathered: dict[str, list[Metric]] = {}
        for pid in _processes():
            for metric in ProcessCollector(pid=partial(str, pid), registry=None).collect():
                gathered.setdefault(metric.name, []).append(metric)
        for name, metrics in gathered.items():
            total = min if name in _OF_ONE else sum
            value = total(metric.samples[0].value for metric in metrics)
            metrics[0].samples = [metrics[0].samples[0]._replace(value=value)]
            yield metrics[0]


def _processes() -> list[int]:
    """The processes of this server: this one, or the first one and all that it has started."""
    if FOLDER not in os.environ:
        return [os.getpid()]
    first = os.getppid()
    with suppress(OSError):  # there is no such file on other systems than Linux
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]
    return [os.getpid()]


def _reserve_files(size: int) -> None:
    """Write the files of this process, which prometheus-client would make with holes and map.

    On a full disk none of them stays: each try to replace a worker would take more room.
    """
    if FOLDER not in os.environ:
        return
    written: list[Path] = []
    try:
        for kind in ("counter", "histogram"):
            path = Path(os.environ[FOLDER]) / f"{kind}_{os.getpid()}.db"
            if not path.exists():  # else of a killed worker that had this number
                written.append(path)
                reserve(path, size)
    except OSError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
