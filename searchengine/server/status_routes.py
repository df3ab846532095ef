"""Routes about the server: collections, statistics, health, metrics."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.errors import SearchEngineError
from searchengine.server.document_routes import Name
from searchengine.server.metrics import CONTENT_TYPE
from searchengine.server.refusals import BEARER, RESPONSES, Refused
from searchengine.server.responses import json_object, respond
from searchengine.server.served import Served, collection_of, state

router = APIRouter(tags=["server"])
_GUARDED: Any = {"responses": RESPONSES, "dependencies": [Depends(BEARER)]}


@router.get("/v1/collections", response_model=dict[str, Any], **_GUARDED)
async def collections(request: Request) -> Response:
    """The collections of this server; `documents` is null where it cannot be read now."""
    listed = [
        {
            "name": served.name,
            "ready": served.unready is None,
            "documents": None if served.away else await served.read(len),
        }
        for served in state(request).collections.values()
    ]
    return respond(json_object(collections=listed))


@router.get("/v1/collections/{name}/stats", response_model=dict[str, Any], **_GUARDED)
async def stats(request: Request, name: Name) -> Response:
    """Size and settings of a collection, as `searchengine info` shows them."""
    served = collection_of(request, name)
    shown = asdict(await served.read(SearchEngine.stats)) | {"path": served.name}
    encoder = shown["encoder"]
    shown["encoder"] = None if encoder is None else str(encoder).rsplit("/", 1)[-1]
    shown["pending"] = [served.without_path(line) for line in shown["pending"]]
    return respond(json_object(**shown))


@router.get("/healthz", response_model=dict[str, Any])
async def healthz(request: Request) -> Response:
    """Whether the process answers."""
    return respond(json_object(status="ok", problems={}))


@router.get("/readyz", response_model=dict[str, Any], responses={503: {}})
async def readyz(request: Request) -> Response:
    """Whether all collections are ready; 503 if not, with their `problems` by name."""
    unready = {each.name: each.unready for each in state(request).collections.values()}
    problems = {name: problem for name, problem in unready.items() if problem is not None}
    content = json_object(status="not ready" if problems else "ok", problems=problems)
    return respond(content, status=503 if problems else 200)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **RESPONSES},
    dependencies=[Depends(BEARER)],
)
async def metrics(request: Request) -> Response:
    """Metrics of all workers, for Prometheus."""
    here = state(request)
    documents = {name: await _documents(served) for name, served in here.collections.items()}
    return Response(here.metrics.page(documents), media_type=CONTENT_TYPE)


async def _documents(served: Served) -> int | None:
    """The number of documents of a collection; None: it is away."""
    try:
        count = await served.read(len)
    except (Refused, SearchEngineError, OSError):
        return None
    return None if served.away else count
