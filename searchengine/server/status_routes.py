"""Routes about the server: collections, statistics, health; metrics for Prometheus."""

import os
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import prometheus_client as prometheus
from fastapi import APIRouter, Request
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.errors import SearchEngineError
from searchengine.server.models import FacetsRequest
from searchengine.server.responses import Refused, facet_lists, respond
from searchengine.server.served import Collection, Served

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable: the folder where prometheus-client keeps the numbers of all workers."""
_ABOUT = ("route", "method", "collection")
prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # of no use
REQUESTS = prometheus.Counter("searchengine_requests", "Requests answered.", (*_ABOUT, "status"))
SECONDS = prometheus.Histogram(
    "searchengine_request_seconds",
    "Time from a request to the end of its response.",
    _ABOUT,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
# Of several workers the last that set it is right.
_gauge = partial(prometheus.Gauge, labelnames=["collection"], multiprocess_mode="mostrecent")
_DOCUMENTS = _gauge("searchengine_documents", "Documents stored.")
_UP = _gauge("searchengine_up", "1: the collection can be read. 0: it is away.")
router = APIRouter(tags=["server"])
health = APIRouter(tags=["server"])
"""What needs no token."""


@router.get("/v1/collections")
async def collections(request: Request) -> Response:
    """The collections of this server; `documents` is null where it cannot be read now."""
    served = request.app.state.collections.values()
    listed = [
        {"name": each.name, "ready": each.unready is None, "documents": await _documents(each)}
        for each in served
    ]
    return respond({"collections": listed})


@router.get("/v1/collections/{name}/stats")
async def stats(served: Collection) -> Response:
    """Size and settings of a collection, as `searchengine info` shows them."""
    shown = asdict(await served.read(SearchEngine.stats)) | {"path": served.name}
    encoder = shown["encoder"]
    shown["encoder"] = None if encoder is None else str(encoder).rsplit("/", 1)[-1]
    shown["pending"] = [served.without_path(line) for line in shown["pending"]]
    return respond(shown)


@router.post("/v1/collections/{name}/facets")
async def count_values(served: Collection, body: FacetsRequest) -> Response:
    """The 50 most frequent values of fields, over all documents that match a filter: `total`."""

    def work(engine: SearchEngine) -> dict[str, Any]:
        counted = engine.facets(*body.fields, where=body.where) if body.fields else {}
        most = {name: dict(islice(values.items(), 50)) for name, values in counted.items()}
        return {"total": engine.count(body.where), "facets": facet_lists(most)}

    return respond(await served.read(work))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Metrics of all workers, for Prometheus."""
    for name, served in request.app.state.collections.items():
        count = await _documents(served)
        _UP.labels(name).set(count is not None)
        _DOCUMENTS.labels(name).set(float("nan") if count is None else count)
    registry = prometheus.REGISTRY
    if METRICS_FOLDER in os.environ:
        registry = prometheus.CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    text = prometheus.generate_latest(registry)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _documents(served: Served) -> int | None:
    """The number of documents of a collection; None: it is away."""
    try:
        count = await served.read(len)
    except (Refused, SearchEngineError, OSError):
        return None
    return None if served.away else count


@health.get("/healthz")
async def healthz() -> Response:
    """Whether the process answers."""
    return respond({"status": "ok", "problems": {}})


@health.get("/readyz")
async def readyz(request: Request) -> Response:
    """Whether all collections are ready; 503 if not, with their `problems` by name."""
    served = request.app.state.collections
    problems = {name: each.unready for name, each in served.items() if each.unready is not None}
    body = {"status": "not ready" if problems else "ok", "problems": problems}
    return respond(body, 503 if problems else 200)
