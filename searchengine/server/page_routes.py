"""The search page, and what only it asks for: values to filter by, and a map."""

import hashlib
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.server.document_routes import Name
from searchengine.server.models import (
    CountRequest,
    CountResponse,
    FacetsResponse,
    FieldName,
    FieldsResponse,
    MapRequest,
    MapResponse,
    Route,
    UrlFilter,
)
from searchengine.server.page_filters import count, fields
from searchengine.server.projection import Projection, current_version
from searchengine.server.refusals import RESPONSES, Refused
from searchengine.server.responses import Compressible, Content, as_json, json_response
from searchengine.server.served import collection_of
from searchengine.server.server_settings import MAX_FACETS

router = APIRouter(route_class=Route, tags=["page"], responses=RESPONSES)
SAMPLE = 500
"""Documents on a map."""
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Read once: no name in a request ever reaches the file system.
_FILES: Mapping[str, bytes] = {
    file.name: file.read_bytes()
    for file in (files("searchengine.server") / "page").iterdir()
    if file.name.rsplit(".", 1)[-1] in _TYPES
}


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """The page."""
    return _file(request, "index.html")


@router.get("/page/{file}", include_in_schema=False)
async def part(request: Request, file: str) -> Response:
    """A part of the page."""
    return _file(request, file)


def _file(request: Request, name: str) -> Response:
    """A file; 304 if the browser has it."""
    if name not in _FILES:
        raise Refused(404, f"the page has no part {name!r:.80}")
    content = _FILES[name]
    # Weak: it is that of the compressed bytes too.
    tag = f'W/"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
    known = request.headers.get("if-none-match", "").split(",")
    if any(each.strip() in (tag, tag.removeprefix("W/"), "*") for each in known):
        return Response(status_code=304, headers=headers)
    kind = f"{_TYPES[name.rsplit('.', 1)[-1]]}; charset=utf-8"
    return Compressible(content, headers={**headers, "Content-Type": kind})


@router.get("/v1/collections/{name}/facets", response_model=FacetsResponse)
async def facets(
    request: Request,
    name: Name,
    field: Annotated[
        list[FieldName],
        Query(min_length=1, max_length=MAX_FACETS, description="Metadata fields."),
    ],
    where: Annotated[UrlFilter | None, Query(description="Metadata filter.")] = None,
) -> Response:
    """Count the values of fields over all documents that match a filter."""

    def work(engine: SearchEngine) -> Content:
        counts = engine.facets(*field, where=where)
        content = Content()
        content.write(b'{"facets":')
        content.write_facets(counts)
        content.write(b"}")
        return content

    return json_response(await collection_of(request, name).read(work))


@router.post("/v1/collections/{name}/map", response_model=MapResponse)
async def locate(request: Request, name: Name, body: MapRequest) -> Response:
    """A sample of documents, a question and its hits, on the two main directions of the sample."""
    served = collection_of(request, name)

    def work(engine: SearchEngine) -> dict[str, Any]:
        projection = served.projection
        if projection is None or projection.version != current_version(engine):
            projection = served.projection = Projection.from_engine(engine, SAMPLE)
        question = None
        if body.query is not None:
            ((x, y),) = projection.place(engine.encode_questions([body.query]))
            question = {"x": x, "y": y}
        return {
            "version": projection.version,
            "points": None if projection.version == body.version else projection.points,
            "question": question,
            "hits": projection.hits(engine, body.keys),
            "explained": projection.explained,
        }

    return as_json(await served.read(work))


@router.get("/v1/collections/{name}/fields", response_model=FieldsResponse)
async def list_fields(request: Request, name: Name) -> Response:
    """Fields to filter by."""
    return as_json(await collection_of(request, name).read(fields))


@router.post("/v1/collections/{name}/count", response_model=CountResponse)
async def count_matches(request: Request, name: Name, body: CountRequest) -> Response:
    """How many documents match a question, and the values of fields of the best 100 of them."""
    work = partial(count, request=body)
    return as_json(await collection_of(request, name).read(work))
