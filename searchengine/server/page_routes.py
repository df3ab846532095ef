"""The search page, what it asks for to filter, and the page that documents the API."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from searchengine.engine import Mode, Question, SearchEngine, field_name
from searchengine.server.models import CountRequest
from searchengine.server.projection import sample_ids
from searchengine.server.responses import facet_lists, json_object, respond
from searchengine.server.served import Collection
from searchengine.server.server_settings import MAX_FACETS, MAX_OFFSET

BEST = 100
"""Documents that a question is about: the values of those are counted."""
_VALUES = 50  # of a field that are counted
_SAMPLE = 200  # documents
_CHARACTERS = 4 << 20  # of documents that are read for their fields
_FEW = 12  # values of a field that are a choice, however small the sample
_NAME = 60  # characters of a value that is a name, not prose
_SHOWN = 200  # characters of a value that a hit can show
_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d:\d\d.*)?)?")
_POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
router = APIRouter(tags=["page"], prefix="/v1/collections/{name}")


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
    documentation = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="searchengine",
        swagger_js_url="swagger_ui/swagger-ui-bundle.js",
        swagger_css_url="swagger_ui/swagger-ui.css",
        swagger_favicon_url="page/icon.svg",
    )
    (script,) = re.findall(rb"<script>(.*?)</script>", bytes(documentation.body), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = _POLICY.format(f" 'sha256-{digest}'", " 'unsafe-inline'")
    documentation.headers["Content-Security-Policy"] = policy

    @app.get("/", include_in_schema=False)
    async def search_page(request: Request) -> Response:
        return await page.get_response("index.html", request.scope)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return documentation


@router.get("/fields")
async def list_fields(served: Collection) -> Response:
    """Fields to filter by, of a sample of at most 200 documents.

    `name`: as filters write it; `path`: its place in the metadata; `kind`: choice, number, date or
    text; `lists`: whether it has lists, which filters test by `contains`; `low` and `high`: of the
    sample, for numbers and dates.
    """

    def work(engine: SearchEngine) -> list[dict[str, Any]]:
        values: dict[tuple[str, ...], list[Any]] = {}
        with engine.collection.reading() as snapshot:
            read = 0
            for i in sample_ids(snapshot, _SAMPLE):
                (document,) = snapshot.documents([i])
                for path, value in _leaves(document.metadata):
                    values.setdefault(path, []).append(value)
                if (read := read + len(document.text)) > _CHARACTERS:
                    break
        fields = (_described(path, each) for path, each in values.items())
        return [field for field in fields if field is not None][:MAX_FACETS]

    return respond(json_object(fields=await served.read(work)))


def _leaves(metadata: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The paths and values of fields, and of the fields of a field."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from (((name, inner), below) for inner, below in value.items())
        else:
            yield (name,), value


def _described(path: tuple[str, ...], values: Sequence[Any]) -> dict[str, Any] | None:
    """A field for the page; None: its values are neither texts, numbers nor truth values."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    atoms = [atom for listed in lists for atom in listed if atom is not None]
    if not atoms or not all(isinstance(atom, str | int | float) for atom in atoms):
        return None
    texts = [atom for atom in atoms if isinstance(atom, str)]
    few = 1 < len(set(atoms)) <= max(_FEW, len(values) // 3)
    kind = "choice" if few and all(len(text) <= _NAME for text in texts) else "text"
    if not texts and len(set(atoms)) > _FEW:
        kind = "number"
    elif len(texts) == len(atoms) and all(map(_DATE.fullmatch, texts)):
        kind = "date"
    elif any(len(text) > _SHOWN for text in texts):
        return None
    ranged = kind in ("number", "date")
    return {
        "name": field_name(path),
        "path": path,
        "kind": kind,
        "lists": any(isinstance(value, list) for value in values),
        "low": min(atoms) if ranged else None,
        "high": max(atoms) if ranged else None,
    }


@router.post("/count")
async def count_matches(served: Collection, body: CountRequest) -> Response:
    """How many documents match a question, and the values of fields of the best 100 of them.

    `total`: by words those with a word of the question, else all that are ranked; `at_least`:
    whether counting stopped there; `best`: the number of best documents whose values `facets` has,
    or null for all.
    """
    return respond(json_object(**await served.read(lambda engine: _count(engine, body))))


def _count(engine: SearchEngine, request: CountRequest) -> dict[str, Any]:
    mode = engine.default_mode if request.mode == "auto" else Mode(request.mode)
    if mode == Mode.HYBRID and not engine.encodes:
        mode = Mode.TEXT
    question = best = None
    if request.query is not None:
        options: dict[str, Any] = {"mode": mode, "typo_tolerance": request.typo_tolerance}
        question = engine.read(request.query, **options)
    facets: dict[str, dict[Any, int]] = {}
    for where in set(request.fields.values()):  # fields with one filter are ranked together
        names = [name for name, filters in request.fields.items() if filters == where]
        among = where
        if question is not None:
            keys = _best(engine, question, mode, where)
            quoted = ", ".join("'{}'".format(key.replace("'", "''")) for key in keys)
            among = f"_id in ({quoted})" if keys else "_id = ''"
            best = BEST if len(keys) == BEST else best  # else they are all that match
        for field, values in engine.facets(*names, where=among).items():
            facets[field] = dict(list(values.items())[:_VALUES])
    total = engine.count(request.where)
    if by_words := question is not None and mode == Mode.TEXT:
        required = engine.required_phrases(question.text)
        with engine.collection.reading() as snapshot:
            text, where = question.text, request.where
            total = len(snapshot.by_words(text, MAX_OFFSET, where, required=required))
    at_least = by_words and total == MAX_OFFSET
    return {"total": total, "at_least": at_least, "best": best, "facets": facet_lists(facets)}


def _best(engine: SearchEngine, question: Question, mode: Mode, where: str | None) -> Sequence[str]:
    """The keys of the best documents for a question, at most BEST."""
    texts = [] if mode == Mode.TEXT else engine.to_encode([question.text], mode)
    vectors = engine.encode_questions(texts) if texts else np.zeros((0, 0), np.float32)
    with engine.collection.reading() as snapshot:
        (keys,) = engine.rank(snapshot, [question.text], vectors, BEST, mode=mode, where=where)
    return keys
