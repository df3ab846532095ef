"""Numbers for Prometheus; with several workers prometheus-client adds up those of all."""

import os
from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable: the folder where prometheus-client keeps the numbers of all workers."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ABOUT = ("route", "method", "collection")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
disable_created_metrics()  # type: ignore[no-untyped-call]  # as many lines again, for no use


class Metrics:
    """Requests, and the collections as they were when they were last read."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        if FOLDER not in os.environ:  # of one process: prometheus-client adds none up
            ProcessCollector(registry=registry)
        labels = (*_ABOUT, "status")
        text = "Requests answered."
        self._requests = Counter("searchengine_requests", text, labels, registry=registry)
        text = "Time from a request to the end of its response."
        name = "searchengine_request_seconds"
        self._seconds = Histogram(name, text, _ABOUT, buckets=_SECONDS, registry=registry)
        self._documents = _gauge("documents", "Documents stored.", registry)
        self._up = _gauge("up", "1: the collection can be read. 0: it is away.", registry)

    def answered(
        self, route: str, method: str, collection: str, status: int, seconds: float
    ) -> None:
        """Count a response; `collection`: its name, or "" where it is about none."""
        if method not in _METHODS:
            method = "other"
        self._requests.labels(route, method, collection, str(status)).inc()
        self._seconds.labels(route, method, collection).observe(seconds)

    def page(self, documents: Mapping[str, int | None]) -> bytes:
        """The text that Prometheus reads; `documents`: of each collection; None: it is away."""
        for name, count in documents.items():
            self._up.labels(name).set(count is not None)
            self._documents.labels(name).set(float("nan") if count is None else count)
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def _gauge(name: str, text: str, registry: CollectorRegistry) -> Gauge:
    """A gauge of collections; of several workers the last that set it is right."""
    mode = "mostrecent"
    name = f"searchengine_{name}"
    return Gauge(name, text, ["collection"], registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]
