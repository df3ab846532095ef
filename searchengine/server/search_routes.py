"""Routes that answer questions."""

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic_core import to_json
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.query.hits import STAGES, Hit, Hits, Timing
from searchengine.server.models import (
    BatchRequest,
    BatchResponse,
    SearchOptions,
    SearchRequest,
    SearchResponse,
    SimilarRequest,
)
from searchengine.server.refusals import BEARER, RESPONSES
from searchengine.server.responses import facet_lists, json_list, json_object, respond
from searchengine.server.served import collection_of
from searchengine.server.server_settings import MAX_HITS

router = APIRouter(tags=["search"], responses=RESPONSES, dependencies=[Depends(BEARER)])


@router.post("/v1/search", response_model=SearchResponse)
async def search(body: SearchRequest, request: Request) -> Response:
    """The documents nearest to a question or a vector, best first."""
    served = collection_of(request, body.collection)
    start = time.perf_counter()
    question: Any = body.query if body.query is not None else body.vector
    show = _with_texts if body.texts else _without_texts
    hits, shown = await served.search(question, body.k, _options(body), show, body.timeout)
    seconds = time.perf_counter() - start
    timing = _milliseconds(hits.timing, seconds)
    return respond(_result(served.name, timing, shown))


@router.post("/v1/search/batch", response_model=BatchResponse)
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """The hits of many questions; faster than one by one."""
    served = collection_of(request, body.collection)
    start = time.perf_counter()
    questions = (body.queries if body.queries is not None else body.vectors) or []
    options = _options(body, len(questions))
    show = _with_texts if body.texts else _without_texts

    def work(engine: SearchEngine) -> bytes:
        batch = engine.search_batch(questions, body.k, **options)
        timing = _milliseconds(batch[0].timing, time.perf_counter() - start)  # of all together
        results = json_list(_result(served.name, timing, show(hits)) for hits in batch)
        return json_object(collection=served.name, results=results)

    return respond(await served.read(work, body.timeout))


@router.post("/v1/search/similar", response_model=SearchResponse)
async def similar(body: SimilarRequest, request: Request) -> Response:
    """The documents nearest to a stored one or to several, which are left out."""
    keys = (body.keys if body.key is None else [body.key]) or []
    served = collection_of(request, body.collection)
    options = _options(body)
    show = _with_texts if body.texts else _without_texts

    def work(engine: SearchEngine) -> bytes:
        return _result(served.name, None, show(engine.similar(keys, body.k, **options)))

    return respond(await served.read(work, body.timeout))


def _options(body: SearchOptions, questions: int = 1) -> dict[str, Any]:
    """The keywords of SearchEngine.search that a request means. Raises QueryError."""
    if (hits := questions * (body.offset + body.k)) > MAX_HITS:
        raise QueryError(
            f"questions times offset + k must be at most {MAX_HITS:,}, got {hits:,}; send "
            "fewer questions at a time"
        )
    return body.options()


def _milliseconds(timing: Timing | None, seconds: float) -> dict[str, float] | None:
    """The stages of a search that took `seconds` in all, with the time before its call."""
    if timing is None:
        return None
    stages = {name: getattr(timing, name) for name in STAGES}
    wait = max(0.0, seconds - sum(stages.values()))
    parts = {"wait": wait, **stages, "total": seconds}
    return {name: round(1e3 * part, 3) for name, part in parts.items()} | {
        "questions": timing.questions
    }


def _result(collection: str, timing: dict[str, float] | None, shown: bytes) -> bytes:
    """A SearchResponse; `shown`: the rest of it."""
    return to_json({"collection": collection, "timing": timing})[:-1] + b"," + shown[1:]


def _without_texts(hits: Hits) -> bytes:
    return _with_texts(hits, _without_text)


def _with_texts(hits: Hits, fields: Callable[[Hit], dict[str, Any]] = Hit.as_dict) -> bytes:
    return json_object(
        hits=json_list(map(fields, hits)),
        facets=facet_lists(hits.facets),
        exact=hits.exact,
        notes=hits.notes,
        replaced=hits.replaced,
    )


def _without_text(hit: Hit) -> dict[str, Any]:
    """A hit without its text, and without what only has offsets into it."""
    offsets = ("headings", "sections")
    fields = hit.as_dict()
    del fields["text"]
    fields["metadata"] = {k: v for k, v in hit.metadata.items() if k not in offsets}
    return fields
