"""Routes in the shape of OpenAI's API: models and embeddings."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from searchengine.engine import SearchEngine, limits
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.server.models import EmbeddingsRequest, Role
from searchengine.server.responses import json_list, json_object, respond
from searchengine.server.served import Served, collection_of

router = APIRouter(tags=["openai"], prefix="/v1")
_BLOCK = 256  # texts encoded at a time; between blocks the time limit is checked


@router.get("/models")
async def models(request: Request) -> Response:
    """What an embeddings request may name as `model`: the collections that have an encoder."""
    served = request.app.state.collections.values()
    listed = [_model(each) for each in served if each.away is None and each.engine.encodes]
    return respond(json_object(object="list", data=listed))


def _model(served: Served) -> dict[str, Any]:
    created = 0 if isinstance(served.path, str) else int(served.path.stat().st_mtime)
    return {"id": served.name, "object": "model", "created": created, "owned_by": "searchengine"}


@router.post("/embeddings")
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Vectors of texts, by the encoder of a collection.

    With `dimensions`, their prefixes of that width, scaled to length 1. In base64, they are float32
    in little-endian order. `truncated` lists the inputs of which the encoder has read the first
    `max_tokens` only.
    """
    served = collection_of(request, body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input

    def work(engine: SearchEngine) -> bytes:
        if not engine.encodes:
            raise QueryError("the collection has no encoder; its documents come with vectors")
        if body.dimensions is not None and body.dimensions > engine.encoder.dim:
            raise QueryError(
                f"dimensions must be at most {engine.encoder.dim}, got {body.dimensions}"
            )
        lengths = [len(spans) for spans in engine.encoder.token_spans(texts)]
        room = engine.encoder.room(body.input_type)  # None: any number is read
        tokens = sum(lengths if room is None else (min(length, room) for length in lengths))
        data = (
            {"object": "embedding", "index": i, "embedding": row}
            for i, row in enumerate(_rows(engine, texts, body))
        )
        return json_object(
            object="list",
            model=served.name,
            usage={"prompt_tokens": tokens, "total_tokens": tokens},
            truncated=[i for i, n in enumerate(lengths) if room is not None and n > room],
            max_tokens=room,
            data=json_list(data),
        )

    return respond(await served.read(work))


def _rows(engine: SearchEngine, texts: Sequence[str], body: EmbeddingsRequest) -> Iterator[Any]:
    """Unit rows as numbers or base64. Raises QueryError, SearchTimeout."""
    role: Role = body.input_type
    encode = engine.encode_questions if role == "query" else engine.encode_documents
    for start in range(0, len(texts), _BLOCK):
        limits.check()
        vectors: Floats = encode(texts[start : start + _BLOCK])
        if body.dimensions is not None:
            vectors = vectors[:, : body.dimensions]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not lengths.all():
                raise QueryError(
                    f"a vector has only zeros in its first {body.dimensions} dimensions"
                )
            vectors = vectors / lengths
        for row in vectors.astype("<f4"):
            is_text = body.encoding_format == "base64"
            yield base64.b64encode(row.tobytes()).decode() if is_text else row.tolist()
