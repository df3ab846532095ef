"""Routes about the server: collections, statistics, synonyms, health, metrics."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from searchengine.engine import SearchEngine, Stats
from searchengine.errors import SearchEngineError
from searchengine.server.counting import CONTENT_TYPE
from searchengine.server.document_routes import Name
from searchengine.server.models import CollectionList, Health, Synonyms
from searchengine.server.refusals import RESPONSES, Refused
from searchengine.server.responses import Compressible, as_json
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
    return as_json({"collections": listed})


@router.get("/v1/collections/{name}/stats", response_model=dict[str, Any], responses=RESPONSES)
async def stats(request: Request, name: Name) -> Response:
    """Size and settings of a collection, as `searchengine info` shows them."""
    served = collection_of(request, name)

    def work(engine: SearchEngine) -> dict[str, Any]:
        shown = asdict(engine.stats())
        encoder = shown["encoder"]
        shown["encoder"] = None if encoder is None else str(encoder).rsplit("/", 1)[-1]
        shown["pending"] = [served.without_path(line) for line in shown["pending"]]
        return {**shown, "path": served.name}

    return as_json(await served.read(work))


@router.get(
    "/v1/collections/{name}/synonyms",
    response_model=Synonyms,
    tags=["documents"],
    responses=RESPONSES,
)
async def get_synonyms(request: Request, name: Name) -> Response:
    """The groups of synonyms that searches by words use."""
    served = collection_of(request, name)
    return as_json({"groups": await served.read(SearchEngine.synonyms)})


@router.put(
    "/v1/collections/{name}/synonyms", status_code=204, tags=["documents"], responses=RESPONSES
)
async def put_synonyms(request: Request, name: Name, body: Synonyms) -> Response:
    """Replace all groups of synonyms."""
    await collection_of(request, name).write(lambda engine: engine.set_synonyms(body.groups))
    return Response(status_code=204)


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Whether the process answers."""
    return as_json({"status": "ok", "problems": {}})


@router.get("/readyz", response_model=Health, responses={503: {"model": Health}})
async def readyz(request: Request) -> Response:
    """Whether all collections are ready; 503 if not, or when the server stops."""
    here = state(request)
    problems = {
        served.name: served.unready
        for served in here.collections.values()
        if served.unready is not None
    }
    ready = not problems and not here.stopping.is_set()
    status = "ok" if ready else "stopping" if here.stopping.is_set() else "not ready"
    response = as_json({"status": status, "problems": problems})
    response.status_code = 200 if ready else 503
    return response


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
    content = here.metrics.page(here.shared.requests(), gathered)
    return Compressible(content, headers={"Content-Type": CONTENT_TYPE})


async def _stats(served: Served) -> Stats | None:
    """The size of a collection; None: it is away."""
    try:
        stats = await served.read(SearchEngine.stats)
    except (Refused, SearchEngineError, OSError):
        return None
    return None if served.away else stats
