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

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from searchengine.server.auth import Access
from searchengine.server.metrics import Metrics
from searchengine.server.refusals import INTERNAL, RETRY, Refused, error_response
from searchengine.server.server_settings import ServerSettings

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
_log = logging.getLogger(__name__)


class Left(Exception):
    """The caller has left."""


class Guard:
    """The application around that of the routes."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, access: Access
    ) -> None:
        self._app, self._settings, self._metrics, self._access = app, settings, metrics, access
        self._turns = asyncio.Semaphore(settings.max_requests)
        # Random for each process, then counted: to read random numbers takes longer than all else.
        prefix = secrets.token_hex(4)
        self._ids = (f"{prefix}{number:08x}" for number in count())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, log and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        root, path = self._settings.root_path, scope["path"]
        if path.startswith(f"{root}/"):
            path = path[len(root) :]
        scope = {
            **scope,
            "id": next(self._ids),
            "root_path": root,
            "path": root + path,  # also where the proxy has taken the prefix off
            "client": scope.get("client") or ("unix", 0),  # a Unix socket names no caller
        }
        await self._exchange(scope, path, receive, send)

    async def _exchange(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Send a response, by the application or a refusal."""
        start, status = time.perf_counter(), 0  # 0: no response has begun

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", scope["id"].encode()),
                    *((name, value) for name, value in _HEADERS.items() if name not in present),
                ]
            await send(message)

        timer = asyncio.timeout(self._settings.timeout)
        try:
            async with timer:
                await self._answer(scope, path, receive, sending)
        except Left:
            status = status or 499
        except Exception as error:
            refused = self._refused(error, timer.expired(), scope["id"])
            if not status:  # else all that is left is to end the connection
                message, headers = refused.message, refused.headers
                response = error_response(refused.status, message, scope["id"], headers)
                await response(scope, receive, sending)
        finally:
            self._record(scope, status, time.perf_counter() - start)

    def _refused(self, error: Exception, is_late: bool, identity: str) -> Refused:
        """An error of a request as a refusal; an unexpected one is logged."""
        if isinstance(error, Refused):
            return error
        if is_late:
            return Refused(503, f"not answered within {self._settings.timeout:g} seconds")
        _log.error("request %s failed", identity, exc_info=error)
        return Refused(500, INTERNAL)

    async def _answer(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Run the application until it ends or the caller leaves. Raises Refused, Left."""
        headers = dict(scope["headers"])
        scope["token"] = self._access.admit(scope["method"], path, headers)
        counted = path.startswith("/v1/")
        if counted and self._turns.locked():
            raise Refused(429, "too many requests under way; try again", RETRY)
        async with self._turns if counted else nullcontext():
            bodies = [await self._body(headers, receive)]

            async def replay() -> Message:
                if not bodies:  # only `leaving` receives from now on
                    await asyncio.Event().wait()
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}

            answering = asyncio.ensure_future(self._app(scope, replay, send))
            leaving = asyncio.ensure_future(_leave(receive))
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    raise Left
            finally:
                leaving.cancel()
                answering.cancel()
                (outcome,) = await asyncio.gather(answering, return_exceptions=True)
            if isinstance(outcome, BaseException):
                raise outcome

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body. Raises Refused if it is too long, Left."""
        length, most = headers.get(b"content-length", b"0"), self._settings.max_body
        size, body, more = int(length) if length.isdigit() else 0, bytearray(), True
        while True:
            if max(size, len(body)) > most:
                raise Refused(413, f"a request must be at most {most} bytes; send less at once")
            if not more:
                return bytes(body)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Left
            body += message.get("body", b"")
            more = message.get("more_body", False)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Count the request and write its line."""
        template = getattr(scope.get("route"), "path", "other")
        collection = scope.get("collection", "")
        self._metrics.answered(template, scope["method"], collection, status, seconds)
        if self._settings.log == "none":
            return
        token = scope.get("token")
        line = (
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            scope["client"][0],
            "-" if token is None else token.name,
            scope["method"],
            scope.get("raw_path", b"").decode("latin1") or scope["path"],
            status,
            f"{1e3 * seconds:.1f} ms",
            scope["id"],
        )
        sys.stderr.write(" ".join(ascii(str(part))[1:-1] for part in line) + "\n")


async def _leave(receive: Receive) -> None:
    """Wait until the caller leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
