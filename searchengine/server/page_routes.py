"""The search page, what only it asks for, and the page that documents the API."""

import base64
import hashlib
import re
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from searchengine.server.document_routes import Name
from searchengine.server.models import CountRequest, MapRequest
from searchengine.server.page_filters import count, fields
from searchengine.server.projection import locate
from searchengine.server.refusals import BEARER, RESPONSES
from searchengine.server.responses import json_object, respond
from searchengine.server.served import collection_of

router = APIRouter(tags=["page"], responses=RESPONSES, dependencies=[Depends(BEARER)])
_POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Files(StaticFiles):
    """A folder of files, of which browsers ask each time whether they have changed."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        """A file, or 304 if the browser has it."""
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Content-Security-Policy"] = _POLICY.format("", "")
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return response


def mount_files(app: FastAPI) -> None:
    """Serve the pages and their parts."""
    folder = Path(__file__).parent
    page = _Files(directory=folder / "page")
    app.mount("/page", page)
    app.mount("/swagger_ui", _Files(directory=folder / "swagger_ui"))
    documentation = _documentation()

    @app.get("/", include_in_schema=False)
    async def search_page(request: Request) -> Response:
        return await page.get_response("index.html", request.scope)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return documentation


def _documentation() -> Response:
    """FastAPI's page, with Swagger UI from here; its script is allowed by its hash."""
    response = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="searchengine",
        swagger_js_url="swagger_ui/swagger-ui-bundle.js",
        swagger_css_url="swagger_ui/swagger-ui.css",
        swagger_favicon_url="page/icon.svg",
    )
    (script,) = re.findall(rb"<script>(.*?)</script>", bytes(response.body), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = _POLICY.format(f" 'sha256-{digest}'", " 'unsafe-inline'")
    response.headers["Content-Security-Policy"] = policy
    return response


@router.post("/v1/collections/{name}/map", response_model=dict[str, Any])
async def show_map(request: Request, name: Name, body: MapRequest) -> Response:
    """A sample of documents, a question and its hits, on the two main directions of the sample.

    `points` is null if `version`, which names the sample, is that of the request. `explained`:
    share of the variance of the sample that is shown.
    """
    served = collection_of(request, name)
    located = await served.read(partial(locate, served, body.query, body.keys, body.version))
    return respond(json_object(**located))


@router.get("/v1/collections/{name}/fields", response_model=dict[str, Any])
async def list_fields(request: Request, name: Name) -> Response:
    """Fields to filter by, of a sample of at most 200 documents.

    `name`: as filters write it; `path`: its place in the metadata; `kind`: choice, number, date or
    text; `lists`: whether it has lists, which filters test by `contains`; `low` and `high`: of the
    sample, for numbers and dates.
    """
    found = await collection_of(request, name).read(fields)
    return respond(json_object(fields=found))


@router.post("/v1/collections/{name}/count", response_model=dict[str, Any])
async def count_matches(request: Request, name: Name, body: CountRequest) -> Response:
    """How many documents match a question, and the values of fields of the best 100 of them.

    `total`: by words those with a word of the question, else all that are ranked; `at_least`:
    whether counting stopped there; `best`: the number of best documents whose values `facets` has,
    or null for all.
    """
    counted = await collection_of(request, name).read(partial(count, request=body))
    return respond(json_object(**counted))
