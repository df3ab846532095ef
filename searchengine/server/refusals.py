"""Errors as a client sees them: a status, a type, one sentence and the id of the request."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

from searchengine import errors
from searchengine.errors import (
    BackendUnavailable,
    CollectionBusy,
    CollectionError,
    EncoderMismatch,
    EncoderMissing,
    EndpointError,
    SearchEngineError,
    SearchTimeout,
    UnknownKey,
)
from searchengine.indexer.errors import IndexerError
from searchengine.server.models import ErrorModel
from searchengine.trainer.errors import TrainerError

TYPES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
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
"""The type and code of a 404 for a document; of another address or collection not_found."""
INTERNAL = "internal error; the log of the server has it by this id"
RETRY = {"Retry-After": "1"}
"""Header of a refusal before anything was done, so that any request may be sent again."""
_CODES = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SearchEngineError)
}
_MEANINGS = {
    400: "The body is not JSON.",
    401: "The token is missing or unknown.",
    403: "The token may not write, or the request has no token.",
    404: "There is no such collection or document.",
    413: "The request is too large.",
    422: "A value does not make sense.",
    429: "Too many requests; Retry-After says when to try again.",
    500: "An error of the server; its log has it by the id.",
    502: "The encoder of the collection cannot be reached.",
    503: "Not ready, busy, or not answered in time; try again.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorModel, "description": meaning} for status, meaning in _MEANINGS.items()
}
"""The errors of a route, for OpenAPI."""
_HTTP = {
    400: "the body is not JSON in UTF-8",
    404: "there is nothing at this address; GET /openapi.json lists what there is",
    405: "this address does not take this method",
}
_log = logging.getLogger(__name__)


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def of_engine(error: SearchEngineError) -> tuple[int, str | None]:
    """The status of an error of the engine, and the message if it is not the error's own."""
    if isinstance(error, UnknownKey):
        return 404, None
    if isinstance(error, SearchTimeout):
        return 503, None
    if isinstance(error, CollectionBusy):
        return 503, "another process is writing to the collection; try again"
    if isinstance(error, BackendUnavailable):
        return 503, "the database of the collection cannot be reached; try again"
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


def code_of(error: SearchEngineError) -> str | None:
    """The name of an error of the engine in a response: filter_error; None: an internal one."""
    return _CODES.get(type(error))


def error_body(
    status: int,
    message: str,
    identity: str,
    *,
    param: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """The JSON of an error; OpenAI's clients read it too. `param`: the field that is wrong."""
    kind = UNKNOWN_KEY if code == UNKNOWN_KEY else TYPES[status]
    error = {"type": kind, "message": message, "param": param, "code": code, "id": identity}
    return {"error": error}


def error_response(
    status: int,
    message: str,
    identity: str,
    headers: Mapping[str, str] | None = None,
    **details: str | None,
) -> Response:
    """The response of an error; `details` as for `error_body`."""
    content = to_json(error_body(status, message, identity, **details))
    return Response(content, status, dict(headers or {}), "application/json")


# ----------------------------------------------------------------------------------------- handlers


def add_handlers(app: FastAPI) -> None:
    """Turn every exception of a route into one sentence with the id of the request."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(SearchEngineError, _engine)
    app.add_exception_handler(Exception, _internal)


async def known_parameters(request: Request) -> None:
    """A dependency of routes: parameters that a route does not have are refused."""
    if request.scope["query_string"]:
        known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
        for name in request.query_params:
            if name not in known:
                raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", name)}])


def _refused(request: Request, error: Any) -> Response:
    return error_response(error.status, error.message, request.scope["id"], error.headers)


def _http(request: Request, error: Any) -> Response:
    """An error of the framework: a route, a method, a body that is not JSON."""
    status = error.status_code if error.status_code in TYPES else 400
    if status == 405 and (methods := _methods(request)):
        error.headers = {"Allow": ", ".join(methods)}
    message = _HTTP.get(status, str(error.detail))
    return error_response(status, message, request.scope["id"], error.headers)


def _methods(request: Request) -> list[str]:
    """The methods of an address; each route of the framework knows its own only."""
    methods = {
        method.upper()
        for path, operations in request.app.openapi()["paths"].items()
        if compile_path(path.replace("{key}", "{key:any_key}"))[0].match(request.scope["path"])
        for method in operations
    }
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _invalid(request: Request, error: Any) -> Response:
    """A value that does not fit its model. The message does not quote it: it may be large."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(400, "the body is not JSON", request.scope["id"])
    if isinstance(first.get("input"), bytes):  # a body of another type, which nobody has parsed
        message = "send the header Content-Type: application/json with the body"
        return error_response(422, message, request.scope["id"])
    place = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "extra_forbidden":
        kind = "parameter" if first["loc"][0] == "query" else "field"
        message = f"{place:.80}: no such {kind}"
        return error_response(422, message, request.scope["id"], param=f"{place:.80}")
    message = str(first["msg"]).removeprefix("Value error, ")
    message = f"{place}: {message}" if place else message
    param = f"{place:.80}" or None
    return error_response(422, f"{message:.500}", request.scope["id"], param=param)


def _engine(request: Request, error: Any) -> Response:
    status, message = of_engine(error)
    if isinstance(error, SearchTimeout):
        request.app.state.here.metrics.refused.labels("timeout").inc()
    elif status >= 500 and not isinstance(error, EncoderMissing):  # logged when it is tried
        _log.error("request %s: %s", request.scope["id"], error)
    if message is None:
        message = str(error)
        for served in request.app.state.here.collections.values():
            message = served.without_path(message)
    retry = status == 503 and not isinstance(error, SearchTimeout)  # which would be as slow again
    headers = RETRY if retry else None
    return error_response(status, message, request.scope["id"], headers, code=code_of(error))


def _internal(request: Request, _: Any) -> Response:
    """An unexpected error, which the guard logs."""
    return error_response(500, INTERNAL, request.scope["id"])
