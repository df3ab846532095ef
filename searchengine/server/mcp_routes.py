"""The Model Context Protocol over HTTP (streamable HTTP): a collection as tools of an assistant."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError, SearchEngineError
from searchengine.server.document_routes import Name
from searchengine.server.projection import current_version
from searchengine.server.refusals import INTERNAL, Refused, of_engine
from searchengine.server.served import Served, State, collection_of, state
from searchengine.server.server_settings import MAX_RESULT
from searchengine.trainer.errors import install_line

router = APIRouter()
_log = logging.getLogger(__name__)


@router.post("/mcp", include_in_schema=False)
async def only(request: Request) -> Response:
    """Answer a message about the only collection."""
    return await _answer(request, None)


@router.post("/mcp/{name}", include_in_schema=False)
async def named(request: Request, name: Name) -> Response:
    """Answer a message about a collection."""
    return await _answer(request, name)


async def _answer(request: Request, name: str | None) -> Response:
    here, served = state(request), collection_of(request, name)
    _check_origin(request, here)
    try:
        body = await request.body()
    except ClientDisconnect:  # which mcp would log with a traceback
        raise Refused(400, "the caller has left") from None

    def server(engine: SearchEngine) -> Any:
        version = current_version(engine)
        if served.assistants is None or served.assistants[0] != version:
            served.assistants = version, _server(here, served)
        return served.assistants[1]

    return _Exchange(await served.read(server), body, here.settings.max_body)


def _check_origin(request: Request, here: State) -> None:
    """Refuse web pages of other servers, as the protocol demands."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if origin is not None and origin not in here.settings.origins:
        if origin.partition("://")[2] != host:
            raise Refused(403, f"pages of {origin:.80} may not call; start with --allow-origin URL")


def _server(here: State, served: Served) -> Any:
    """The mcp_server.Server of a collection, which says how many documents it has now."""
    try:
        from mcp.server.mcpserver.exceptions import ToolError

        from searchengine.server.mcp_server import Server, Tools
    except ImportError as error:
        raise Refused(404, f"/mcp needs {error.name}: {install_line('mcp')}") from error

    def adapt(tool: Callable[..., Any]) -> Callable[..., Any]:
        def limited(**arguments: Any) -> Any:
            result = tool(**arguments)
            if (size := len(to_json(result))) > MAX_RESULT:
                raise QueryError(
                    f"the result must have at most {MAX_RESULT:,} bytes, got {size:,}; ask for "
                    "fewer hits, documents or characters"
                )
            return result

        @wraps(tool)
        async def called(**arguments: Any) -> Any:
            try:
                return await served.read(lambda _: limited(**arguments))
            except SearchEngineError as error:
                status, message = of_engine(error)
                if status >= 500:
                    _log.error("a tool of %s: %s", served.name, error)
                raise ToolError(message or served.without_path(str(error))) from error
            except OSError as error:
                _log.exception("a tool of %s failed", served.name)
                raise ToolError(INTERNAL) from error

        return called

    return Server(Tools(lambda: served.engine, here.settings.cross_encoding), adapt)


class _Exchange(Response):
    """A message and what answers it, read and written by `mcp`."""

    def __init__(self, server: Any, message: bytes, max_body: int) -> None:
        super().__init__()
        self._manager = server.exchange(max_body)
        self._parts = [{"type": "http.request", "body": message, "more_body": False}]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer."""

        async def replay() -> Any:
            return self._parts.pop() if self._parts else await receive()

        async with self._manager.run():
            await self._manager.handle_request(scope, replay, send)
