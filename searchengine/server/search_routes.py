"""Routes that answer questions."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from searchengine.engine import Hits, SearchEngine
from searchengine.errors import QueryError
from searchengine.server import MAX_HITS
from searchengine.server.models import (
    OPTIONS,
    BatchRequest,
    SearchOptions,
    SearchRequest,
    SimilarRequest,
)
from searchengine.server.responses import facet_lists, json_list, json_object, respond
from searchengine.server.served import collection_of

router = APIRouter(tags=["search"], prefix="/v1/search")


@router.post("")
async def search(body: SearchRequest, request: Request) -> Response:
    """The documents nearest to a question or a vector, best first."""
    served = await collection_of(request, body.collection)
    question: Any = body.query if body.query is not None else body.vector
    show = _SHOW[body.texts]
    _, shown = await served.search(question, _options(body), show, body.timeout)
    return respond(json_object({"collection": served.name})[:-1] + b"," + shown[1:])


@router.post("/batch")
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """The hits of many questions as `results`, in their order; faster than one by one."""
    served = await collection_of(request, body.collection)
    questions = (body.queries if body.queries is not None else body.vectors) or []
    options = _options(body, len(questions))

    def work(engine: SearchEngine) -> bytes:
        batch = engine.search_batch(questions, **options)
        return json_list(_shown(hits, body.texts, collection=served.name) for hits in batch)

    results = await served.read(work, body.timeout)
    return respond({"collection": served.name, "results": results})


@router.post("/similar")
async def similar(body: SimilarRequest, request: Request) -> Response:
    """The documents nearest to a stored one or to several, which are left out."""
    keys = (body.keys if body.key is None else [body.key]) or []
    served = await collection_of(request, body.collection)
    options = _options(body)

    def work(engine: SearchEngine) -> bytes:
        hits = engine.similar(keys, **options)
        return _shown(hits, body.texts, collection=served.name)

    return respond(await served.read(work, body.timeout))


def _options(body: SearchOptions, questions: int = 1) -> dict[str, Any]:
    """The keywords of SearchEngine.search that a request means. Raises QueryError."""
    if (hits := questions * (body.offset + body.k)) > MAX_HITS:
        raise QueryError(
            f"questions times offset + k must be at most {MAX_HITS:,}, got {hits:,}; send "
            "fewer questions at a time"
        )
    options: dict[str, Any] = body.model_dump(include={*OPTIONS} - {"timeout"})
    return options


def _shown(hits: Hits, texts: bool, **about: Any) -> bytes:
    """The hits of a question as JSON."""
    fields = [hit.as_dict() for hit in hits]
    for each in () if texts else fields:
        del each["text"]
    answer = {
        "hits": json_list(fields),
        "facets": facet_lists(hits.facets),
        "exact": hits.exact,
        "notes": hits.notes,
        "replaced": hits.replaced,
    }
    return json_object(about | answer)


_SHOW = {texts: partial(_shown, texts=texts) for texts in (True, False)}
"""One object each: questions with the same are answered together."""
