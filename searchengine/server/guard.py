"""Middleware for every request: id, token, limits of body, number, rate and time, and a log line.

Plain ASGI, outermost: a request that is refused has cost little, and nothing leaves without an id.
"""

import asyncio
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

from starlette.responses import Response

from searchengine.server.counting import Metrics, Shared
from searchengine.server.refusals import INTERNAL, RETRY, Refused, error_response
from searchengine.server.server_settings import ServerSettings, token_position

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN = ("/healthz", "/readyz", "/openapi.json")
"""Paths without a token."""
# Of all that is not GET, only this reads.
_READS = re.compile(r"/v1/(search|search/batch|embeddings|collections/[^/]+/map)")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_WATCH = 0.1  # seconds until a request is watched for a caller that leaves
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
    """The outermost application.

    Attributes:
        app, settings, shared, metrics: as passed.
        ids: an id of 16 characters for each request.
    """

    def __init__(
        self, app: App, settings: ServerSettings, shared: Shared, metrics: Metrics
    ) -> None:
        self.app, self.settings, self.shared, self.metrics = app, settings, shared, metrics
        # Random for each process, then counted: to read random numbers takes longer than all else.
        prefix = secrets.token_hex(4)
        self.ids = (f"{prefix}{number:08x}" for number in count())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await Passing(self, scope, receive, send).run()

    def admit(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> str | None:
        """The name of the caller's token; None: no token is needed. Raises Refused."""
        settings, path = self.settings, scope["path"]
        if not settings.tokens:
            self._check_host(headers)
        if path in OPEN or not path.startswith(("/v1/", "/metrics")):
            return None
        writes = scope["method"] not in ("GET", "HEAD") and not _READS.fullmatch(path)
        if not settings.tokens:
            if writes:
                raise Refused(403, "writing needs a token; start the server with: --tokens FILE")
            return None
        position = token_position(settings.tokens, headers.get(b"authorization"))
        if position is None:
            raise Refused(
                401,
                "a token is needed: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        token = settings.tokens[position]
        if settings.rate is not None and not self.shared.within_rate(position, settings.rate):
            self.metrics.refused.labels("rate").inc()
            raise Refused(429, f"more than {settings.rate:g} requests per second; slow down", RETRY)
        if writes and not token.writes:
            raise Refused(403, "this token may read only; use one with the scope write")
        return token.name

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Refuse other names of this machine: a web page could make one of its own point here."""
        host = headers.get(b"host", b"").decode("latin1").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in (*_LOOPBACK, self.settings.host.lower()):
            raise Refused(421, "without tokens, the server answers to localhost and 127.0.0.1 only")


class Passing:
    """One request on its way."""

    def __init__(
        self, guard: Guard, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        self._guard, self._scope = guard, scope
        self._receive, self._send = receive, send
        self._settings = guard.settings
        self._start = time.perf_counter()
        self._identity = scope["id"] = next(guard.ids)
        self._status = 0  # of the response; 0: none has begun
        self._read = 0  # bytes of the body
        # Whether the body has been read; that of a GET or DELETE is nobody's.
        self._complete = scope["method"] in ("GET", "HEAD", "DELETE")
        self._exceeded = False
        self._streams = False
        self._token: str | None = None
        self._watching: asyncio.Task[None] | None = None
        self._left = False

    async def run(self) -> None:
        """Answer, log and count."""
        counted = self._scope["path"].startswith("/v1/")
        entered = False
        try:
            headers = dict(self._scope["headers"])
            self._token = self._guard.admit(self._scope, headers)
            self._check_length(headers)
            if counted:
                entered = self._guard.shared.enter(self._settings.max_requests)
                if not entered:
                    self._guard.metrics.refused.labels("queue").inc()
                    raise Refused(429, "too many requests under way; try again", RETRY)
            await self._answer()
            if self._exceeded and not self._status:
                raise self._too_large()
        except Refused as error:
            await self._refuse(error.status, error.message, error.headers)
        except Left:
            self._status = self._status or 499
        except asyncio.CancelledError:
            self._status = self._status or 499
            raise
        except Exception:
            _log.exception("request %s failed", self._identity)
            await self._refuse(500, INTERNAL)
        finally:
            if entered:
                self._guard.shared.leave()
            self._record()

    def _check_length(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        self._streams = is_stream(self._scope)
        if not self._streams and length.isdigit() and int(length) > self._settings.max_body:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused(
            413, f"a request must be at most {self._settings.max_body} bytes; send less at once"
        )

    async def _answer(self) -> None:
        """Run the application within the time limit, until it ends or the caller leaves."""
        if self._streams:
            await self._guard.app(self._scope, self._receive, self._sending)
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_WATCH, self._watch, asyncio.current_task())
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._guard.app(self._scope, self._receiving, self._sending)
        except TimeoutError:
            self._guard.metrics.refused.labels("timeout").inc()
            raise Refused(
                503, f"not answered within {self._settings.timeout:g} seconds", RETRY
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._left and task is not None and task.uncancel() == 0:
                raise Left from None
            raise
        finally:
            timer.cancel()
            if self._watching is not None:
                self._watching.cancel()

    def _watch(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel the request when its caller leaves, once its body was read."""

        async def watch() -> None:
            while not self._complete:
                await asyncio.sleep(_WATCH)
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._left = True
            if task is not None:
                task.cancel()

        self._watching = asyncio.get_running_loop().create_task(watch())

    async def _receiving(self) -> Message:
        """A part of the body, within the limit."""
        if self._complete:  # the watcher receives from now on
            await asyncio.Event().wait()
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._settings.max_body:
                self._exceeded = True
                raise self._too_large()
            self._complete = not message.get("more_body", False)
        return message

    async def _sending(self, message: Message) -> None:
        """Add the headers that every response has."""
        if self._exceeded and not self._status:
            return  # the framework answers that the body cannot be parsed
        if message["type"] == "http.response.start":
            self._status = message["status"]
            present = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self._identity.encode()),
                *((name, value) for name, value in _HEADERS.items() if name not in present),
            ]
        await self._send(message)

    async def _refuse(self, status: int, message: str, headers: Any = None) -> None:
        if self._status:  # a response has begun: all that is left is to end the connection
            return
        self._exceeded = False
        refusal: Response = error_response(status, message, self._identity, headers)
        await refusal(self._scope, self._receive, self._sending)

    def _record(self) -> None:
        """Count the request and write its line."""
        seconds = time.perf_counter() - self._start
        route = self._scope.get("route")
        template = getattr(route, "path", "other")
        self._guard.metrics.answered(template, self._scope["method"], self._status, seconds)
        if self._settings.log == "none":
            return
        client = self._scope.get("client") or ("-", 0)
        path = self._scope.get("raw_path", b"").decode("latin1") or self._scope["path"]
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0],
            "token": self._token,
            "method": self._scope["method"],
            "path": path,
            "status": self._status,
            "ms": round(1e3 * seconds, 2),
            "id": self._identity,
        }
        if self._settings.log == "json":
            text = json.dumps(line)
        else:
            line |= {"token": self._token or "-", "ms": f"{1e3 * seconds:.1f} ms"}
            text = " ".join(ascii(str(value))[1:-1] for value in line.values())
        sys.stderr.write(f"{text}\n")


def is_stream(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is a bulk add: its body may have any length and take any time."""
    path: str = scope["path"]
    return (
        scope["method"] == "POST"
        and path.startswith("/v1/collections/")
        and path.endswith("/documents")
    )
