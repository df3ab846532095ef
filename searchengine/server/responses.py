"""What is sent: JSON up to a size; errors as a status, a type, one sentence and an id."""

import logging
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

from searchengine import errors
from searchengine.engine import limits
from searchengine.indexer.errors import IndexerError
from searchengine.server import MAX_RESPONSE
from searchengine.trainer.errors import TrainerError

INTERNAL = "internal error; the log of the server has it by this id"
RETRY = {"Retry-After": "1"}
"""Header of a refusal: the request may be sent again. What was done is done again harmlessly."""
_ENGINE: tuple[tuple[type[Exception], int, str | None], ...] = (
    (errors.UnknownKey, 404, None),
    (errors.SearchTimeout, 503, None),
    (errors.CollectionBusy, 503, "another process is writing to the collection; try again"),
    (errors.BackendUnavailable, 503, "the collection was replaced or cannot be reached; try again"),
    (errors.EncoderMismatch, 503, "the collection has a new encoder just now; try again"),
    (errors.EncoderMissing, 503, "the encoder cannot be loaded; search by words: mode text"),
    (errors.EndpointError, 502, "the encoder cannot be reached, or answers wrongly"),
    (errors.CollectionError, 500, "the collection cannot be read or written; the log says why"),
    (TrainerError, 500, INTERNAL),
    (IndexerError, 500, INTERNAL),
    (errors.SearchEngineError, 422, None),
)
"""Errors of the engine: the status, and the message; None: its own."""
_TYPES = {
    413: "too_large",
    421: "wrong_host",
    422: "invalid",
    500: "internal",
    502: "encoder_unreachable",
    503: "unavailable",
}
"""Status → the type of its error, where that is not the name of the status."""
_UNREAD = {
    RecursionError: "the body is nested too deeply",
    ValueError: "a number of the body has more than 4,300 digits",
}
"""What Python raises for JSON that it does not read → the message."""
_log = logging.getLogger(__name__)


class Refused(HTTPException):
    """A request that is answered by an error: its status, its message, and headers."""


def json_list(values: Iterable[Any]) -> bytes:
    """A list as JSON, one value after the other; values that are bytes are JSON already.

    Raises Refused if it is too large, SearchTimeout if it is late.
    """
    pieces, size = [], 0
    for value in values:
        pieces.append(value if isinstance(value, bytes) else to_json(value))
        size += len(pieces[-1]) + 1
        if size > MAX_RESPONSE:
            raise Refused(
                422,
                f"the response would have more than {MAX_RESPONSE >> 20} MiB; ask for fewer at "
                'once, or leave out the texts of hits: "texts": false',
            )
        limits.check()
    return b"[" + b",".join(pieces) + b"]"


def json_object(members: Mapping[str, Any]) -> bytes:
    """An object as JSON; members that are bytes are JSON already."""
    pieces = (
        to_json(name) + b":" + (value if isinstance(value, bytes) else to_json(value))
        for name, value in members.items()
    )
    return b"{" + b",".join(pieces) + b"}"


def facet_lists(facets: Mapping[str, Mapping[Any, int]]) -> dict[str, list[dict[str, Any]]]:
    """Field → its values and their counts, most frequent first."""
    return {
        name: [{"value": value, "count": count} for value, count in counts.items()]
        for name, counts in facets.items()
    }


def respond(body: bytes | Mapping[str, Any], status: int = 200) -> Response:
    """The response of JSON, or of an object."""
    content = body if isinstance(body, bytes) else json_object(body)
    return Response(content, status, media_type="application/json")


def refuse(
    request: Mapping[str, Any], refused: HTTPException, param: str = "", code: str | None = None
) -> Response:
    """The response of an error; OpenAI's clients read it too.

    `request`: its scope. `param`: the field that is wrong. `code`: the error of the engine.
    """
    status = refused.status_code
    kind = _TYPES.get(status, HTTPStatus(status).name.lower())
    error = {
        "type": code if code == "unknown_key" else kind,  # a document, not an address
        "message": refused.detail,
        "param": param or None,
        "code": code,
        "id": request["id"],
    }
    return Response(to_json({"error": error}), status, refused.headers, "application/json")


async def known_parameters(request: Request) -> None:
    """A dependency of routes: parameters that a route does not have are refused."""
    for name in request.query_params:
        if name not in _parameters(request):
            raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", name)}])


def _parameters(request: Request) -> list[str]:
    return [parameter.alias for parameter in request.scope["route"].dependant.query_params]


def _http(request: Request, error: Any) -> Response:
    """A refusal of ours, or of the framework: a route, a method, a body that is not JSON."""
    if isinstance(error, Refused):
        return refuse(request.scope, error)
    refused = Refused(400, _UNREAD.get(type(error.__cause__), "the body is not JSON in UTF-8"))
    if error.status_code == 404:
        refused = Refused(404, "there is nothing at this address; /docs lists what there is")
    elif error.status_code == 405:  # each route of the framework knows its own method only
        address = request.scope["path"].removeprefix(request.scope["root_path"])
        methods = sorted(
            method.upper()
            for path, operations in request.app.openapi()["paths"].items()
            if compile_path(path.replace("{key}", "{key:any_key}"))[0].match(address)
            for method in operations
        ) or ["GET"]
        message = f"this address takes {' or '.join(methods)}, got {request.method}"
        refused = Refused(405, message, {"Allow": ", ".join(methods)})
    return refuse(request.scope, refused)


def _invalid(request: Request, error: Any) -> Response:
    """A value that does not fit its model. The message does not quote it: it may be large."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return refuse(request.scope, Refused(400, "the body is not JSON"))
    if isinstance(first.get("input"), bytes):  # a body of another type, which nobody has parsed
        message = "send the header Content-Type: application/json with the body"
        return refuse(request.scope, Refused(422, message))
    place = ".".join(str(part) for part in first["loc"][1:])
    message = str(first.get("msg", "")).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        kind, known = "parameter", _parameters(request)
        if first["loc"][0] == "body":
            (body,) = request.scope["route"].dependant.body_params
            kind, known = "field", [*body.field_info.annotation.model_fields]
        near = get_close_matches(place, known, 1, 0.75)
        near += [each for each in known if place and each.startswith(place)]
        message = f"no such {kind}" + (f"; did you mean {near[0]}?" if near else "")
    if not place and first["type"] != "value_error":  # no body, or another kind of JSON
        message = "the body must be a JSON object"
    message = f"{place:.80}: {message}" if place else message
    return refuse(request.scope, Refused(422, f"{message:.500}"), f"{place:.80}")


def _engine(request: Request, error: Any) -> Response:
    status, message = next((to, text) for kind, to, text in _ENGINE if isinstance(error, kind))
    late = isinstance(error, errors.SearchTimeout)
    if status >= 500 and not late and not isinstance(error, errors.EncoderMissing):  # logged before
        _log.error("request %s: %s", request.scope["id"], error)
    if message is None:
        message = str(error)
        for served in request.app.state.collections.values():
            message = served.without_path(message)
    headers = RETRY if status == 503 and not late else None  # which would be as slow again
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    return refuse(request.scope, Refused(status, message, headers), code=code)


HANDLERS: dict[Any, Any] = {
    HTTPException: _http,
    RequestValidationError: _invalid,
    errors.SearchEngineError: _engine,
    Exception: lambda request, _: refuse(request.scope, Refused(500, INTERNAL)),  # logged by guard
}
"""Exceptions of routes → what makes one sentence of them, with the id of the request."""
