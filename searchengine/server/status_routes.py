"""Routes about the server: collections, statistics, synonyms, health, metrics."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from searchengine.engine import SearchEngine, Stats
from searchengine.errors import SearchEngineError
from searchengine.server.document_routes import Name
from searchengine.server.metrics import CONTENT_TYPE
from searchengine.server.models import CollectionList, Health
from searchengine.server.refusals import RESPONSES, Refused
from searchengine.server.responses import json_object, respond
from searchengine.server.served import Served, collection_of, readable, state

router = APIRouter(tags=["server"])


@router.get("/v1/collections", response_model=CollectionList, responses=RESPONSES)
async def collections(request: Request) -> Response:
    """The collections of this server that the token may read."""
    listed = [
        {
            "name": served.name,
            "ready": served.unready is None,
            "documents": None if served.away else await served.read(len),
        }
        for served in readable(request).values()
    ]
    return await respond(request, json_object(collections=listed))


@router.get("/v1/collections/{name}/stats", response_model=dict[str, Any], responses=RESPONSES)
async def stats(request: Request, name: Name) -> Response:
    """Size and settings of a collection, as `searchengine info` shows them."""
    served = collection_of(request, name)
    shown = asdict(await served.read(SearchEngine.stats)) | {"path": served.name}
    encoder = shown["encoder"]
    shown["encoder"] = None if encoder is None else str(encoder).rsplit("/", 1)[-1]
    shown["pending"] = [served.without_path(line) for line in shown["pending"]]
    return await respond(request, json_object(**shown))


@router.get("/healthz", response_model=Health)
async def healthz(request: Request) -> Response:
    """Whether the process answers."""
    return await respond(request, json_object(status="ok", problems={}))


@router.get("/readyz", response_model=Health, responses={503: {"model": Health}})
async def readyz(request: Request) -> Response:
    """Whether all collections are ready; 503 if not."""
    unready = {each.name: each.unready for each in state(request).collections.values()}
    problems = {name: problem for name, problem in unready.items() if problem is not None}
    content = json_object(status="not ready" if problems else "ok", problems=problems)
    return await respond(request, content, status=503 if problems else 200)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **{status: RESPONSES[status] for status in (401, 429, 500)},
    },
)
async def metrics(request: Request) -> Response:
    """Metrics of all workers, for Prometheus."""
    here = state(request)
    gathered = [
        (served.name, served.problem is None, await _stats(served))
        for served in here.collections.values()
    ]
    return await respond(request, here.metrics.page(gathered), CONTENT_TYPE)


async def _stats(served: Served) -> Stats | None:
    """The size of a collection; None: it is away."""
    try:
        stats = await served.read(SearchEngine.stats)
    except (Refused, SearchEngineError, OSError):
        return None
    return None if served.away else stats
