"""Turns every exception of a route into one sentence with the id of the request."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path

from searchengine.errors import EncoderMissing, SearchEngineError, UnknownKey
from searchengine.server import errors
from searchengine.server.errors import Refused

_HTTP = {
    400: "the body is not JSON in UTF-8",
    404: "there is nothing at this address; GET /openapi.json lists what there is",
    405: "this address does not take this method",
}
_log = logging.getLogger(__name__)


def add(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(SearchEngineError, _engine)
    app.add_exception_handler(Exception, _internal)


def _refused(request: Request, error: Any) -> Response:
    return errors.response(error.status, error.message, request.scope["id"], error.headers)


def _http(request: Request, error: Any) -> Response:
    """An error of the framework: a route, a method, a body that is not JSON."""
    status = error.status_code if error.status_code in errors.TYPES else 400
    if status == 405:
        error.headers = {"Allow": ", ".join(_methods(request))}
    message = _HTTP.get(status, str(error.detail))
    return errors.response(status, message, request.scope["id"], error.headers)


def _methods(request: Request) -> list[str]:
    """The methods of an address; each route of the framework knows its own only."""
    return sorted(
        method.upper()
        for path, operations in request.app.openapi()["paths"].items()
        if compile_path(path.replace("{key}", "{key:any_key}"))[0].match(request.scope["path"])
        for method in operations
    )


def _invalid(request: Request, error: Any) -> Response:
    """A value that does not fit its model. The message does not quote it: it may be large."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return errors.response(400, "the body is not JSON", request.scope["id"])
    place = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"]).removeprefix("Value error, ")
    message = f"{place}: {message}" if place else message
    return errors.response(422, f"{message:.500}", request.scope["id"])


def _engine(request: Request, error: Any) -> Response:
    status, message = errors.of_engine(error)
    if status >= 500 and not isinstance(error, EncoderMissing):  # logged when it is tried
        _log.error("request %s: %s", request.scope["id"], error)
    if message is None:
        message = str(error)
        for served in request.app.state.here.collections.values():
            message = served.without_path(message)
    headers = errors.RETRY if status == 503 else None
    kind = errors.UNKNOWN_KEY if isinstance(error, UnknownKey) else None
    return errors.response(status, message, request.scope["id"], headers, kind)


def _internal(request: Request, _: Any) -> Response:
    """What nobody expected; the guard logs it."""
    return errors.response(500, errors.INTERNAL, request.scope["id"])
