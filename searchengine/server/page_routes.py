"""The search page, what only it asks for, and the page that documents the API."""

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from searchengine.server.document_routes import Name
from searchengine.server.models import CountRequest, MapRequest
from searchengine.server.page_filters import count, fields
from searchengine.server.projection import locate
from searchengine.server.refusals import RESPONSES, Refused
from searchengine.server.responses import (
    COMPRESSED,
    LEVEL,
    accepts_gzip,
    json_object,
    respond,
)
from searchengine.server.served import collection_of

router = APIRouter(tags=["page"], responses=RESPONSES)
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _File:
    """A file of a page: read and compressed once, since no name in a request is to reach the disk.

    Attributes:
        content, packed: as it is, and by gzip.
        headers: of the response. The tag is weak: it is that of the compressed bytes too.
    """

    def __init__(self, name: str, content: bytes, policy: str) -> None:
        self.content, self.packed = content, gzip.compress(content, LEVEL)
        kind = _TYPES[name.rsplit(".", 1)[-1]]
        self.headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Cross-Origin-Opener-Policy": "same-origin",
            "ETag": f'W/"{hashlib.sha256(content).hexdigest()[:16]}"',
            "Vary": "Accept-Encoding",
        }

    def response(self, request: Request) -> Response:
        """The file; 304 if the browser has it."""
        tag = self.headers["ETag"]
        known = request.headers.get("if-none-match", "").split(",")
        if any(each.strip() in (tag, tag.removeprefix("W/"), "*") for each in known):
            left_out = ("Content-Type",)
            headers = {name: value for name, value in self.headers.items() if name not in left_out}
            return Response(status_code=304, headers=headers)
        if accepts_gzip(request):
            return Response(self.packed, headers=self.headers | COMPRESSED)
        return Response(self.content, headers=self.headers)


def _documentation() -> _File:
    """FastAPI's page, with Swagger UI from here; its script is allowed by its hash."""
    page = bytes(
        get_swagger_ui_html(
            openapi_url="openapi.json",
            title="searchengine",
            swagger_js_url="page/swagger-ui-bundle.js",
            swagger_css_url="page/swagger-ui.css",
            swagger_favicon_url="page/icon.svg",
        ).body
    )
    (script,) = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return _File("docs.html", page, _POLICY.format(f" 'sha256-{digest}'", " 'unsafe-inline'"))


def _read() -> Iterator[tuple[str, _File]]:
    for folder in ("page", "swagger_ui"):
        for file in (files("searchengine.server") / folder).iterdir():
            if file.name.rsplit(".", 1)[-1] in _TYPES:
                yield file.name, _File(file.name, file.read_bytes(), _POLICY.format("", ""))


_FILES = {"docs": _documentation(), **dict(_read())}


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """The search page."""
    return _FILES["index.html"].response(request)


@router.get("/docs", include_in_schema=False)
async def documentation(request: Request) -> Response:
    """The page that documents the API."""
    return _FILES["docs"].response(request)


@router.get("/page/{file}", include_in_schema=False)
async def part(request: Request, file: str) -> Response:
    """A part of a page."""
    if file not in _FILES:
        raise Refused(404, f"the page has no part {file!r:.80}")
    return _FILES[file].response(request)


@router.post("/v1/collections/{name}/map", response_model=dict[str, Any])
async def show_map(request: Request, name: Name, body: MapRequest) -> Response:
    """A sample of documents, a question and its hits, on the two main directions of the sample.

    `points` is null if `version`, which names the sample, is that of the request. `explained`:
    share of the variance of the sample that is shown.
    """
    served = collection_of(request, name)
    located = await served.read(partial(locate, served, body.query, body.keys, body.version))
    return await respond(request, json_object(**located))


@router.get("/v1/collections/{name}/fields", response_model=dict[str, Any])
async def list_fields(request: Request, name: Name) -> Response:
    """Fields to filter by, of a sample of at most 200 documents.

    `name`: as filters write it; `path`: its place in the metadata; `kind`: choice, number, date or
    text; `lists`: whether it has lists, which filters test by `contains`; `low` and `high`: of the
    sample, for numbers and dates.
    """
    found = await collection_of(request, name).read(fields)
    return await respond(request, json_object(fields=found))


@router.post("/v1/collections/{name}/count", response_model=dict[str, Any])
async def count_matches(request: Request, name: Name, body: CountRequest) -> Response:
    """How many documents match a question, and the values of fields of the best 100 of them.

    `total`: by words those with a word of the question, else all that are ranked; `at_least`:
    whether counting stopped there; `best`: the number of best documents whose values `facets` has,
    or null for all.
    """
    counted = await collection_of(request, name).read(partial(count, request=body))
    return await respond(request, json_object(**counted))
