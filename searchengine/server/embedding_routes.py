"""Routes in the shape of OpenAI's API: models and embeddings."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from searchengine.engine import SearchEngine, limits
from searchengine.errors import QueryError
from searchengine.server.models import (
    EmbeddingsRequest,
    EmbeddingsResponse,
    Role,
)
from searchengine.server.refusals import BEARER, RESPONSES
from searchengine.server.responses import json_list, json_object, respond
from searchengine.server.served import Served, collection_of, state

router = APIRouter(tags=["openai"], responses=RESPONSES, dependencies=[Depends(BEARER)])
_BLOCK = 256  # texts encoded at a time; between blocks the time limit is checked


@router.get("/v1/models", response_model=dict[str, Any])
async def models(request: Request) -> Response:
    """What an embeddings request may name as `model`: the collections that have an encoder."""
    collections = state(request).collections.values()
    served = [each for each in collections if each.away is None and each.engine.encodes]
    return respond(json_object(object="list", data=[*map(_model, served)]))


def _model(served: Served) -> dict[str, Any]:
    created = 0 if isinstance(served.path, str) else int(served.path.stat().st_mtime)
    return {"id": served.name, "object": "model", "created": created, "owned_by": "searchengine"}


@router.post("/v1/embeddings", response_model=EmbeddingsResponse)
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Vectors of texts, by the encoder of a collection.

    With `dimensions`, their prefixes of that width, scaled to length 1. `truncated` lists the
    inputs of which the encoder has read the beginning only.
    """
    served = collection_of(request, body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input

    def work(engine: SearchEngine) -> bytes:
        if not engine.encodes:
            raise QueryError("the collection has no encoder; its documents come with vectors")
        tokens, cut, room = _read_tokens(engine, texts, body.input_type)
        vectors = _encoded(engine, texts, body.input_type, body.dimensions)
        in_base64 = body.encoding_format == "base64"
        data = json_list(
            {"object": "embedding", "index": i, "embedding": _written(row, in_base64)}
            for i, row in enumerate(vectors)
        )
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_object(
            object="list",
            model=served.name,
            usage=usage,
            truncated=cut,
            max_tokens=room,
            data=data,
        )

    return respond(await served.read(work))


def _read_tokens(
    engine: SearchEngine, texts: Sequence[str], role: Role
) -> tuple[int, list[int], int | None]:
    """How many tokens are read, the positions of the texts that are cut, and after which token.

    None: any number is read, or the encoder has no tokenizer.
    """
    encoder = engine.encoder
    lengths = [len(spans) for spans in encoder.token_spans(texts)]
    room = encoder.room(role)
    if room is None:
        return sum(lengths), [], None
    cut = [position for position, length in enumerate(lengths) if length > room]
    return sum(min(length, room) for length in lengths), cut, room


def _encoded(
    engine: SearchEngine, texts: Sequence[str], role: Role, dimensions: int | None
) -> npt.NDArray[np.float32]:
    """Unit rows (n, dimensions) float32. Raises QueryError, SearchTimeout."""
    dim = engine.encoder.dim
    if dimensions is not None and dimensions > dim:
        raise QueryError(f"dimensions must be at most {dim}, got {dimensions}")
    encode = engine.encode_questions if role == "query" else engine.encode_documents
    blocks = []
    for start in range(0, len(texts), _BLOCK):
        limits.check()
        blocks.append(encode(texts[start : start + _BLOCK]))
    vectors: npt.NDArray[np.float32] = np.concatenate(blocks)
    if dimensions is None:
        return vectors
    vectors = vectors[:, :dimensions]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not lengths.all():
        raise QueryError(f"a vector has only zeros in its first {dimensions} dimensions")
    vectors /= lengths
    return vectors


def _written(row: npt.NDArray[np.float32], in_base64: bool) -> Any:
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if in_base64 else row.tolist()
