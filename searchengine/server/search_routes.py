"""Routes that answer questions and encode texts."""

import base64
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.query.hits import STAGES, Hit, Hits, HitsBatch
from searchengine.server.models import (
    BatchRequest,
    BatchResponse,
    EmbeddingsRequest,
    EmbeddingsResponse,
    SearchRequest,
    SearchResponse,
)
from searchengine.server.refusals import RESPONSES
from searchengine.server.served import state

router = APIRouter(tags=["search"], responses=RESPONSES)


@router.post("/v1/search", response_model=SearchResponse)
async def search(body: SearchRequest, request: Request) -> Response:
    """The documents nearest to a question or a vector, best first."""
    here = state(request)
    served = here.served(body.collection)
    start = time.perf_counter()
    question = body.query if body.query is not None else body.vector
    hits = await served.search(question, body.k, here.options(body))
    seconds = time.perf_counter() - start
    here.metrics.searched(hits.timing, seconds)
    return as_json(_result(served.name, hits, seconds, body.texts))


@router.post("/v1/search/batch", response_model=BatchResponse)
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """The hits of many questions; faster than one by one."""
    here = state(request)
    served = here.served(body.collection)
    start = time.perf_counter()
    questions = (body.queries if body.queries is not None else body.vectors) or []
    options = here.options(body, len(questions))

    def work(engine: SearchEngine) -> HitsBatch:
        return engine.search_batch(questions, body.k, **options)

    batch = await served.read(work)
    seconds = time.perf_counter() - start
    for hits in batch:
        here.metrics.searched(hits.timing, seconds)
    results = [_result(served.name, hits, seconds, body.texts) for hits in batch]
    return as_json({"collection": served.name, "results": results})


@router.post("/v1/embeddings", response_model=EmbeddingsResponse)
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Vectors of texts, by the encoder of a collection, in the shape of OpenAI's API.

    With `dimensions`, their prefixes of that width, scaled to length 1.
    """
    served = state(request).served(body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    encode = partial(_encoded, texts=texts, role=body.input_type, dimensions=body.dimensions)
    vectors, tokens = await served.read(encode)
    if body.encoding_format == "base64":
        written: Sequence[Any] = [
            base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors
        ]
    else:
        written = vectors.tolist()
    data = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(written)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return as_json({"object": "list", "model": served.name, "data": data, "usage": usage})


def _encoded(
    engine: SearchEngine, texts: list[str], role: str, dimensions: int | None
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    """Unit rows (n, dimensions) float32, and the number of tokens. Raises QueryError."""
    if not engine.encodes:
        raise QueryError("the collection has no encoder; its documents come with vectors")
    encoder = engine.encoder
    if dimensions is not None and dimensions > encoder.dim:
        raise QueryError(f"dimensions must be at most {encoder.dim}, got {dimensions}")
    encode = engine.encode_questions if role == "query" else engine.encode_documents
    vectors = encode(texts)
    if dimensions is not None:
        vectors = vectors[:, :dimensions]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not lengths.all():
            raise QueryError(f"a vector has only zeros in its first {dimensions} dimensions")
        vectors = vectors / lengths
    tokens = 0
    if encoder.tokenizes:
        tokens = sum(len(spans) for spans in encoder.token_spans(texts))
    return vectors, tokens


def _result(collection: str, hits: Hits, seconds: float, texts: bool) -> dict[str, Any]:
    """A SearchResponse."""
    timing = None
    if hits.timing is not None:
        stages = {name: 1e3 * getattr(hits.timing, name) for name in STAGES}
        wait = max(0.0, 1e3 * seconds - sum(stages.values()))
        rounded = {"wait": wait, **stages, "total": 1e3 * seconds}
        timing = {name: round(value, 3) for name, value in rounded.items()}
        timing["questions"] = hits.timing.questions
    return {
        "collection": collection,
        "hits": [_hit(hit, texts) for hit in hits],
        "facets": facets_as_json(hits.facets),
        "exact": hits.exact,
        "read": hits.read,
        "timing": timing,
        "notes": hits.notes,
    }


def facets_as_json(facets: Mapping[str, Mapping[Any, int]]) -> dict[str, list[dict[str, Any]]]:
    """Field → its values and their counts, most frequent first."""
    return {
        name: [{"value": value, "count": count} for value, count in counts.items()]
        for name, counts in facets.items()
    }


def _hit(hit: Hit, texts: bool) -> dict[str, Any]:
    fields = hit.as_dict()
    if not texts:
        del fields["text"]
    return fields


def as_json(value: Any) -> Response:
    """A response that is known to fit its model: it is not validated again."""
    return Response(to_json(value), media_type="application/json")
