"""Routes that answer questions."""

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.query.hits import STAGES, Hits, Timing
from searchengine.server.models import BatchRequest, SearchOptions, SearchRequest, SimilarRequest
from searchengine.server.responses import facet_lists, json_list, json_object, respond
from searchengine.server.served import collection_of
from searchengine.server.server_settings import MAX_HITS

router = APIRouter(tags=["search"], prefix="/v1/search")
_HITS: dict[str, Any] = {
    "collection": "papers",
    "hits": [
        {
            "score": 0.72,
            "key": "whales-01",
            "title": "Sleep",
            "text": "A whale rests one half of its brain at a time.",
            "metadata": {"year": 2014},
            "start": 0,
            "end": 46,
            "snippet": "A whale rests one half of its brain at a time.",
            "heading": "",
            "highlights": ["sleep", "whale"],
            "scores": {"vector": 0.53, "text": 4.1},
        }
    ],
}
"""What OpenAPI shows; docs/server.md has the rest."""


@router.post("")
async def search(body: SearchRequest, request: Request) -> Response:
    """The documents nearest to a question or a vector, best first."""
    served = collection_of(request, body.collection)
    start = time.perf_counter()
    question: Any = body.query if body.query is not None else body.vector
    show = _with_texts if body.texts else _without_texts
    hits, shown = await served.search(question, body.k, _options(body), show, body.timeout)
    return respond(_result(served.name, hits.timing, time.perf_counter() - start, shown))


@router.post("/batch")
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """The hits of many questions as `results`, in their order; faster than one by one."""
    served = collection_of(request, body.collection)
    start = time.perf_counter()
    questions = (body.queries if body.queries is not None else body.vectors) or []
    options = _options(body, len(questions))
    show = _with_texts if body.texts else _without_texts

    def work(engine: SearchEngine) -> bytes:
        batch = engine.search_batch(questions, body.k, **options)
        seconds = time.perf_counter() - start  # of all together
        results = (_result(served.name, hits.timing, seconds, show(hits)) for hits in batch)
        return json_object(collection=served.name, results=json_list(results))

    return respond(await served.read(work, body.timeout))


@router.post("/similar")
async def similar(body: SimilarRequest, request: Request) -> Response:
    """The documents nearest to a stored one or to several, which are left out."""
    keys = (body.keys if body.key is None else [body.key]) or []
    served = collection_of(request, body.collection)
    options = _options(body)
    show = _with_texts if body.texts else _without_texts

    def work(engine: SearchEngine) -> bytes:
        hits = engine.similar(keys, body.k, **options)
        return _result(served.name, hits.timing, 0, show(hits))

    return respond(await served.read(work, body.timeout))


def _options(body: SearchOptions, questions: int = 1) -> dict[str, Any]:
    """The keywords of SearchEngine.search that a request means. Raises QueryError."""
    if (hits := questions * (body.offset + body.k)) > MAX_HITS:
        raise QueryError(
            f"questions times offset + k must be at most {MAX_HITS:,}, got {hits:,}; send "
            "fewer questions at a time"
        )
    return body.options()


def _result(collection: str, timing: Timing | None, seconds: float, shown: bytes) -> bytes:
    """The hits of a question as JSON; `shown`: the members that follow.

    The milliseconds of a search are those until its call began (`wait`), of its stages, and of all
    the `seconds` that it took in the server.
    """
    stages: dict[str, float] | None = None
    if timing is not None:
        stages = {name: getattr(timing, name) for name in STAGES}
        wait = max(0.0, seconds - sum(stages.values()))
        parts = {"wait": wait, **stages, "total": seconds}
        stages = {name: round(1e3 * part, 3) for name, part in parts.items()}
        stages["questions"] = timing.questions
    return to_json({"collection": collection, "timing": stages})[:-1] + b"," + shown[1:]


def _with_texts(hits: Hits, texts: bool = True) -> bytes:
    return json_object(
        hits=json_list(_fields(hit.as_dict(), texts) for hit in hits),
        facets=facet_lists(hits.facets),
        exact=hits.exact,
        notes=hits.notes,
        replaced=hits.replaced,
    )


def _without_texts(hits: Hits) -> bytes:
    return _with_texts(hits, texts=False)


def _fields(hit: dict[str, Any], texts: bool) -> dict[str, Any]:
    """A hit; without its text, also without what only has offsets into it."""
    if not texts:
        del hit["text"]
        hit["metadata"] = {
            name: value
            for name, value in hit["metadata"].items()
            if name not in ("headings", "sections")
        }
    return hit
