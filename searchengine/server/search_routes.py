"""Routes that answer questions."""

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.query.hits import STAGES, Hit, Hits, Timing
from searchengine.server.models import (
    BatchRequest,
    BatchResponse,
    ExplainRequest,
    ExplainResponse,
    Route,
    SearchRequest,
    SearchResponse,
    SimilarRequest,
)
from searchengine.server.refusals import RESPONSES
from searchengine.server.responses import Content, as_json, json_response
from searchengine.server.served import collection_of, state

router = APIRouter(route_class=Route, tags=["search"], responses=RESPONSES)


@router.post("/v1/search", response_model=SearchResponse)
async def search(body: SearchRequest, request: Request) -> Response:
    """The documents nearest to a question or a vector, best first."""
    here = state(request)
    served = collection_of(request, body.collection)
    start = time.perf_counter()
    question: Any = body.query if body.query is not None else body.vector
    show = _with_texts if body.texts else _without_texts
    options = here.options(body)
    hits, shown = await served.search(question, body.k, options, show, body.timeout)
    seconds = time.perf_counter() - start
    here.metrics.searched(hits.timing, seconds)
    request.scope["timing"] = hits.timing
    head = Content()
    head.write(_head(served.name, hits, seconds))
    return json_response(head, shown)


@router.post("/v1/search/batch", response_model=BatchResponse)
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """The hits of many questions; faster than one by one."""
    here = state(request)
    served = collection_of(request, body.collection)
    start = time.perf_counter()
    questions = (body.queries if body.queries is not None else body.vectors) or []
    options = here.options(body, len(questions))

    def work(engine: SearchEngine) -> tuple[list[Timing | None], Content]:
        batch = engine.search_batch(questions, body.k, **options)
        seconds = time.perf_counter() - start
        content = Content()
        content.write(b'{"collection":' + to_json(served.name) + b',"results":')
        before = b"["
        for hits in batch:
            content.write(before + _head(served.name, hits, seconds))
            _write_hits(content, hits, texts=body.texts)
            before = b","
        content.write(b"]}")
        return [hits.timing for hits in batch], content

    timings, content = await served.read(work, body.timeout)
    seconds = time.perf_counter() - start
    request.scope["timing"] = timings[0]  # they were answered together
    for timing in timings:
        here.metrics.searched(timing, seconds)
    return json_response(content)


@router.post("/v1/search/similar", response_model=SearchResponse)
async def similar(body: SimilarRequest, request: Request) -> Response:
    """The documents nearest to a stored one or to several, which are left out."""
    keys = (body.keys if body.key is None else [body.key]) or []
    served = collection_of(request, body.collection)
    options = state(request).options(body)
    start = time.perf_counter()

    def work(engine: SearchEngine) -> Content:
        hits = engine.similar(keys, body.k, **options)
        content = Content()
        content.write(_head(served.name, hits, time.perf_counter() - start))
        _write_hits(content, hits, texts=body.texts)
        return content

    return json_response(await served.read(work, body.timeout))


@router.post("/v1/search/explain", response_model=ExplainResponse)
async def explain(body: ExplainRequest, request: Request) -> Response:
    """Why a search finds a document or not."""
    served = collection_of(request, body.collection)
    question: Any = body.query if body.query is not None else body.vector
    options = state(request).options(body)

    def work(engine: SearchEngine) -> dict[str, Any]:
        explanation = engine.explain(question, body.key, body.k, **options)
        return {"collection": served.name, **explanation.as_dict()}

    return as_json(await served.read(work, body.timeout))


def _head(collection: str, hits: Hits, seconds: float) -> bytes:
    """The beginning of a SearchResponse, which `_write_hits` completes."""
    timing = None
    if hits.timing is not None:
        stages = {name: 1e3 * getattr(hits.timing, name) for name in STAGES}
        wait = max(0.0, 1e3 * seconds - sum(stages.values()))
        rounded = {"wait": wait, **stages, "total": 1e3 * seconds}
        timing = {name: round(value, 3) for name, value in rounded.items()}
        timing["questions"] = hits.timing.questions
    return to_json({"collection": collection, "timing": timing})[:-1] + b","


def _write_hits(content: Content, hits: Hits, *, texts: bool) -> None:
    content.write(b'"hits":')
    content.write_list(_hit(hit, texts) for hit in hits)
    content.write(b',"facets":')
    content.write_facets(hits.facets)
    names = ("exact", "notes", "replaced")
    rest = to_json({name: getattr(hits, name) for name in names})
    content.write(b"," + rest[1:])


def _with_texts(hits: Hits) -> Content:
    content = Content()
    _write_hits(content, hits, texts=True)
    return content


def _without_texts(hits: Hits) -> Content:
    content = Content()
    _write_hits(content, hits, texts=False)
    return content


def _hit(hit: Hit, texts: bool) -> dict[str, Any]:
    fields = hit.as_dict()
    if not texts:  # nor what only has offsets into it
        del fields["text"]
        fields["metadata"] = {
            name: value
            for name, value in hit.metadata.items()
            if name not in ("headings", "sections")
        }
    return fields
