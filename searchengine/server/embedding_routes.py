"""Routes in the shape of OpenAI's API: models and embeddings."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from searchengine.engine import SearchEngine, limits
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.server.models import EmbeddingsRequest
from searchengine.server.responses import json_list, respond
from searchengine.server.served import collection_of

router = APIRouter(tags=["openai"], prefix="/v1")
_BLOCK = 256  # texts encoded at a time; between blocks the time limit is checked


@router.get("/models")
async def models(request: Request) -> Response:
    """What an embeddings request may name as `model`: the collections that have an encoder."""
    model = {"object": "model", "created": 0, "owned_by": "searchengine"}
    served = request.app.state.collections.items()
    names = [name for name, each in served if each.away is None and each.engine.encoder.encodes()]
    return respond({"object": "list", "data": [{"id": name} | model for name in names]})


@router.post("/embeddings")
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Vectors of texts, by the encoder of a collection.

    With `dimensions`, their prefixes of that width, scaled to length 1. In base64, they are float32
    in little-endian order. `truncated` lists the inputs of which the encoder has read the first
    `max_tokens` only.
    """
    served = await collection_of(request, body.model)

    def work(engine: SearchEngine) -> dict[str, Any]:
        if not engine.encoder.encodes():
            raise QueryError("the collection has no encoder; start the server with --encoder")
        encoder = engine.encoder.load()
        if body.dimensions is not None and body.dimensions > encoder.dim:
            fault = f"must be at most {encoder.dim}, got {body.dimensions}"
            place = {"type": "value_error", "loc": ("body", "dimensions")}
            raise RequestValidationError([place | {"msg": fault}])
        lengths = [len(spans) for spans in encoder.token_spans(body.input)]
        room = encoder.room(body.input_type)  # None: any number is read
        read = [length if room is None else min(length, room) for length in lengths]
        data = (
            {"object": "embedding", "index": i, "embedding": row}
            for i, row in enumerate(_rows(engine, body))
        )
        return {
            "object": "list",
            "model": served.name,
            "usage": {"prompt_tokens": sum(read), "total_tokens": sum(read)},
            "truncated": [i for i, length in enumerate(lengths) if length > read[i]],
            "max_tokens": room,
            "data": json_list(data),
        }

    return respond(await served.read(work))


def _rows(engine: SearchEngine, body: EmbeddingsRequest) -> Iterator[Any]:
    """Unit rows as numbers or base64. Raises QueryError, SearchTimeout."""
    for start in range(0, len(body.input), _BLOCK):
        limits.check()
        vectors: Floats = engine.encode(body.input[start : start + _BLOCK], body.input_type)
        if (dims := body.dimensions) is not None:
            vectors = vectors[:, :dims]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not lengths.all():
                raise QueryError(f"a vector is zero in its first {dims} dimensions; ask for more")
            vectors = vectors / lengths
        for row in vectors.astype("<f4"):
            is_text = body.encoding_format == "base64"
            yield base64.b64encode(row.tobytes()).decode() if is_text else row.tolist()
