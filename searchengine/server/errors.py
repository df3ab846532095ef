"""Errors as a client sees them: a status, a type, one sentence and the id of the request."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    EncoderMismatch,
    EncoderMissing,
    EndpointError,
    SearchEngineError,
    UnknownKey,
)
from searchengine.indexer.errors import IndexerError
from searchengine.trainer.errors import TrainerError

TYPES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    415: "unsupported_media_type",
    421: "wrong_host",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    502: "encoder_unreachable",
    503: "unavailable",
}
UNKNOWN_KEY = "unknown_key"
"""The type of a 404 for a document; that of another address or collection is not_found."""
INTERNAL = "internal error; the log of the server has it by this id"
RETRY = {"Retry-After": "1"}


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def of_engine(error: SearchEngineError) -> tuple[int, str | None]:
    """The status of an error of the engine, and the message if it is not the error's own."""
    if isinstance(error, UnknownKey):
        return 404, None
    if isinstance(error, CollectionBusy):
        return 503, "another process is writing to the collection; try again"
    if isinstance(error, EncoderMismatch):
        return 503, "the collection has just been built by another encoder; try again"
    if isinstance(error, EncoderMissing):
        return 503, "the encoder of the collection cannot be loaded; search by words: mode text"
    if isinstance(error, EndpointError):
        return 502, "the encoder of the collection cannot be reached, or answers wrongly"
    if isinstance(error, CollectionError):
        return 500, "the collection cannot be read or written; the log of the server says why"
    if isinstance(error, TrainerError | IndexerError):
        return 500, INTERNAL
    return 422, None


def body(status: int, message: str, identity: str, kind: str | None = None) -> dict[str, Any]:
    """The JSON of an error; OpenAI's clients read it too."""
    return {"error": {"type": kind or TYPES[status], "message": message, "id": identity}}


def response(
    status: int,
    message: str,
    identity: str,
    headers: Mapping[str, str] | None = None,
    kind: str | None = None,
) -> Response:
    """The response of an error."""
    content = to_json(body(status, message, identity, kind))
    return Response(content, status, dict(headers or {}), "application/json")
