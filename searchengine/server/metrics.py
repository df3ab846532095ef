"""Metrics of the whole server, for Prometheus."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from searchengine.query.hits import STAGES, Timing
from searchengine.server.shared import reserve
from searchengine.upkeep.stats import Stats

if TYPE_CHECKING:
    from searchengine.server.served import Served

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# prometheus-client keeps the numbers of all processes in files of this folder, if it is set.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_RESERVED = 1 << 19  # bytes of a file, each 100 to 400 for a number; a larger one has holes

disable_created_metrics()  # type: ignore[no-untyped-call]  # as many lines again, for no use


class Metrics:
    """Counters and histograms. With several workers, a scrape adds up those of all."""

    def __init__(self) -> None:
        _reserve_files()
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "searchengine_requests",
            "Requests answered.",
            ("route", "method", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "searchengine_request_seconds",
            "Time from a request to the end of its response.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.stages = Histogram(
            "searchengine_stage_seconds",
            "Time of a question in each stage: wait, encode, search, fetch, cross_encode.",
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
        self._vectors = Counter(
            "searchengine_question_vectors",
            "Questions whose vector came from a cache, or was encoded.",
            ("collection", "source"),
            registry=registry,
        )
        self._stage = {name: self.stages.labels(name) for name in ("wait", *STAGES)}

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a response."""
        if method not in _METHODS:
            method = "other"
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

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

    def vectors(self, collection: str, source: str, number: int) -> None:
        """Count questions: their vectors were `cached` or `encoded`."""
        self._vectors.labels(collection, source).inc(number)

    def page(self, requests: int, collections: Iterable[tuple["Served", Stats]]) -> bytes:
        """The text that Prometheus reads."""
        registry = CollectorRegistry()
        if FOLDER in os.environ:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            own = generate_latest(registry)
        else:
            own = generate_latest(self._registry)
        state = CollectorRegistry()
        state.register(_Collections(requests, list(collections)))
        return own + generate_latest(state)


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_GAUGES = {
    "documents": "Documents stored.",
    "passages": "Passages that can be found: rows.",
    "tombstones": "Rows of deleted passages.",
    "segments": "Segments.",
    "commit": "Number of commits.",
    "bytes": "Size of all files.",
}


class _Collections:
    """The state of the collections at the time of a scrape."""

    def __init__(self, requests: int, collections: list[tuple["Served", Stats]]) -> None:
        self._requests, self._collections = requests, collections

    def collect(self) -> Iterator[Metric]:
        """The gauges; `ready` is that of the process that answers the scrape."""
        yield GaugeMetricFamily(
            "searchengine_requests_under_way", "Requests under way.", value=self._requests
        )
        for name, help_text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"searchengine_{name}", help_text, labels=["collection"])
            for served, stats in self._collections:
                gauge.add_metric([served.name], getattr(stats, name))
            yield gauge
        ready = GaugeMetricFamily("searchengine_ready", "1: ready.", labels=["collection"])
        for served, _ in self._collections:
            ready.add_metric([served.name], float(served.problem is None))
        yield ready


def _reserve_files() -> None:
    """Write the files of this process, which prometheus-client would make with holes and map."""
    if FOLDER in os.environ:
        for kind in ("counter", "histogram"):
            path = Path(os.environ[FOLDER]) / f"{kind}_{os.getpid()}.db"
            if not path.exists():  # else of a killed worker that had this number
                reserve(path, _RESERVED)
