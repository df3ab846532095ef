"""Middleware for every request: id, token, limits of body, number and time, and a log line.

Plain ASGI, outermost: a request that is refused has cost little, and nothing leaves without an id.
"""

import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

from starlette.responses import RedirectResponse

from searchengine.query.hits import STAGES, Timing
from searchengine.server.auth import Access, Token
from searchengine.server.metrics import Metrics
from searchengine.server.refusals import INTERNAL, RETRY, Refused, error_response
from searchengine.server.server_settings import ServerSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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
    """The application around that of the routes.

    Attributes:
        app, settings, metrics, access: as passed.
        under_way: requests, from their beginning to that of their response.
        ids: an id of 16 characters for each request.
    """

    def __init__(
        self, app: App, settings: ServerSettings, metrics: Metrics, access: Access
    ) -> None:
        self.app, self.settings, self.metrics, self.access = app, settings, metrics, access
        self.under_way = 0
        # Random for each process, then counted: to read random numbers takes longer than all else.
        prefix = secrets.token_hex(4)
        self.ids = (f"{prefix}{number:08x}" for number in count())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        root, path = self.settings.root_path, scope["path"]
        if path == root or path.startswith(f"{root}/"):  # the proxy has not taken it off
            path = path[len(root) :]
        method = scope["method"]
        scope = {
            **scope,
            "id": next(self.ids),
            "path": path,
            "sent_as": method,
            "method": "GET" if method == "HEAD" else method,  # without the body of the response
            "client": scope.get("client") or ("unix", 0),  # a Unix socket names no caller
        }
        await _Exchange(self, scope, receive, send).run()


class _Exchange:
    """A request and its response."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard, self._scope, self._receive, self._send = guard, scope, receive, send
        self._settings, self._metrics = guard.settings, guard.metrics
        self._start = time.perf_counter()
        self._status = 0  # of the response; 0: none has begun
        self._token: Token | None = None
        self._is_counted = False  # as under way
        self._left = False  # whether the caller has

    async def run(self) -> None:
        """Answer, log and count."""
        timer = asyncio.timeout(self._settings.timeout)
        try:
            async with timer:
                await self._answer()
        except Refused as error:
            await self._refuse(error.status, error.message, error.headers)
        except (Left, asyncio.CancelledError) as error:
            self._status = self._status or 499
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and not (
                self._left and task is not None and task.uncancel() == 0
            ):
                raise
        except Exception:
            if timer.expired():
                self._metrics.refused.labels("timeout").inc()
                message = f"not answered within {self._settings.timeout:g} seconds"
                await self._refuse(503, message)
            else:
                _log.exception("request %s failed", self._scope["id"])
                await self._refuse(500, INTERNAL)
        finally:
            self._end_turn()
            self._record()

    async def _answer(self) -> None:
        """Run the application until it ends or the caller leaves."""
        scope = self._scope
        if not scope["path"]:  # the page names its parts relative to a folder
            redirect = RedirectResponse(f"{self._settings.root_path}/", 308)
            await redirect(scope, self._receive, self._sending)
            return
        headers = dict(scope["headers"])
        self._token = self._guard.access.admit(scope["sent_as"], scope["path"], headers)
        scope["token"] = self._token
        self._begin_turn()
        bodies = [await self._body(headers)]

        async def receive() -> Message:
            if not bodies:  # the watcher receives from now on
                await asyncio.Event().wait()
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        watching = asyncio.create_task(self._watch(asyncio.current_task()))
        try:
            await self._guard.app(scope, receive, self._sending)
        finally:
            watching.cancel()

    def _begin_turn(self) -> None:
        """Count the request as under way. Raises Refused if too many are."""
        if not self._scope["path"].startswith("/v1/"):
            return
        if self._guard.under_way >= self._settings.max_requests:
            self._metrics.refused.labels("queue").inc()
            raise Refused(429, "too many requests under way; try again", RETRY)
        self._is_counted = True
        self._guard.under_way += 1
        self._metrics.under_way.inc()

    def _end_turn(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._guard.under_way -= 1
            self._metrics.under_way.dec()

    async def _body(self, headers: dict[bytes, bytes]) -> bytes:
        """The whole body. Raises Refused if it is too long or compressed, Left."""
        if (coding := headers.get(b"content-encoding", b"identity").lower()) != b"identity":
            raise Refused(415, f"send the body as it is, not by Content-Encoding: {coding!r:.80}")
        length, most = headers.get(b"content-length", b"0"), self._settings.max_body
        size, body, more = int(length) if length.isdigit() else 0, bytearray(), True
        while True:
            if max(size, len(body)) > most:
                raise Refused(413, f"a request must be at most {most} bytes; send less at once")
            if not more:
                return bytes(body)
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Left
            body += message.get("body", b"")
            more = message.get("more_body", False)

    async def _watch(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel the request when its caller leaves."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if task is not None:
            task.cancel()

    async def _sending(self, message: Message) -> None:
        """Add the headers that every response has."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            present = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self._scope["id"].encode()),
                *((name, value) for name, value in _HEADERS.items() if name not in present),
            ]
            self._end_turn()
        elif self._scope["sent_as"] == "HEAD":
            message = {**message, "body": b""}
        await self._send(message)

    async def _refuse(self, status: int, message: str, headers: Any = None) -> None:
        if not self._status:  # else all that is left is to end the connection
            refusal = error_response(status, message, self._scope["id"], headers)
            await refusal(self._scope, self._receive, self._sending)

    def _record(self) -> None:
        """Count the request and write its line."""
        seconds, scope = time.perf_counter() - self._start, self._scope
        method, status = scope["sent_as"], self._status
        template = getattr(scope.get("route"), "path", "other")
        self._metrics.answered(template, method, scope.get("collection", ""), status, seconds)
        slow = self._settings.slow is not None and 1e3 * seconds >= self._settings.slow
        if self._settings.log == "none" and not slow:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": scope["client"][0],
            "token": None if self._token is None else self._token.name,
            "method": method,
            "path": scope.get("raw_path", b"").decode("latin1") or scope["path"],
            "status": status,
            "ms": round(1e3 * seconds, 2),
            "id": scope["id"],
        }
        stages = self._stages(seconds) if slow else None
        if self._settings.log == "json":
            text = json.dumps(line if stages is None else line | {"slow": stages})
        else:
            line |= {"token": line["token"] or "-", "ms": f"{1e3 * seconds:.1f} ms"}
            text = " ".join(ascii(str(value))[1:-1] for value in line.values())
            if stages is not None:
                text += " slow: " + ", ".join(f"{name} {ms} ms" for name, ms in stages.items())
        sys.stderr.write(f"{text}\n")

    def _stages(self, seconds: float) -> dict[str, float]:
        """Milliseconds of the stages of a search, and of the rest: waiting, JSON, sending."""
        timing: Timing | None = self._scope.get("timing")
        stages = {} if timing is None else {name: getattr(timing, name) for name in STAGES}
        stages["rest"] = seconds - sum(stages.values())
        return {name: round(1e3 * value, 1) for name, value in stages.items()}
