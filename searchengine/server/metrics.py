"""Numbers for Prometheus; with several workers prometheus-client adds up those of all."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from searchengine.engine import Stats
from searchengine.query.hits import STAGES, Timing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable: the folder where prometheus-client keeps the numbers of all workers."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ABOUT = ("route", "method", "collection")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_GAUGES = {
    "documents": "Documents stored.",
    "passages": "Passages that can be found: rows.",
    "tombstones": "Rows of deleted passages.",
    "segments": "Segments.",
    "commit": "Number of commits.",
    "bytes": "Size of all files.",
}
disable_created_metrics()  # type: ignore[no-untyped-call]  # as many lines again, for no use


class Metrics:
    """Counters and histograms of the requests."""

    def __init__(self, runtime: str) -> None:
        """`runtime`: of the encoders, to be shown."""
        numbers = {"version": version("searchengine"), "python": platform.python_version()}
        self._build = numbers | {"runtime": runtime}
        self._registry = registry = CollectorRegistry()
        if FOLDER not in os.environ:  # of one process: prometheus-client adds none up
            ProcessCollector(registry=registry)
        self.requests = self._counter("requests", "Requests answered.", *_ABOUT, "status")
        text = "Time from a request to the end of its response."
        self.seconds = self._histogram("request_seconds", text, _SECONDS, *_ABOUT)
        text = "Time of a question in each stage: wait, encode, search, fetch."
        self.stages = self._histogram("stage_seconds", text, _SECONDS, "stage")
        text = "Questions that were answered by the same call as a question, itself included."
        self.together = self._histogram("questions_together", text, _TOGETHER)
        text = "Requests refused or given up: queue, timeout."
        self.refused = self._counter("refused", text, "reason")
        text = "Documents in committed changes."
        self.documents = self._counter("documents_written", text, "collection")
        text = "Looks for new commits that failed."
        self.refresh_failures = self._counter("refresh_failures", text, "collection")
        self.under_way = Gauge(
            "searchengine_requests_under_way",
            "Requests under way.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"searchengine_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        name = f"searchengine_{name}"
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

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
        stages = {name: getattr(timing, name) for name in STAGES}
        for name, took in {**stages, "wait": max(0.0, seconds - sum(stages.values()))}.items():
            self.stages.labels(name).observe(took)
        self.together.observe(timing.questions)

    def page(self, collections: Sequence[tuple[str, bool, Stats | None]]) -> bytes:
        """The text that Prometheus reads.

        `collections`: name, whether it is ready, size; None: it is away.
        """
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        now = CollectorRegistry()
        now.register(_Now(self._state(collections)))
        return generate_latest(registry) + generate_latest(now)

    def _state(self, collections: Sequence[tuple[str, bool, Stats | None]]) -> list[Metric]:
        """The collections at this time; `ready` is about the process that answers."""
        present = {name: stats for name, _, stats in collections if stats is not None}
        gauges = [
            _gauge(name, text, {each: getattr(stats, name) for each, stats in present.items()})
            for name, text in _GAUGES.items()
        ]
        up = {name: stats is not None for name, _, stats in collections}
        gauges.append(_gauge("up", "1: its folder can be read. 0: it is away.", up))
        gauges.append(
            _gauge("ready", "1: ready.", {name: is_ready for name, is_ready, _ in collections})
        )
        build = GaugeMetricFamily("searchengine_build_info", "Always 1.", labels=list(self._build))
        build.add_metric(list(self._build.values()), 1)
        return [*gauges, build]


class _Now:
    """Metrics of one scrape."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """What prometheus-client asks for."""
        return self._metrics


def _gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
    """A gauge of collections."""
    gauge = GaugeMetricFamily(f"searchengine_{name}", text, labels=["collection"])
    for collection, value in values.items():
        gauge.add_metric([collection], float(value))
    return gauge
