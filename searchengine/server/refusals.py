"""Errors as a client sees them: a status, a type, one sentence and the id of the request."""

import logging
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

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

_TYPES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    421: "wrong_host",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    502: "encoder_unreachable",
    503: "unavailable",
}
INTERNAL = "internal error; the log of the server has it by this id"
RETRY = {"Retry-After": "1"}
"""Header of a refusal before anything was done, so that any request may be sent again."""
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
_EXAMPLE = {
    "type": "invalid",
    "message": "k: Input should be less than or equal to 1000",
    "param": "k",
    "code": None,
    "id": "5f0e8a1c9b2d4e37",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"example": {"error": _EXAMPLE}}}}
    for status, text in (
        ("4XX", "The request is refused; the message says why."),
        ("5XX", "Not ready, busy, not in time, or an error."),
    )
}
"""The errors of a route, for OpenAPI."""
_log = logging.getLogger(__name__)


class Refused(HTTPException):
    """A request that is answered by an error: its status, its message, and headers."""


def error_response(
    status: int,
    message: str,
    identity: str,
    headers: Mapping[str, str] | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    """The response of an error; OpenAI's clients read it too.

    `param`: the field that is wrong. `code`: the error of the engine, such as filter_error.
    """
    kind = code if code == "unknown_key" else _TYPES[status]  # a document, not an address
    error = {"type": kind, "message": message, "param": param, "code": code, "id": identity}
    return Response(to_json({"error": error}), status, headers, "application/json")


def add_handlers(app: FastAPI) -> None:
    """Turn every exception of a route into one sentence with the id of the request."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(SearchEngineError, _engine)
    app.add_exception_handler(Exception, _internal)


async def known_parameters(request: Request) -> None:
    """A dependency of routes: parameters that a route does not have are refused."""
    for name in request.query_params:
        if name not in _parameters(request):
            raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", name)}])


def _parameters(request: Request) -> list[str]:
    return [parameter.alias for parameter in request.scope["route"].dependant.query_params]


def _http(request: Request, error: Any) -> Response:
    """A refusal of ours, or of the framework: a route, a method, a body that is not JSON."""
    status, headers, message = error.status_code, error.headers, error.detail
    if isinstance(error, Refused):
        pass
    elif status == 404:
        message = "there is nothing at this address; /docs lists what there is"
    elif status == 405:  # each route of the framework knows its own method only
        paths, address = request.app.openapi()["paths"], request.scope["path"]
        address = address.removeprefix(request.scope["root_path"])
        matching = [paths[path] for path in paths if _pattern(path).match(address)]
        methods = sorted(method.upper() for each in matching for method in each) or ["GET"]
        headers = {"Allow": ", ".join(methods)}
        message = f"this address takes {' or '.join(methods)}, got {request.method}"
    else:
        status, message = 400, "the body is not JSON in UTF-8"
    return error_response(status, message, request.scope["id"], headers)


def _pattern(path: str) -> re.Pattern[str]:
    return compile_path(path.replace("{key}", "{key:any_key}"))[0]


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
    message = str(first.get("msg", "")).removeprefix("Value error, ")
    if kind == "extra_forbidden" and first["loc"][0] == "query":
        message = f"no such parameter{_hint(place, _parameters(request))}"
    elif kind == "extra_forbidden":
        (body,) = request.scope["route"].dependant.body_params
        message = f"no such field{_hint(place, body.field_info.annotation.model_fields)}"
    message = f"{place:.80}: {message}" if place else message
    return error_response(422, f"{message:.500}", identity, param=f"{place:.80}" or None)


def _hint(name: str, known: Iterable[str]) -> str:
    """The known name that was meant: a near one, or one that begins so."""
    longer = [each for each in known if each.startswith(name)]
    near = get_close_matches(name, known, 1, 0.75) or longer
    return f"; did you mean {near[0]}?" if near and name else ""


def _engine(request: Request, error: Any) -> Response:
    status, message = next((to, text) for kind, to, text in _ENGINE if isinstance(error, kind))
    late = isinstance(error, SearchTimeout)
    if status >= 500 and not late and not isinstance(error, EncoderMissing):  # logged when tried
        _log.error("request %s: %s", request.scope["id"], error)
    if message is None:
        message = str(error)
        for served in request.app.state.collections.values():
            message = served.without_path(message)
    headers = RETRY if status == 503 and not late else None  # which would be as slow again
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    return error_response(status, message, request.scope["id"], headers, code=code)


def _internal(request: Request, _: Any) -> Response:
    """An unexpected error, which the guard logs."""
    return error_response(500, INTERNAL, request.scope["id"])
