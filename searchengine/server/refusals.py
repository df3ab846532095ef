"""Errors as a client sees them: a status, a type, one sentence and the id of the request."""

import logging
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
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
from searchengine.trainer.errors import TrainerError

# The type of an error, and what it means in OpenAPI, where routes name it.
_STATUSES = {
    400: ("bad_request", "The body is not JSON."),
    401: ("unauthorized", "The token is missing or unknown."),
    403: ("forbidden", "The token may not write, or the request has no token."),
    404: ("not_found", "There is no such collection or document."),
    405: ("method_not_allowed", None),
    413: ("too_large", "The request is too large."),
    415: ("unsupported_media_type", None),
    421: ("wrong_host", None),
    422: ("invalid", "A value does not make sense."),
    429: ("too_many_requests", "Too many requests; Retry-After says when to try again."),
    500: ("internal", "An error of the server; its log has it by the id."),
    502: ("encoder_unreachable", "The encoder of the collection cannot be reached."),
    503: ("unavailable", "Not ready, busy, or not answered in time; try again."),
}
INTERNAL = "internal error; the log of the server has it by this id"
RETRY = {"Retry-After": "1"}
"""Header of a refusal before anything was done, so that any request may be sent again."""
_CODES = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SearchEngineError)
}
# The status and the message of an error of the engine; None: its own message.
_NO_ENCODER = "the encoder of the collection cannot be loaded; search by words: mode text"
_UNREADABLE = "the collection cannot be read or written; the log of the server says why"
_ENGINE: tuple[tuple[type[Exception], int, str | None], ...] = (
    (UnknownKey, 404, None),
    (SearchTimeout, 503, None),
    (CollectionBusy, 503, "another process is writing to the collection; try again"),
    (BackendUnavailable, 503, "the database of the collection cannot be reached; try again"),
    (EncoderMismatch, 503, "the collection has just been built by another encoder; try again"),
    (EncoderMissing, 503, _NO_ENCODER),
    (EndpointError, 502, "the encoder of the collection cannot be reached, or answers wrongly"),
    (CollectionError, 500, _UNREADABLE),
    (TrainerError, 500, INTERNAL),
    (IndexerError, 500, INTERNAL),
    (SearchEngineError, 422, None),
)
_log = logging.getLogger(__name__)


class ErrorDetail(BaseModel):
    """An error. `id` is in the log of the server and in the header X-Request-Id.

    `code`: the error of the engine, such as filter_error; null: another. `param`: the field.
    """

    type: str
    message: str
    param: str | None = None
    code: str | None = None
    id: str


_EXAMPLE: Any = {
    "type": "invalid",
    "message": "k: Input should be less than or equal to 1000",
    "param": "k",
    "code": None,
    "id": "5f0e8a1c9b2d4e37",
}


class ErrorModel(BaseModel):
    """An error."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"error": _EXAMPLE}]})
    error: ErrorDetail


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorModel, "description": meaning}
    for status, (_, meaning) in _STATUSES.items()
    if meaning is not None
}
"""The errors of a route, for OpenAPI."""


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def error_response(
    status: int,
    message: str,
    identity: str,
    headers: Mapping[str, str] | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    """The response of an error; OpenAI's clients read it too. `param`: the field that is wrong."""
    kind = code if code == "unknown_key" else _STATUSES[status][0]  # a document, not an address
    error = {"type": kind, "message": message, "param": param, "code": code, "id": identity}
    return Response(to_json({"error": error}), status, dict(headers or {}), "application/json")


def add_handlers(app: FastAPI) -> None:
    """Turn every exception of a route into one sentence with the id of the request."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(SearchEngineError, _engine)
    app.add_exception_handler(Exception, _internal)


async def known_parameters(request: Request) -> None:
    """A dependency of routes: parameters that a route does not have are refused."""
    if not request.scope["query_string"]:
        return
    known = _parameters(request)
    for name in request.query_params:
        if name not in known:
            raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", name)}])


def _parameters(request: Request) -> list[str]:
    return [parameter.alias for parameter in request.scope["route"].dependant.query_params]


def _refused(request: Request, error: Any) -> Response:
    return error_response(error.status, error.message, request.scope["id"], error.headers)


def _http(request: Request, error: Any) -> Response:
    """An error of the framework: a route, a method, a body that is not JSON."""
    status, message = error.status_code, str(error.detail)
    if status == 404:
        message = "there is nothing at this address; /docs lists what there is"
    elif status == 405:
        methods = _methods(request)
        error.headers = {"Allow": ", ".join(methods)}
        message = f"this address takes {' or '.join(methods)}, got {request.scope['sent_as']}"
    elif status not in _STATUSES or status == 400:
        status, message = 400, "the body is not JSON in UTF-8"
    return error_response(status, message, request.scope["id"], error.headers)


def _methods(request: Request) -> list[str]:
    """The methods of an address; each route of the framework knows its own only."""
    methods = {
        method.upper()
        for path, operations in request.app.openapi()["paths"].items()
        if compile_path(path.replace("{key}", "{key:any_key}"))[0].match(request.scope["path"])
        for method in operations
    }
    return sorted(methods | ({"HEAD"} if "GET" in methods else set())) or ["GET", "HEAD"]


def _invalid(request: Request, error: Any) -> Response:
    """A value that does not fit its model. The message does not quote it: it may be large."""
    first = error.errors()[0]
    kind, identity = first["type"], request.scope["id"]
    if kind == "json_invalid":
        return error_response(400, "the body is not JSON", identity)
    if isinstance(first.get("input"), bytes):  # a body of another type, which nobody has parsed
        message = "send the header Content-Type: application/json with the body"
        return error_response(422, message, identity)
    place = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"]).removeprefix("Value error, ") if "msg" in first else ""
    if kind == "extra_forbidden":
        in_url = first["loc"][0] == "query"
        known = _parameters(request) if in_url else _fields(request)
        message = f"no such {'parameter' if in_url else 'field'}{_hint(place, known)}"
    message = f"{place:.80}: {message}" if place else message
    return error_response(422, f"{message:.500}", identity, param=f"{place:.80}" or None)


def _fields(request: Request) -> list[str]:
    """The fields of the body that a route takes."""
    body = request.scope["route"].dependant.body_params
    return list(getattr(body[0].field_info.annotation, "model_fields", ())) if body else []


def _hint(name: str, known: Iterable[str]) -> str:
    """The known name that was meant: a near one, or one that begins so."""
    names = list(known)
    longer = [each for each in names if each.startswith(name)]
    near = get_close_matches(name, names, 1, 0.75) or longer
    return f"; did you mean {near[0]}?" if near and name else ""


def _engine(request: Request, error: Any) -> Response:
    status, message = next((to, text) for kind, to, text in _ENGINE if isinstance(error, kind))
    here = request.app.state.here
    if isinstance(error, SearchTimeout):
        here.metrics.refused.labels("timeout").inc()
    elif status >= 500 and not isinstance(error, EncoderMissing):  # logged when it is tried
        _log.error("request %s: %s", request.scope["id"], error)
    if message is None:
        message = str(error)
        for served in here.collections.values():
            message = served.without_path(message)
    retry = status == 503 and not isinstance(error, SearchTimeout)  # which would be as slow again
    code = _CODES.get(type(error))
    headers = RETRY if retry else None
    return error_response(status, message, request.scope["id"], headers, code=code)


def _internal(request: Request, _: Any) -> Response:
    """An unexpected error, which the guard logs."""
    return error_response(500, INTERNAL, request.scope["id"])
