"""Middleware for every request: id, token, limits of body, number and time, and a log line.

Plain ASGI, outermost: a request that is refused has cost little, and nothing leaves without an id.
"""

import asyncio
import logging
import secrets
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import count

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from searchengine.server import MAX_BODY, MAX_REQUESTS, ServerSettings
from searchengine.server.auth import Access
from searchengine.server.responses import INTERNAL, RETRY, Refused, refuse
from searchengine.server.status_routes import REQUESTS, SECONDS

POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": POLICY.format("", ""),
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_log = logging.getLogger(__name__)


class Left(Exception):
    """The caller has left."""


class Guard:
    """The application around that of the routes."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, access: Access) -> None:
        self._app, self._settings, self._access = app, settings, access
        self._turns = asyncio.Semaphore(MAX_REQUESTS)
        # Random for each process, then counted: to read random numbers takes longer than all else.
        prefix = secrets.token_hex(4)
        self._ids = (f"{prefix}{number:08x}" for number in count())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, log and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, root, path = scope["method"], self._settings.root_path, scope["path"]
        path = path[len(root) :] if path.startswith(f"{root}/") else path
        scope = {
            **scope,
            "id": next(self._ids),
            "method": "GET" if method == "HEAD" else method,  # whose body uvicorn does not send
            "root_path": root,
            "path": root + path,  # also where the proxy has taken the prefix off
        }
        start, status = time.perf_counter(), 0  # 0: no response has begun

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = scope["id"]
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._admit(scope, path, receive, sending)
        except Left:
            status = status or 499
        except Exception as error:
            if not isinstance(error, Refused):
                _log.error("request %s failed", scope["id"], exc_info=error)
                error = Refused(500, INTERNAL)
            if not status:  # else all that is left is to end the connection
                await refuse(scope, error)(scope, receive, sending)
        finally:
            _record(scope, method, status, time.perf_counter() - start)

    async def _admit(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Run the application, if the request may be answered now. Raises Refused, Left."""
        scope["token"] = self._access.admit(scope["method"], path, dict(scope["headers"]))
        counted = path.startswith("/v1/")
        if counted and self._turns.locked():
            raise Refused(429, "too many requests under way; try again", RETRY)
        timer = asyncio.timeout(seconds := self._settings.timeout)
        try:
            async with timer, self._turns if counted else nullcontext():
                await _until_left(self._app, scope, receive, send)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise Refused(503, f"not answered within {seconds:g} seconds") from error


async def _until_left(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application until it ends or the caller leaves. Raises Left, and Refused by a body."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Left
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise Refused(413, f"a request must be at most {MAX_BODY} bytes; send less at once")
    bodies = [bytes(body)]

    async def replay() -> Message:
        if not bodies:  # the caller is watched here
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    answering = asyncio.ensure_future(app(scope, replay, send))
    leaving = asyncio.ensure_future(receive())  # after the body nothing else comes
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Left
        await answering
    finally:
        leaving.cancel()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


def _record(scope: Scope, method: str, status: int, seconds: float) -> None:
    """Count the request and write its line: no parameter, which may be a filter."""
    template = getattr(scope.get("route"), "path", "other")
    about = template, method, scope.get("collection", "")
    REQUESTS.labels(*about, str(status)).inc()
    SECONDS.labels(*about).observe(seconds)
    token = scope.get("token")
    line = (
        datetime.now(UTC).isoformat(timespec="milliseconds"),
        scope["client"][0] if scope.get("client") else "-",
        "-" if token is None else token.name,
        method,
        scope.get("raw_path", b"").decode("latin1") or scope["path"],
        status,
        f"{1e3 * seconds:.1f} ms",
        scope["id"],
    )
    sys.stderr.write(" ".join(ascii(str(part))[1:-1] for part in line) + "\n")
